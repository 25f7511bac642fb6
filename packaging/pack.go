package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the formats register themselves
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

const description = `agent cloud on one machine
Sandboxes for untrusted code, durable workflows and a gateway to models, in one
daemon. The default image of sandboxes is made with mmdebstrap when it is first
needed.`

// pack writes a package for a package manager, "deb" or "rpm".
func (r *release) pack(w io.Writer, format, arch string, content []file) error {
	// The library reads its input from files.
	dir, err := os.MkdirTemp("", "cay-pack-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	info := &nfpm.Info{
		Name: "cay", Arch: arch, Platform: "linux", Version: r.version, VersionSchema: "none", Section: "admin", Priority: "optional",
		Maintainer: "The cay authors <cay@localhost>", Description: description, Vendor: "The cay authors",
		License: "Apache-2.0", MTime: r.time, DisableGlobbing: true,
	}
	if format == "rpm" {
		info.Release = "1"
	}
	info.Umask = 0o022
	info.Recommends = []string{"mmdebstrap", "erofs-utils"}
	info.RPM.BuildHost, info.RPM.Summary, info.RPM.Packager = "cay", "agent cloud on one machine", "The cay authors"
	info.Deb.Compression = "gzip"
	if format == "deb" {
		info.Recommends = append(info.Recommends, "debian-archive-keyring")
	}
	for i, f := range content {
		source := f.source
		if source == "" {
			source = filepath.Join(dir, fmt.Sprint(i))
			if err := os.WriteFile(source, f.data, 0o644); err != nil {
				return err
			}
		}
		c := &files.Content{Source: source, Destination: f.path, FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode, MTime: r.time}}
		switch {
		case f.config:
			c.Type = files.TypeConfigNoReplace
		case format == "rpm" && path.Base(f.path) == "copyright":
			c.Type = files.TypeRPMLicense
		}
		if format == "rpm" { // where its distributions look for them
			c.Destination = strings.Replace(c.Destination, "/zsh/vendor-completions/", "/zsh/site-functions/", 1)
		}
		info.Contents = append(info.Contents, c)
	}
	if info.Scripts, err = scripts(dir, format); err != nil {
		return err
	}
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	return packager.Package(info, w)
}

// scripts writes the maintainer scripts of a format into dir.
func scripts(dir, format string) (s nfpm.Scripts, err error) {
	for name, to := range map[string]*string{
		"preinstall": &s.PreInstall, "postinstall": &s.PostInstall, "preremove": &s.PreRemove, "postremove": &s.PostRemove,
	} {
		b, err := handmade.ReadFile(path.Join("files", format, name+".sh"))
		if err != nil {
			return s, err
		}
		*to = filepath.Join(dir, name+".sh")
		if err := os.WriteFile(*to, b, fs.FileMode(0o755)); err != nil {
			return s, err
		}
	}
	return s, nil
}

// rpmArch is the name that RPM has for an architecture.
func rpmArch(arch string) string {
	return map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]
}
