// Package snapshot stores the files of snapshots, each with a manifest that describes
// them.
//
// A snapshot is a blob (internal/blob) named by its id:
//
//	manifest.json     the origin of the snapshot, and its files with their sums
//	manifest.sha256   the sum of manifest.json, as sha256sum(1) writes it
//	disk/...          the files of the sandbox's disk, as the runtime saved them
//	memory/...        its processes and their memory, in snapshots of the kind Memory
//
// Only the runtime knows the formats in disk and memory, except that package disk reads
// the files in disk without the runtime. A snapshot is complete or absent. Opening a
// snapshot checks the manifest and the sizes of the files, which costs next to nothing;
// [Snapshot.Verify] reads all files.
//
// [Store.Export] writes a snapshot as one tar archive, whose members have the names above
// and come in that order, and [Store.Import] reads it. From any input, Import makes
// either a snapshot whose files have the sums of its manifest, or nothing. The sums
// detect damage. They do not prove who made the archive, so Import leaves out the memory,
// which the runtime has to trust, unless the caller trusts the archive's origin.
//
// This package knows no database: the caller tells [Store.Collect] which snapshots exist
// for users, and Collect removes the others.
package snapshot
