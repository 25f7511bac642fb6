//go:build unix

package sandbox

import (
	"io/fs"
	"syscall"
)

// fileID identifies a file of the host.
type fileID struct{ dev, ino uint64 }

// linkedFile returns the identity of a file, and whether it has more than one name.
func linkedFile(fi fs.FileInfo) (id fileID, several bool) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, false
	}
	return fileID{uint64(st.Dev), uint64(st.Ino)}, st.Nlink > 1
}
