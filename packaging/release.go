package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const module = "github.com/cayhq/cay"

// release is the version that packages are made of.
type release struct {
	repo      string
	version   string // of the packages, and of the program
	commit    string
	time      time.Time // of the commit
	changelog string    // version to print with internal/changelog
}

// identify reads the commit and the version of a working tree. A commit with a tag such as
// v0.2.0 has that version. Another commit has the newest version of the changelog, and
// behind it the commit's time and name: package managers then see a later commit as newer.
func identify(repo, version string) (*release, error) {
	git := func(args ...string) (string, error) {
		out, err := command(repo, nil, "git", args...)
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "HEAD")
	if err != nil {
		return nil, err
	}
	stamp, err := git("log", "-1", "--format=%ct")
	if err != nil {
		return nil, err
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("time of the commit: %w", err)
	}
	tags, err := git("tag", "--points-at", "HEAD")
	if err != nil {
		return nil, err
	}
	changes, err := git("status", "--porcelain")
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(repo, "changelog"))
	if err != nil {
		return nil, err
	}
	var versions []string
	for _, e := range entries {
		versions = append(versions, e.Name())
	}
	r := &release{repo: repo, commit: commit, time: time.Unix(seconds, 0).UTC()}
	r.version, r.changelog = versionOf(strings.Fields(tags), versions, commit, r.time, changes != "")
	if version != "" {
		r.version = version
	}
	if !validVersion.MatchString(r.version) {
		return nil, fmt.Errorf("version %q is none of a package: digits first, then letters, digits, and . + ~", r.version)
	}
	return r, nil
}

var (
	tagged       = regexp.MustCompile(`^v(\d+\.\d+\.\d+)$`)
	dated        = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)_\d{4}-\d{2}-\d{2}$`)
	validVersion = regexp.MustCompile(`^\d[0-9A-Za-z.+~]*$`) // - separates the revision in both formats
)

// versionOf returns the version of a commit, and the version of its changelog.
func versionOf(tags, changelog []string, commit string, at time.Time, changed bool) (version, log string) {
	for _, tag := range tags {
		if m := tagged.FindStringSubmatch(tag); m != nil && !changed {
			return m[1], m[1]
		}
	}
	newest := []int{0, 0, 0}
	for _, name := range changelog {
		if m := dated.FindStringSubmatch(name); m != nil {
			var n []int
			for _, part := range m[1:] {
				v, err := strconv.Atoi(part)
				if err != nil { // more digits than a version has
					v = 0
				}
				n = append(n, v)
			}
			if slices.Compare(n, newest) > 0 {
				newest = n
			}
		}
	}
	version = fmt.Sprintf("%d.%d.%d+%s.g%.8s", newest[0], newest[1], newest[2], at.Format("20060102150405"), commit)
	if changed {
		version += ".changed"
	}
	return version, "unreleased"
}

// programs are the programs built for an architecture.
type programs struct {
	arch               string
	cay, guest, sentry string // paths
}

// entryPoint is where cay-sentry begins, as in the Makefile; see early.Start.
var entryPoint = map[string]string{"amd64": " -E " + module + "/internal/sandboxd/gvisor/sentry/early.Start"}

// nativeArch is the architecture of programs that run here.
func nativeArch() string { return runtime.GOARCH }

// build builds cay with the programs of sandboxes inside. The working tree stays as it is: an
// overlay puts the programs in the place of the embedded files.
func (r *release) build(arch, work string) (*programs, error) {
	dir := filepath.Join(work, arch)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	p := &programs{arch: arch, cay: filepath.Join(dir, "cay"), guest: filepath.Join(dir, "cay-guest"), sentry: filepath.Join(dir, "cay-sentry")}
	if err := r.compile(arch, p.guest, "./cmd/cay-guest", "-s -w"); err != nil {
		return nil, err
	}
	if err := r.editGVisor(arch); err != nil {
		return nil, err
	}
	if err := r.compile(arch, p.sentry, "./cmd/cay-sentry", "-s -w"+entryPoint[arch], "-modfile", editedGVisor+".mod"); err != nil {
		return nil, err
	}
	inside := filepath.Join(r.repo, "internal/embedded/files")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(inside, "cay-guest"): p.guest, filepath.Join(inside, "cay-sentry"): p.sentry,
	}})
	if err != nil {
		return nil, err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o644); err != nil {
		return nil, err
	}
	return p, r.compile(arch, p.cay, "./cmd/cay", "-s -w -X "+module+".version="+r.version, "-modfile", editedGVisor+".mod", "-overlay", list)
}

// editedGVisor is the gVisor that cay-sentry and cay are built with, as in the Makefile. The path is
// part of the program, which identifies saved memory.
const editedGVisor = ".cache/gvisor"

// editGVisor writes the edited gVisor for an architecture, in place of that of another.
func (r *release) editGVisor(arch string) error {
	if err := os.MkdirAll(filepath.Join(r.repo, filepath.Dir(editedGVisor)), 0o755); err != nil {
		return err
	}
	_, err := command(r.repo, []string{"GOFLAGS=-trimpath"}, "go", "run", "./internal/sandboxd/gvisor/edits", "-out", editedGVisor, "-arch", arch)
	return err
}

// compile builds a package reproducibly.
func (r *release) compile(arch, out, pkg, ldflags string, more ...string) error {
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", out}, more...)
	// Go settings in the caller's environment would change the bytes.
	env := []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=", "GOEXPERIMENT=", "GOWORK=off"}
	began := time.Now()
	if _, err := command(r.repo, env, "go", append(args, pkg)...); err != nil {
		return err
	}
	fmt.Printf("built %s for %s in %v\n", pkg, arch, time.Since(began).Round(100*time.Millisecond))
	return nil
}

// command runs a program and returns its output.
func command(dir string, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), errors.Join(err, errors.New(strings.TrimSpace(stderr.String()))))
	}
	return out, nil
}
