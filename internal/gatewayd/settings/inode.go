package settings

import (
	"io/fs"
	"syscall"
)

// inode returns the inode number of a file, 0 if info has none.
func inode(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}
