package image

import (
	"context"

	"github.com/cayhq/cay/internal/image/rootfs"
)

var pythonLinks = map[string]string{
	"python3.13": "/usr/bin/python3.13",
	"python3":    "/usr/bin/python3.13",
	"python":     "/usr/bin/python3.13",
	"pip3.13":    "/usr/bin/pip3",
	"pip3":       "/usr/bin/pip3",
	"pip":        "/usr/bin/pip3",
}

// python makes the python3.13 runtime. Debian 13's own Python is 3.13, so the tree has
// only links that put Python, and its pip, first on PATH. It works on the default image
// and on other images that have /usr/bin/python3.13.
func (b *builder) python(context.Context) error {
	for name, target := range pythonLinks {
		if err := b.tree.Symlink("bin/"+name, target, rootfs.Attr{Mode: 0o777, ModTime: buildTime}); err != nil {
			return err
		}
	}
	return nil
}
