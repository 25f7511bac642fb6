//go:build !unix

package sandbox

import "io/fs"

// fileID identifies a file of the host.
type fileID struct{}

// linkedFile reports that no file has more than one name, so that each is
// copied.
func linkedFile(fs.FileInfo) (id fileID, several bool) { return fileID{}, false }
