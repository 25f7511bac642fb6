package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"embed"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// files are the files of packages that are written by hand.
//
//go:embed files
var handmade embed.FS

// file is one regular file or directory of a package.
type file struct {
	path   string // on the machine
	mode   fs.FileMode
	data   []byte // or
	source string // path of a large file here
	config bool   // the machine's owner changes it
}

// files returns all installed files, by path.
func (r *release) files(p *programs, pages *pages) ([]file, error) {
	all := []file{
		{path: "/usr/bin/cay", mode: 0o755, source: p.cay},
		{path: "/etc/cay/cay.yaml", mode: 0o644, data: pages.settings, config: true},
		{path: "/usr/share/bash-completion/completions/cay", mode: 0o644, data: pages.completions["bash"]},
		{path: "/usr/share/zsh/vendor-completions/_cay", mode: 0o644, data: pages.completions["zsh"]},
		{path: "/usr/share/fish/vendor_completions.d/cay.fish", mode: 0o644, data: pages.completions["fish"]},
	}
	unit, err := handmade.ReadFile("files/cay.service")
	if err != nil {
		return nil, err
	}
	all = append(all, file{path: "/usr/lib/systemd/system/cay.service", mode: 0o644, data: unit})
	log, err := compress(pages.changelog)
	if err != nil {
		return nil, err
	}
	all = append(all, file{path: "/usr/share/doc/cay/changelog.gz", mode: 0o644, data: log})
	copyright := []byte("Upstream-Name: cay\nLicense: Apache-2.0\n On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n\n")
	for _, name := range []string{"NOTICE", "LICENSE"} {
		b, err := os.ReadFile(filepath.Join(r.repo, name))
		if err != nil {
			return nil, err
		}
		copyright = append(append(copyright, b...), '\n')
	}
	all = append(all, file{path: "/usr/share/doc/cay/copyright", mode: 0o644, data: copyright})
	for _, name := range slices.Sorted(maps.Keys(pages.manuals)) {
		page, err := compress(pages.manuals[name])
		if err != nil {
			return nil, err
		}
		all = append(all, file{path: "/usr/share/man/man1/" + name + ".gz", mode: 0o644, data: page})
	}
	slices.SortFunc(all, func(a, b file) int { return cmp.Compare(a.path, b.path) })
	return all, nil
}

// content returns the bytes of a file.
func (f file) content() ([]byte, error) {
	if f.source != "" {
		return os.ReadFile(f.source)
	}
	return f.data, nil
}

// compress returns data in gzip's format, without a time and a name.
func compress(data []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.DefaultCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil { // writes the end
		return nil, err
	}
	return b.Bytes(), nil
}

// directories returns the directories of paths, without the root, parents first.
func directories(paths []string) []string {
	seen := map[string]bool{}
	for _, p := range paths {
		for dir := path.Dir(strings.TrimPrefix(p, "/")); dir != "." && dir != "/"; dir = path.Dir(dir) {
			seen[dir] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}
