// Package disk reads what a sandbox wrote to its disk, without the runtime that
// saved it: a snapshot's files outlive the program that wrote them.
//
// gVisor saves the upper layers of overlays (its fscheckpoint format, version 1)
// in four files, all numbers little-endian:
//
//	fscheckpoint.pb  protobuf: version, page size, byte order; where in the other
//	                 files each file system is, by the path of its mount
//	multitar.img     a tar archive for each file system. The content of a regular
//	                 file in it is not that of the file but its size (8 bytes)
//	                 and runs of 3 x 8 bytes: where the run begins and ends in the
//	                 file, and where it begins in the memory file
//	pages_meta.img   for each memory file its length (8 bytes) and a protobuf with
//	                 the ranges that are allocated, and which have pages
//	pages.img        these pages, one after another; what has none is zero
//
// [Disk.WriteLayer] makes of one file system what everyone reads: a layer of an
// OCI image, an ordinary tar archive of what differs from the image, with
// ".wh.NAME" for each file that was removed.
//
// What it reads is as hostile as whoever was root in the sandbox, or made the
// snapshot that was imported. It allocates within [Limits] only, and files are
// copied piece by piece.
package disk
