// Package snapshot keeps the files of snapshots and says what they are of.
//
// A snapshot is a blob (internal/blob) named by its id:
//
//	manifest.json     what it is a snapshot of, and its files with their sums
//	manifest.sha256   the sum of manifest.json, as sha256sum(1) writes it
//	disk/...          what the sandbox wrote to its disk, as the runtime saved it
//	memory/...        its processes and their memory, in snapshots of that kind
//
// What is in disk and memory is the runtime's affair; package disk reads the
// former without it. A snapshot is there whole or not at all. Opening one checks
// the manifest and the sizes of the files, which costs next to nothing;
// [Snapshot.Verify] reads all of them.
//
// [Store.Export] writes a snapshot as one tar archive, whose members have the
// names above and come in that order, and [Store.Import] reads it: whatever it
// is given, it makes a snapshot whose files have the sums of its manifest, or
// none. The sums find damage. They do not say who made the archive, so that the
// memory in it, which the runtime has to trust, is left out unless the caller
// trusts its origin.
//
// This package knows no database: which snapshots exist for users is told to
// [Store.Collect], which removes the others.
package snapshot
