package image

import "github.com/cayhq/cay/internal/image/rootfs"

// finishRoot gives a tree the mount points that its machine needs. They are real
// directories whatever the image says: an image whose /proc or /dev is a link elsewhere
// would otherwise choose the place of the mount.
func finishRoot(t *rootfs.Tree) error {
	for _, dir := range []string{"proc", "sys", "dev"} {
		t.MountPoint(dir, 0o755, false)
	}
	t.MountPoint("tmp", 0o1777, true)
	t.MountPoint("run", 0o755, true)
	t.MountPoint("vercel/runtimes", 0o755, true) // images that are composed with a runtime have it here
	return nil
}
