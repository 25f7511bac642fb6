package vfs

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
)

// StatAt returns metadata of the file at the given path. The device of a mount, which
// /proc/self/mountinfo has, is known without the file system, which may be waiting for the
// very process that reads the list.
func (vfs *VirtualFilesystem) StatAt(ctx context.Context, creds *auth.Credentials, pop *PathOperation, opts *StatOptions) (linux.Statx, error) {
	if opts.Mask == 0 && !pop.Path.HasComponents() && pop.Start.Ok() {
		if fs, ok := pop.Start.mount.fs.impl.(interface{ Device() (major, minor uint32) }); ok {
			major, minor := fs.Device()
			return linux.Statx{DevMajor: major, DevMinor: minor}, nil
		}
	}
	return vfs.statAt(ctx, creds, pop, opts)
}
