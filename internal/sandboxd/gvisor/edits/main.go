// Command edits writes the gVisor that cay-sentry is built with: the packages of the module
// that cay and cay-sentry need, with the edits of this package. "make inside" runs it:
//
//	go run ./internal/sandboxd/gvisor/edits -out .cache/gvisor
//
// It also writes .cache/gvisor.mod and .cache/gvisor.sum, a copy of cay's go.mod that replaces
// gVisor by that directory, for "go build -modfile". "make build" builds cay with it as well:
// the edits change nothing that cay uses, and gVisor is compiled once. All other builds use
// the module as it is.
//
// An edit names a file and a declaration in it, and gives the declaration another name, a
// further field, or another value. The code that stands there instead is in files of our own,
// in the directory _gvisor, which are added to gVisor's packages. So this repository holds
// nothing of gVisor's text. An edit knows the checksum of the declaration that it was written
// for. If gVisor changes the declaration, the command fails, and prints the edit's reason and
// the new checksum: read what has changed, and then drop the edit, rewrite it, or take over
// the checksum. docs/upgrades.md lists the edits.
package main

import (
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const gvisor = "gvisor.dev/gvisor"

// Files that are added to gVisor's packages.
//
//go:embed _gvisor
var added embed.FS

func main() {
	out := flag.String("out", "", "directory to write, below the current directory, which has cay's go.mod")
	program := flag.String("program", "./cmd/cay", "the package whose needs of gVisor are written; cay needs all that cay-sentry does")
	arch := flag.String("arch", "", "GOARCH of the program (default: that of this machine)")
	flag.Parse()
	if err := run(*out, *program, *arch); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(out, program, arch string) error {
	if !filepath.IsLocal(out) || out == "." {
		return fmt.Errorf("-out %q is not below the current directory", out)
	}
	root, dirs, err := packages(program, arch)
	if err != nil {
		return err
	}
	temp := out + ".new"
	if err := os.RemoveAll(temp); err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	if err := write(root, dirs, temp); err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.Rename(temp, out); err != nil {
		return err
	}
	return writeModule(out)
}

// packages returns the directory of the gVisor module, and the directories below it whose
// packages a program needs on an architecture.
func packages(program, arch string) (root string, dirs []string, err error) {
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if eq .Path \""+gvisor+"\"}}{{.Dir}}\t{{$.Dir}}{{end}}{{end}}", program)
	list.Stderr = os.Stderr
	if arch != "" {
		list.Env = append(os.Environ(), "GOARCH="+arch)
	}
	text, err := list.Output()
	if err != nil {
		return "", nil, fmt.Errorf("list the packages of %s: %w", program, err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		module, dir, _ := strings.Cut(line, "\t")
		rel, err := filepath.Rel(module, dir)
		if err != nil {
			return "", nil, err
		}
		root, dirs = module, append(dirs, rel)
	}
	if len(dirs) == 0 {
		return "", nil, fmt.Errorf("%s needs no package of %s", program, gvisor)
	}
	return root, dirs, nil
}

// write writes the edited module: the files of the packages without tests, go.mod, and the
// files that are added.
func write(root string, dirs []string, out string) error {
	edited, err := edit(root)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(out, dir), 0o755); err != nil {
			return err
		}
		for _, e := range entries {
			if !e.Type().IsRegular() || strings.HasSuffix(e.Name(), "_test.go") {
				continue
			}
			name := filepath.Join(dir, e.Name())
			text, ok := edited[name]
			if !ok {
				if text, err = os.ReadFile(filepath.Join(root, name)); err != nil {
					return err
				}
			}
			delete(edited, name)
			if err := os.WriteFile(filepath.Join(out, name), text, 0o644); err != nil {
				return err
			}
		}
	}
	for name := range edited {
		return fmt.Errorf("no package of the program has the edited file %s", name)
	}
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(out, "go.mod"), text, 0o644), add(out))
}

// add writes the files that are added to gVisor's packages.
func add(out string) error {
	files, err := fs.Sub(added, "_gvisor")
	if err != nil {
		return err
	}
	return fs.WalkDir(files, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if _, err := os.Stat(filepath.Join(out, filepath.Dir(name))); err != nil {
			return fmt.Errorf("gVisor has no directory for %s: %w", name, err)
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		// gVisor has no file of that name, or this fails.
		f, err := os.OpenFile(filepath.Join(out, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		_, err = f.Write(text)
		return errors.Join(err, f.Close())
	})
}

// writeModule writes the go.mod and go.sum of a build with the edited module. The path in the
// program's build information does not depend on where the repository is.
func writeModule(out string) error {
	text, err := os.ReadFile("go.mod")
	if err != nil {
		return err
	}
	text = fmt.Appendf(text, "\nreplace %s => ./%s\n", gvisor, filepath.ToSlash(out))
	if err := os.WriteFile(out+".mod", text, 0o644); err != nil {
		return err
	}
	from, err := os.Open("go.sum")
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.Create(out + ".sum")
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close())
}
