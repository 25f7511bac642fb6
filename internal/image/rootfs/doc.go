// Package rootfs merges layers into one file tree and writes it as an EROFS image.
//
// A [Tree] lives in memory: names, modes and owners are Go values, and only the contents
// of regular files go to disk, one after the other into a single spool file. No name in
// an archive ever becomes a path on the host, so a hostile layer cannot escape, owners
// and set-user-id bits need no privilege, and no tool needs to be installed.
//
// The images suit gVisor's reader: 4 KiB blocks, no compression, file contents in whole
// aligned blocks (so that they can be mapped), no extended attributes (the reader refuses
// inodes that have them). Equal trees give equal bytes.
//
// The package knows nothing of registries, references or the store.
package rootfs
