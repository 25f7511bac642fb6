package snapshot

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
)

// ManifestVersion is the version of manifests that this program writes, and the newest
// that it reads. A field that older programs may ignore is added with omitempty, and the
// version stays; any other change needs a new version, and ParseManifest must continue to
// read the old versions.
const ManifestVersion = 1

// Kind says which parts a snapshot has.
type Kind string

// The kinds of snapshots.
const (
	Filesystem Kind = "filesystem" // files
	Memory     Kind = "memory"     // processes and their memory, and mostly files, too
)

// Where the parts of a snapshot are.
const (
	diskPart     = "disk"
	memoryPart   = "memory"
	manifestFile = "manifest.json"
	sumFile      = "manifest.sha256"
)

const (
	maxManifest = 1 << 20 // bytes
	maxFiles    = 64
	maxText     = 256             // bytes of a name
	maxGuest    = maxManifest / 2 // bytes of a Guest as JSON
)

// Manifest describes a snapshot. Each manifest has exactly one encoding as JSON.
type Manifest struct {
	Version   int       `json:"version"`
	ID        string    `json:"id"` // "snap_..."
	Name      string    `json:"name,omitempty"`
	Kind      Kind      `json:"kind"`
	CreatedAt time.Time `json:"created_at"` // UTC

	Source string `json:"source,omitempty"` // the sandbox that was saved
	Parent string `json:"parent,omitempty"` // the snapshot that sandbox was made from
	Origin string `json:"origin,omitempty"` // of an imported snapshot: its id where it was exported

	Image    string    `json:"image"` // digest
	Runtimes []Runtime `json:"runtimes,omitempty"`
	DiskMB   int64     `json:"disk_mb"`
	// VCPUs and MemoryMB are the size of the machine, for the kind Memory only.
	VCPUs    float64 `json:"vcpus,omitempty"`
	MemoryMB int64   `json:"memory_mb,omitempty"`
	Guest    *Guest  `json:"guest,omitempty"`

	Build Build  `json:"build"` // that wrote it
	Files []File `json:"files"` // sorted by path
}

// Build is a program that writes snapshots.
type Build struct {
	// ID identifies the exact program. Saved memory has the program's own object layout,
	// so no other program can restore it: the runtime compares the IDs. Only snapshots of
	// the kind Memory have an ID.
	ID     string `json:"id,omitempty"`
	Cay    string `json:"cay"`              // cay's version, for people
	GVisor string `json:"gvisor,omitempty"` // likewise
	Arch   string `json:"arch"`             // as in GOARCH
}

// ThisBuild describes the running program, without its ID, which only the runtime knows.
func ThisBuild() Build {
	b := Build{Cay: cay.Version(), Arch: runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "gvisor.dev/gvisor" {
				b.GVisor = dep.Version
			}
		}
	}
	return b
}

// Guest holds the settings that a sandbox should find unchanged when it continues
// elsewhere. The store does not interpret them.
type Guest struct {
	Image   string            `json:"image,omitempty"` // the image's name
	User    string            `json:"user,omitempty"`
	WorkDir string            `json:"workdir,omitempty"`
	Env     map[string]string `json:"env,omitempty"` // of the image and the runtime
	// Token is the daemon's secret towards the processes in a snapshot of the kind
	// Memory. The memory contains it as well, so storing it here reveals nothing more.
	Token string `json:"token,omitempty"`
}

// Runtime is an image mounted beside the root.
type Runtime struct {
	Target string `json:"target"` // absolute path in the guest
	Digest string `json:"digest"`
}

// File is a file of a snapshot.
type File struct {
	Path string `json:"path"` // such as "disk/pages.img"
	Size int64  `json:"size"` // in bytes
	Sum  string `json:"sum"`  // "xxh64:" and 16 hexadecimal digits
}

// The patterns are compiled at first use: this program also runs as pagers, and as sentries
// where cay-sentry is missing, and each process would pay for the compiling at its start.
var (
	idPattern     = lazily(`^snap_[a-z0-9]{1,64}$`)
	originPattern = lazily(`^[a-z0-9_]{1,100}$`)
	digestPattern = lazily(`^sha256:[0-9a-f]{64}$`)
	sumPattern    = lazily(`^xxh64:[0-9a-f]{16}$`)
)

func lazily(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

// checkID reports whether a snapshot can have that id. Errors: invalid.
func checkID(id string) error {
	if !idPattern().MatchString(id) {
		return cay.Errorf(cay.Invalid, "%.100q is not the id of a snapshot", id)
	}
	return nil
}

// ParseManifest reads a manifest and checks it. Errors: invalid; not_supported
// if a newer version wrote it.
func ParseManifest(b []byte) (*Manifest, error) {
	if len(b) > maxManifest {
		return nil, cay.Errorf(cay.Invalid, "the manifest has %d bytes, more than %d", len(b), maxManifest)
	}
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, cay.Errorf(cay.Invalid, "the manifest is not JSON: %w", err)
	}
	if v.Version > ManifestVersion {
		return nil, cay.Errorf(cay.NotSupported, "the snapshot is of version %d, and this cay reads versions up to %d", v.Version, ManifestVersion).
			WithHint("use the newer cay that wrote it")
	}
	var m Manifest
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return nil, cay.Errorf(cay.Invalid, "the manifest is damaged: %w", err)
	}
	// The manifest must have exactly the form that encode writes: no repeated field, no
	// other spelling, nothing after the end.
	again, err := m.encode()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, b) {
		return nil, cay.Errorf(cay.Invalid, "the manifest is damaged: it does not have the form cay writes")
	}
	return &m, nil
}

// encode checks a manifest and returns its one form.
func (m *Manifest) encode() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(m, "", "\t")
	if err != nil {
		return nil, fmt.Errorf("encode manifest: %w", err)
	}
	if b = append(b, '\n'); len(b) > maxManifest {
		return nil, cay.Errorf(cay.Invalid, "the manifest has %d bytes, more than %d", len(b), maxManifest)
	}
	return b, nil
}

func (m *Manifest) check() error {
	if err := checkID(m.ID); err != nil {
		return err
	}
	bad := func(field string, value any) error {
		return cay.Errorf(cay.Invalid, "the manifest of the snapshot %s has the %s %.100q", m.ID, field, fmt.Sprint(value))
	}
	isMemory := m.Kind == Memory
	switch {
	case m.Version < 1:
		return bad("version", m.Version)
	case m.Kind != Filesystem && m.Kind != Memory:
		return bad("kind", m.Kind)
	case !isText(m.Name):
		return bad("name", m.Name)
	case m.CreatedAt.IsZero() || m.CreatedAt.Location() != time.UTC:
		return bad("time", m.CreatedAt)
	case m.Source != "" && !originPattern().MatchString(m.Source):
		return bad("source", m.Source)
	case m.Parent != "" && !idPattern().MatchString(m.Parent):
		return bad("parent", m.Parent)
	case m.Origin != "" && !idPattern().MatchString(m.Origin):
		return bad("origin", m.Origin)
	case !digestPattern().MatchString(m.Image):
		return bad("image", m.Image)
	case m.DiskMB <= 0:
		return bad("disk size", m.DiskMB)
	case isMemory != (m.VCPUs > 0) || !(m.VCPUs >= 0 && m.VCPUs <= 1<<20):
		return bad("number of vCPUs", m.VCPUs)
	case isMemory != (m.MemoryMB > 0) || m.MemoryMB < 0:
		return bad("memory size", m.MemoryMB)
	case m.Guest != nil && !m.Guest.Fits(m.Kind):
		return cay.Errorf(cay.Invalid, "the manifest of the snapshot %s says of its guest what does not fit", m.ID) // the value is secret, so the error does not name it
	case isMemory != (m.Build.ID != "") || !isText(m.Build.ID) || !isText(m.Build.Cay) || !isText(m.Build.GVisor) || !isText(m.Build.Arch):
		return bad("build", m.Build)
	case len(m.Runtimes) > maxFiles || len(m.Files) > maxFiles:
		return bad("number of files or runtimes", len(m.Runtimes)+len(m.Files))
	}
	for _, r := range m.Runtimes {
		if !strings.HasPrefix(r.Target, "/") || !isText(r.Target) || !digestPattern().MatchString(r.Digest) {
			return bad("runtime", r)
		}
	}
	var last string
	var total int64
	for _, f := range m.Files {
		part, _, _ := strings.Cut(f.Path, "/")
		known := part == diskPart || part == memoryPart && isMemory
		total += f.Size
		if !known || part == f.Path || blob.CheckFile(f.Path) != nil || f.Path <= last || f.Size < 0 || total < 0 || !sumPattern().MatchString(f.Sum) {
			return bad("file", f)
		}
		last = f.Path
	}
	if !m.has(diskPart) && !isMemory || !m.has(memoryPart) && isMemory {
		return cay.Errorf(cay.Invalid, "the manifest of the snapshot %s has no files of the kind %s", m.ID, m.Kind)
	}
	return nil
}

// Fits reports whether g can be in the manifest of a snapshot: g must be small enough,
// and survive encoding as JSON unchanged.
func (g *Guest) Fits(kind Kind) bool {
	for k, v := range g.Env {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return false
		}
	}
	for _, s := range []string{g.Image, g.User, g.WorkDir, g.Token} {
		if !utf8.ValidString(s) {
			return false
		}
	}
	b, err := json.Marshal(g)
	return err == nil && len(b) <= maxGuest && (kind == Memory || g.Token == "")
}

// isText reports whether s is short text that JSON does not change.
func isText(s string) bool { return len(s) <= maxText && utf8.ValidString(s) }

func (m *Manifest) has(part string) bool {
	for _, f := range m.Files {
		if strings.HasPrefix(f.Path, part+"/") {
			return true
		}
	}
	return false
}

// Size returns the number of bytes of all files.
func (m *Manifest) Size() int64 {
	var n int64
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// HasDisk reports whether the snapshot has the sandbox's files, so that a sandbox can be
// started from them.
func (m *Manifest) HasDisk() bool { return m.has(diskPart) }

// withoutMemory returns the manifest for the files of a snapshot of the kind Memory.
func (m Manifest) withoutMemory() Manifest {
	m.Kind, m.VCPUs, m.MemoryMB, m.Build.ID = Filesystem, 0, 0, ""
	if m.Guest != nil {
		g := *m.Guest
		g.Token = ""
		m.Guest = &g
	}
	m.Files = slices.DeleteFunc(slices.Clone(m.Files), func(f File) bool { return !inDisk(f.Path) })
	return m
}

// inDisk reports whether a file of a snapshot belongs to the disk.
func inDisk(file string) bool { return strings.HasPrefix(file, diskPart+"/") }

// Refused adds a remedy to the error of a runtime that did not restore the memory of m,
// if the reason is that another build wrote it.
func (m *Manifest) Refused(err error) error {
	if cay.CodeOf(err) != cay.NotSupported {
		return err
	}
	e := cay.Errorf(cay.NotSupported, "the memory of the snapshot %s was written by cay %s (%s): %w", m.ID, m.Build.Cay, m.Build.Arch, err)
	if m.HasDisk() {
		return e.WithHint("start from its files alone, which are in it too: files_only, or --files on the command line")
	}
	return e.WithHint("use the cay that wrote it: the snapshot has no files beside the memory")
}
