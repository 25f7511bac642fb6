// Package backup writes the state of a daemon's data directory into one file, while the
// daemon runs or not, and restores the file into an empty directory.
//
// A backup is a tar, followed by a line that no tar has:
//
//	cay-backup.json        the Header, always first
//	db/<name>.db           a SQLite database, as of one moment
//	blobs/<store>/<name>/  the files of a blob
//	files/<name>           other files of the data directory
//	images/<path>          files of the image store, if they were asked for
//	manifest.json          the Manifest: the size and the SHA-256 of all parts above
//	keys.age               keys, and the SHA-256 of manifest.json, sealed with a passphrase
//	cay-backup-end <hex>   the SHA-256 of all bytes before this line
//
// The line at the end detects files that are cut off or damaged. Only keys.age protects
// against a person who changes a backup on purpose, because everybody can compute sums: its
// sum of the manifest cannot be made without the passphrase.
//
// # Consistency
//
// [Write] leases all blobs, and then takes the state of each database at almost the same
// moment. Rows may refer to blobs that were made after the leases: then Write leases these
// too, and takes the states again. So garbage collection, which runs at the same time,
// removes no blob that a row of the backup refers to.
//
// # Restoring
//
// [Open] reads the whole file and refuses it unless all sums are right; nothing is written
// before. [Archive.Restore] reads the file again, checks it again, and writes into an empty
// directory. The file [Marker] is in the directory from before the first write until all is
// on the disk: a directory with the marker is used by nobody.
package backup
