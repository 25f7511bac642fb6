// Package blob stores large immutable blobs: each is a few files under one name. [Dir]
// stores them in a directory of this machine; the interface is such that an object store
// can implement it, too, with a prefix for each blob and an object that is written last.
//
// A blob is written as a [Draft], which only its writer sees. Commit makes the whole blob
// visible at once. The files of a blob do not change, but Reduce can remove some of them.
// Readers that need real files (the runtime maps them) take a [Lease]: Delete removes the
// name at once, and the content when the last lease has ended.
//
// The callers know what a blob contains and which blobs are still needed: see
// internal/sandboxd/snapshot.
package blob

import (
	"context"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/cayhq/cay"
)

// Store stores blobs. Its methods may be called concurrently, also by several processes.
// Package blobtest has tests that every Store must pass.
type Store interface {
	// Create begins a blob. size is the expected number of bytes; 0 means unknown.
	// Errors: no_space if the disk lacks room for size bytes.
	Create(ctx context.Context, size int64) (Draft, error)
	// Stat describes a blob. Errors: not_found, invalid (no valid name).
	Stat(ctx context.Context, name string) (Info, error)
	// Open opens a file of a blob. The file stays readable until it is closed, even if
	// the blob is deleted meanwhile. Errors: as Stat; not_found also if the blob has no
	// such file.
	Open(ctx context.Context, name, file string) (File, error)
	// Local makes sure that the files of a blob are on this machine and keeps
	// them there until the lease is released. Errors: as Stat; no_space.
	Local(ctx context.Context, name string) (*Lease, error)
	// Delete removes a blob. Its name can be used again at once. Errors: as Stat.
	Delete(ctx context.Context, name string) error
	// Reduce removes all files for which keep returns false and writes small files, by
	// path, in one step: a caller that opens the blob sees either the old state or the
	// new state, also after a crash. Existing leases keep the old files. The disk space
	// of the removed files is free when the last of these leases ends. The blob must not
	// be deleted meanwhile. Errors: as Stat; no_space.
	Reduce(ctx context.Context, name string, keep func(file string) bool, write map[string][]byte) (Info, error)
	// List returns blobs, sorted by name.
	List(ctx context.Context, o ListOptions) ([]Info, error)
	// Clean removes leftovers: drafts of processes that died, if they are older than
	// grace, and content that was deleted while it was in use. It returns the number of
	// bytes freed.
	Clean(ctx context.Context, grace time.Duration) (int64, error)
}

// Draft is a blob being written. Its creator must call Commit or Abort.
type Draft interface {
	// Writer makes a file of the blob, with a path such as "disk/pages.img". The file is
	// complete when Close has returned nil. Errors: invalid (invalid path),
	// already_exists; when writing, no_space.
	Writer(file string) (io.WriteCloser, error)
	// Dir returns a directory on this machine. Commit adds the files in this directory to
	// the blob: regular files, in subdirectories if need be, with names that CheckFile
	// accepts.
	Dir() (string, error)
	// Commit makes the blob durable and then visible. If Commit fails, the blob does not
	// exist, and the caller must abort the draft or commit it again. Errors: invalid,
	// already_exists, no_space.
	Commit(ctx context.Context, name string) (Info, error)
	// Abort forgets the draft. After Commit it does nothing.
	Abort() error
}

// Info describes a blob.
type Info struct {
	Name      string
	Size      int64     // of all files, in bytes
	CreatedAt time.Time // when it was committed
}

// File is an open file of a blob.
type File interface {
	io.ReaderAt
	io.Closer
	Size() int64 // in bytes
}

// ListOptions say which blobs to list. The zero value means all.
type ListOptions struct {
	Prefix string    // of the name
	Before time.Time // committed before then; zero: at any time
}

// Lease keeps the files of a blob on this machine. It ends with Release, or
// with the process.
type Lease struct {
	Info
	Dir string // with the files, which must not be changed

	release func()
}

// NewLease returns a lease that calls release when it ends. Implementations of Store use
// it.
func NewLease(info Info, dir string, release func()) *Lease {
	return &Lease{Info: info, Dir: dir, release: release}
}

// Release ends the lease. It must be called once.
func (l *Lease) Release() { l.release() }

const (
	maxName  = 200
	maxDepth = 4
)

// element matches the name of a blob and each element of a path in it. A match is valid
// as a file name, a part of a URL and an object key everywhere, and cannot be an option,
// a hidden file or a way out of a directory.
var element = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// CheckName reports whether a blob can have that name. Errors: invalid.
func CheckName(name string) error {
	if len(name) > maxName || !element.MatchString(name) {
		return cay.Errorf(cay.Invalid, "%.100q cannot be the name of a blob", name).
			WithHint("use up to %d letters, digits and any of _.- and begin with a letter or digit", maxName)
	}
	return nil
}

// CheckFile reports whether a file in a blob can have that path. Errors: invalid.
func CheckFile(file string) error {
	elements := strings.Split(file, "/")
	ok := len(file) <= maxName && len(elements) <= maxDepth
	for _, e := range elements {
		ok = ok && element.MatchString(e)
	}
	if !ok {
		return cay.Errorf(cay.Invalid, "%.100q cannot be the path of a file in a blob", file).
			WithHint("use up to %d names of letters, digits and any of _.- with / between them", maxDepth)
	}
	return nil
}
