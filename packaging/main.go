package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// architectures are those of the packages. The first is built on and tested; arm64 is
// cross-built and not tested.
var architectures = []string{"amd64", "arm64"}

func main() {
	repo := flag.String("repo", "..", "root of the repository")
	out := flag.String("out", "../bin/dist", "directory of the results; emptied first")
	version := flag.String("version", "", "version of the packages (default from git and the changelog)")
	arch := flag.String("arch", strings.Join(architectures, ","), "architectures to make, comma-separated")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "packaging: no arguments, only flags")
		os.Exit(2)
	}
	if err := run(*repo, *out, *version, strings.Split(*arch, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		os.Exit(1)
	}
}

func run(repo, out, version string, archs []string) error {
	for _, arch := range archs {
		if !slices.Contains(architectures, arch) {
			return fmt.Errorf("architecture %q is none of %s", arch, strings.Join(architectures, ", "))
		}
	}
	repo, err := filepath.Abs(repo)
	if err != nil {
		return err
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	rel, err := identify(repo, version)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	// What is linked on the way is no result.
	work, err := os.MkdirTemp("", "cay-packaging-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	fmt.Printf("version %s, of %s\n", rel.version, rel.time.Format("2006-01-02 15:04:05"))

	// The pages come from the program, so one that runs here is built first.
	native, err := rel.build(nativeArch(), work)
	if err != nil {
		return err
	}
	pages, err := rel.pages(native.cay)
	if err != nil {
		return err
	}
	for _, arch := range archs {
		p := native
		if arch != nativeArch() {
			if p, err = rel.build(arch, work); err != nil {
				return err
			}
		}
		if err := rel.arch(p, pages, out); err != nil {
			return fmt.Errorf("%s: %w", arch, err)
		}
	}
	changelog := filepath.Join(out, "CHANGELOG.md")
	if err := os.WriteFile(changelog, pages.changelog, 0o644); err != nil {
		return err
	}
	return checksums(out)
}

// arch makes all files of one architecture.
func (r *release) arch(p *programs, pages *pages, out string) error {
	content, err := r.files(p, pages)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		make func(w io.Writer) error
	}{
		{fmt.Sprintf("cay_%s_%s.deb", r.version, p.arch), func(w io.Writer) error { return r.pack(w, "deb", p.arch, content) }},
		{fmt.Sprintf("cay-%s-1.%s.rpm", r.version, rpmArch(p.arch)), func(w io.Writer) error { return r.pack(w, "rpm", p.arch, content) }},
		{fmt.Sprintf("cay_%s_linux_%s.tar.gz", r.version, p.arch), func(w io.Writer) error { return r.tarball(w, content) }},
		{fmt.Sprintf("cay_%s_oci_%s.tar", r.version, p.arch), func(w io.Writer) error { return r.ociArchive(w, p) }},
		{fmt.Sprintf("cay_%s_%s.cdx.json", r.version, p.arch), func(w io.Writer) error { return r.components(w, p) }},
	} {
		if err := writeFile(filepath.Join(out, f.name), f.make); err != nil {
			return fmt.Errorf("make %s: %w", f.name, err)
		}
	}
	return nil
}

func writeFile(path string, fill func(w io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := fill(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// checksums writes SHA256SUMS, as sha256sum --check reads it.
func checksums(dir string) error {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, e := range entries {
		f, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		sum := sha256.New()
		_, err = io.Copy(sum, f)
		f.Close()
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sum.Sum(nil), e.Name())
	}
	fmt.Print(lines.String())
	return os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(lines.String()), 0o644)
}
