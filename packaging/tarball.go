package main

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"
)

// tarball writes all files below one directory, as install.sh and people copy them.
func (r *release) tarball(w io.Writer, content []file) error {
	z, err := gzip.NewWriterLevel(w, gzip.DefaultCompression)
	if err != nil {
		return err
	}
	script, err := handmade.ReadFile("files/install.sh")
	if err != nil {
		return err
	}
	top := "cay-" + r.version
	all := []file{{path: top + "/install.sh", mode: 0o755, data: script}}
	for _, f := range content {
		f.path = path.Join(top, f.path)
		all = append(all, f)
	}
	if err := writeTar(z, all, r.time); err != nil {
		return err
	}
	return z.Close()
}

// writeTar writes files, and their directories before them, owned by root.
func writeTar(w io.Writer, all []file, at time.Time) error {
	t := tar.NewWriter(w)
	var paths []string
	for _, f := range all {
		paths = append(paths, f.path)
	}
	header := tar.Header{ModTime: at, Format: tar.FormatPAX, Uname: "root", Gname: "root"}
	for _, dir := range directories(paths) {
		h := header
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, dir+"/", 0o755
		if err := t.WriteHeader(&h); err != nil {
			return err
		}
	}
	for _, f := range all {
		if f.mode.IsDir() {
			h := header
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, strings.TrimPrefix(f.path, "/")+"/", unixMode(f.mode)
			if err := t.WriteHeader(&h); err != nil {
				return err
			}
			continue
		}
		data, err := f.content()
		if err != nil {
			return err
		}
		h := header
		h.Typeflag, h.Name, h.Mode, h.Size = tar.TypeReg, strings.TrimPrefix(f.path, "/"), unixMode(f.mode), int64(len(data))
		if err := t.WriteHeader(&h); err != nil {
			return err
		}
		if _, err := t.Write(data); err != nil {
			return err
		}
	}
	return t.Close()
}

func unixMode(mode fs.FileMode) int64 {
	m := int64(mode.Perm())
	if mode&fs.ModeSticky != 0 {
		m |= 0o1000
	}
	return m
}
