// Package torture holds one installation, with real machines, to what cay says
// of itself while its daemon is killed over and over, wherever it may be: a
// persistent sandbox is never lost, what was written to it is there, what goes on
// goes on, and nothing is left behind. It has tests only.
//
// Some lives of the daemon have a hardship as well: a restart on a full disk, a restart
// with few file descriptors, or a power cut at the end. A restart may leave sandboxes
// unavailable until the hardship has passed, and loses none. After a power cut each
// sandbox has at least the files of its last acknowledged stop, snapshot or
// hibernation, and no deleted sandbox comes back. Blobs are taken to be on the disk
// when they are committed: the disk of the test cannot lose what was not synced.
//
// `make crash` kills it 200 times; `go test` a few times.
package torture
