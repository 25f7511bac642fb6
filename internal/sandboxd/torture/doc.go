// Package torture tests cay's guarantees on installations with real machines while their
// daemons are killed repeatedly, at random points: a persistent sandbox is never lost,
// acknowledged writes are there, running programs go on, and nothing is left behind. It
// has tests only.
//
// Some lives of the daemon have a hardship as well: a restart on a full disk, a restart
// with few file descriptors, or a power cut at the end. A restart may leave sandboxes
// unavailable until the hardship has passed, but loses none. After a power cut each
// sandbox has at least the files of its last acknowledged stop, snapshot or hibernation,
// and no deleted sandbox comes back. The test assumes that committed blobs are on the
// disk: its disk cannot lose unsynced data.
//
// `make crash` kills the daemon 200 times; `go test` a few times.
package torture
