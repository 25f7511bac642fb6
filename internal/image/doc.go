// Package image keeps the root file systems and language runtimes sandboxes
// start from, as EROFS files named by the digest of their content.
//
// A [Store] is one directory shared by any number of processes: a daemon, and
// every "cay run" without one. There is no database; a file appears by rename
// when it is whole, and flock(2) says who uses what. The kernel drops those
// locks when their holder dies, so a crash at any point leaves nothing half
// visible and nothing locked.
//
//	images/<sha256>.erofs   content; a shared lock on it is a Lease
//	images/<sha256>.json    the image's record; modified = last used
//	refs/<hash>.json        a name and the digest it stands for
//	blobs/<algo>-<hash>     verified downloads of work in progress; an owner's downloads
//	                        are blobs/<owner>.<algo>-<hash>
//	       ....partial      unverified ones, continued by the next attempt
//	locks/<key>             held while an image is made or a blob is downloaded
//	tmp/<random>/           working files; locked by the process that owns it
//	tools/<name>-<id>       our own programs, and .erofs: small trees of them
//
// Images come from five places: [Store.Build] (the default image by
// mmdebstrap, runtimes from the npm registry), [Store.Pull] (an OCI registry),
// [Store.Import] and [Store.ImportDir] (archives), and [Store.Compose] (the files that
// a sandbox has written). All become layers merged by package rootfs, whose comment says
// what an image keeps and what it leaves out.
//
// Images leave as one layer, because the store keeps their files and not their layers:
// [Store.Export] writes archives of "docker save", [Store.Push] sends an image to a registry.
//
// To start something from an image, take a lease and hold it while the file is
// in use:
//
//	lease, err := store.Ensure(ctx, "debian", nil) // builds it the first time
//	...
//	defer lease.Release()
//	use(lease.Path)
//
// In a test, take it from package imagetest, which shares one store between
// all test packages and builds what is missing once:
//
//	rootFS := imagetest.Acquire(t, "debian").Path
//	node := imagetest.Acquire(t, "node24").Path // mount at image.RuntimeDir("node24")
package image
