package overlay

import (
	"strings"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// upperOption is the mount option that names a directory of an overlay whose upper layer is
// mounted, instead of an overlay: mount -t overlay -o cay_upper=/var/lib/docker ...
const upperOption = "cay_upper="

// GetFilesystem implements vfs.FilesystemType.GetFilesystem.
func (fstype FilesystemType) GetFilesystem(ctx context.Context, vfsObj *vfs.VirtualFilesystem, creds *auth.Credentials, source string, opts vfs.GetFilesystemOptions) (*vfs.Filesystem, *vfs.Dentry, error) {
	if dir, ok := strings.CutPrefix(opts.Data, upperOption); ok && !opts.InternalMount {
		return upperLayer(ctx, vfsObj, creds, dir)
	}
	return fstype.newFilesystem(ctx, vfsObj, creds, source, opts)
}

// upperLayer returns the file system and the directory that hold a directory of an overlay.
// They can be the upper layer of another overlay, which the overlay itself cannot be: it hides
// whiteouts and trusted.overlay attributes, and refuses to make them. The directory must have
// no files in the lower layers, which the result would not show. Only root of the whole machine
// gets it, because the upper layer shows what the overlay hides.
func upperLayer(ctx context.Context, vfsObj *vfs.VirtualFilesystem, creds *auth.Credentials, dir string) (*vfs.Filesystem, *vfs.Dentry, error) {
	if !creds.HasRootCapability(linux.CAP_SYS_ADMIN) {
		return nil, nil, linuxerr.EPERM
	}
	path := fspath.Parse(dir)
	if !path.Absolute {
		return nil, nil, linuxerr.EINVAL
	}
	root := vfs.RootFromContext(ctx)
	if !root.Ok() {
		return nil, nil, linuxerr.EINVAL
	}
	defer root.DecRef(ctx)
	vd, err := vfsObj.GetDentryAt(ctx, creds, &vfs.PathOperation{Root: root, Start: root, Path: path}, &vfs.GetDentryOptions{CheckSearchable: true})
	if err != nil {
		return nil, nil, err
	}
	defer vd.DecRef(ctx)
	d, ok := vd.Dentry().Impl().(*dentry)
	if !ok || !d.isDir() || !d.fs.opts.UpperRoot.Ok() {
		return nil, nil, linuxerr.EINVAL
	}
	d.fs.renameMu.RLock()
	err = d.copyUpLocked(ctx)
	d.fs.renameMu.RUnlock()
	if err != nil {
		return nil, nil, err
	}
	for _, lower := range d.lowerVDs {
		if err := checkEmpty(ctx, vfsObj, d.fs.creds, lower); err != nil {
			return nil, nil, err
		}
	}
	fs := d.upperVD.Mount().Filesystem()
	fs.IncRef()
	d.upperVD.Dentry().IncRef()
	return fs, d.upperVD.Dentry(), nil
}

// checkEmpty returns ENOTEMPTY if a directory has files.
func checkEmpty(ctx context.Context, vfsObj *vfs.VirtualFilesystem, creds *auth.Credentials, dir vfs.VirtualDentry) error {
	fd, err := vfsObj.OpenAt(ctx, creds, &vfs.PathOperation{Root: dir, Start: dir}, &vfs.OpenOptions{Flags: linux.O_RDONLY | linux.O_DIRECTORY})
	if err != nil {
		return err
	}
	defer fd.DecRef(ctx)
	return fd.IterDirents(ctx, vfs.IterDirentsCallbackFunc(func(e vfs.Dirent) error {
		if e.Name != "." && e.Name != ".." {
			return linuxerr.ENOTEMPTY
		}
		return nil
	}))
}
