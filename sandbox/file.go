package sandbox

import (
	"io"
	"io/fs"
	"time"
)

// FileType is the kind of a file, as one word.
type FileType string

const (
	TypeFile    FileType = "file"    // with content
	TypeDir     FileType = "dir"     // directory
	TypeSymlink FileType = "symlink" // see FileInfo.Target
	TypeOther   FileType = "other"   // device, pipe, socket
)

// FileInfo describes a file in a sandbox.
type FileInfo struct {
	// Name is the last element of the path. Names are bytes to Linux; names that
	// are not UTF-8 arrive with NameBase64 set to their exact bytes.
	Name       string      `json:"name"`
	NameBase64 []byte      `json:"name_base64,omitempty"`
	Path       string      `json:"path"` // absolute
	Type       FileType    `json:"type"`
	Size       int64       `json:"size"` // bytes
	Mode       fs.FileMode `json:"mode"` // Unix permission bits with 01000, 02000, 04000: as stat(2), at most 07777
	UID        uint32      `json:"uid"`
	GID        uint32      `json:"gid"`
	ModTime    time.Time   `json:"mod_time"`
	Target     string      `json:"target,omitempty"` // of a symlink
}

// Paths given to file methods are absolute, or relative to the sandbox's
// working directory; at most 4096 bytes without NUL. They are resolved inside
// the guest, by its kernel, so a link there can point only there.

// ReadParams selects part of a file.
type ReadParams struct {
	Offset int64 // bytes from the start; beyond the end reads nothing
	Length int64 // at most this many bytes; 0 means to the end
}

// WriteParams says how to write a file. A write is atomic: the file has its
// old content or the new, never part of it.
type WriteParams struct {
	Mode    fs.FileMode // permission bits as stat(2); 0 means the old file's, else 0644
	User    string      // owner, name or id; empty means the old file's, else the sandbox's user
	Parents bool        // create missing parent directories
	Size    int64       // bytes to come, if known; a body of another length is refused. 0 means unknown, -1 means empty
}

// MkdirParams says how to make a directory.
type MkdirParams struct {
	Mode    fs.FileMode `json:"mode,omitempty"`    // 0 means 0755
	User    string      `json:"user,omitempty"`    // owner; empty means the sandbox's user
	Parents bool        `json:"parents,omitempty"` // also missing parents; an existing directory is no error
}

// ReadDirParams pages through a directory in name order.
type ReadDirParams struct {
	Limit  int    // 1 to 10000; 0 means 1000
	Cursor string // Next of the page before
}

// ArchiveFormat is the format of an archive.
type ArchiveFormat string

const (
	Tar   ArchiveFormat = "tar"    // plain
	TarGz ArchiveFormat = "tar.gz" // compressed by gzip
)

// ExtractParams says how to unpack an archive into a directory, which is created
// if it is missing. Members with paths outside the directory are refused.
type ExtractParams struct {
	Format    ArchiveFormat // empty means Tar
	User      string        // owner of what is made; empty means the sandbox's user
	KeepOwner bool          // take owners from the archive instead
	// ContentOnly takes only regular files from the archive, with their names,
	// content and permission bits: members of other kinds are refused, times and
	// attributes are ignored.
	ContentOnly bool
	MaxBytes    int64 // refuse more content than this; 0 means 64 GiB
	MaxEntries  int64 // refuse more members than this; 0 means 1,000,000
}

// Watch reports changes below a directory or of a file until closed.
type Watch interface {
	// Next blocks for the next change. io.EOF when the sandbox stops.
	Next() (FileEvent, error)
	io.Closer
}

// FileEvent is one change seen by a Watch.
type FileEvent struct {
	Op   FileOp `json:"op"`
	Path string `json:"path"`           // absolute
	From string `json:"from,omitempty"` // where a Rename came from, if inside the watch
}

// FileOp is the kind of a change of a file.
type FileOp string

const (
	OpCreate   FileOp = "create"   // it is there now
	OpWrite    FileOp = "write"    // its content changed
	OpRemove   FileOp = "remove"   // it is gone
	OpRename   FileOp = "rename"   // it came from FileEvent.From
	OpChmod    FileOp = "chmod"    // its attributes changed
	OpOverflow FileOp = "overflow" // too many changes; some were not reported
)

// WatchParams says how to watch.
type WatchParams struct {
	Recursive bool // also all directories below, new ones included
}
