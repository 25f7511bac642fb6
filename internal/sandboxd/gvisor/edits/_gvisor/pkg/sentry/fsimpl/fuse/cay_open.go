package fuse

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/kernfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// Open implements kernfs.Inode.Open. A file is truncated when it is open, by its handle: some
// servers can do it in no other way. A file that was just created is empty.
func (i *inode) Open(ctx context.Context, rp *vfs.ResolvingPath, d *kernfs.Dentry, opts vfs.OpenOptions) (*vfs.FileDescription, error) {
	i.attrMu.Lock()
	truncates := opts.Flags&linux.O_TRUNC != 0 && i.filemode().FileType() == linux.S_IFREG && !i.fh.new && !i.fs.conn.atomicOTrunc
	i.attrMu.Unlock()
	opts.Flags &^= linux.O_TRUNC
	file, err := i.openServer(ctx, rp, d, opts)
	if err != nil || !truncates {
		return file, err
	}
	stat := vfs.SetStatOptions{Stat: linux.Statx{Mask: linux.STATX_SIZE}}
	fh := fhOptions{useFh: true, fh: file.Impl().(*regularFileFD).Fh}
	i.attrMu.Lock()
	err = i.setAttr(ctx, i.fs.VFSFilesystem(), auth.CredentialsFromContext(ctx), stat, fh)
	i.attrMu.Unlock()
	if err != nil {
		file.DecRef(ctx)
		return nil, err
	}
	return file, nil
}
