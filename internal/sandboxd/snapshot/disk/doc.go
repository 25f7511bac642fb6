// Package disk reads the files that a sandbox wrote to its disk, without the runtime that
// saved them: a snapshot's files outlive the program that wrote them.
//
// gVisor saves the upper layers of overlays (its fscheckpoint format, version 1) in four
// files, all numbers little-endian:
//
//	fscheckpoint.pb  protobuf: version, page size, byte order; where in the other
//	                 files each file system is, by the path of its mount
//	multitar.img     a tar archive for each file system. The content of a regular
//	                 file's member is not the file's content, but its size (8 bytes)
//	                 and runs of 3 x 8 bytes: where the run begins and ends in the
//	                 file, and where it begins in the memory file
//	pages_meta.img   for each memory file its length (8 bytes) and a protobuf with
//	                 the ranges that are allocated, and which have pages
//	pages.img        these pages, one after another; a range without pages is zero.
//	                 They may be in parts that several snapshots share: package pages
//
// [Disk.WriteLayer] converts one file system to a standard format: a layer of an OCI
// image, an ordinary tar archive of the differences from the image, with ".wh.NAME" for
// each file that was removed.
//
// The input may be hostile: root in the sandbox, or the author of an imported snapshot,
// controls it. The package allocates within [Limits] only, and copies files piece by
// piece.
package disk
