package fuse

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/kernfs"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// The flags of FUSE_INIT that the server may choose from. A server that gets
// FUSE_DONT_MASK applies the umask of each request itself, to a mode to which it was
// already applied.
const (
	noOpendirSupport = 1 << 24 // FUSE_NO_OPENDIR_SUPPORT
	offeredFlags     = linux.FUSE_MAX_PAGES | linux.FUSE_DONT_MASK | linux.FUSE_BIG_WRITES | noOpendirSupport
)

// absentOperations are the operations that a server does not have, as it said by ENOSYS.
// They are not saved with memory: the server says so again.
type absentOperations struct {
	bits atomic.Uint64 // by opcode
}

func (a *absentOperations) add(op linux.FUSEOpcode) { a.bits.Or(1 << op) }

func (a *absentOperations) has(op linux.FUSEOpcode) bool { return a.bits.Load()&(1<<op) != 0 }

// withoutOperation returns the answer in place of an operation that the server does not
// have, and whether the operation is one that servers can do without.
func withoutOperation(op linux.FUSEOpcode) (*Response, bool) {
	switch op {
	case linux.FUSE_ACCESS, linux.FUSE_FLUSH, linux.FUSE_FSYNC, linux.FUSE_FSYNCDIR, linux.FUSE_RELEASEDIR:
		return answer(op, 0, 0), true
	case linux.FUSE_OPENDIR: // the handle is 0, with no flags
		return answer(op, 0, (*linux.FUSEOpenOut)(nil).SizeBytes()), true
	case linux.FUSE_GETXATTR, linux.FUSE_LISTXATTR, linux.FUSE_SETXATTR, linux.FUSE_REMOVEXATTR, linux.FUSE_FALLOCATE:
		return answer(op, unix.EOPNOTSUPP, 0), true
	}
	return nil, false
}

// answer returns an answer of the server with a payload of zeros.
func answer(op linux.FUSEOpcode, errno unix.Errno, payload int) *Response {
	size := int(linux.SizeOfFUSEHeaderOut) + payload
	return &Response{
		opcode: op,
		hdr:    linux.FUSEHeaderOut{Len: uint32(size), Error: -int32(errno)},
		data:   make([]byte, size),
	}
}

// Call makes a request to the server, or answers in place of a server that does not have
// the operation.
func (conn *connection) Call(ctx context.Context, r *Request) (*Response, error) {
	op := r.hdr.Opcode
	asked := op
	if op == linux.FUSE_RELEASEDIR {
		asked = linux.FUSE_OPENDIR // without it there is nothing to release
	}
	if conn.absent.has(asked) {
		res, _ := withoutOperation(op)
		return res, nil
	}
	if op == linux.FUSE_SETATTR {
		setToNow(r)
	}
	res, err := conn.ask(ctx, r)
	if err != nil || res == nil { // nil: nobody waits for the answer
		return res, err
	}
	switch {
	case res.hdr.Error == -int32(unix.ENOSYS):
		if without, ok := withoutOperation(op); ok {
			conn.absent.add(op)
			return without, nil
		}
	case op == linux.FUSE_LOOKUP && res.hdr.Error == 0 && isNegative(res):
		return answer(op, unix.ENOENT, 0), nil
	}
	return res, nil
}

// isNegative reports whether the answer to a lookup is that there is no such entry, which
// could be cached.
func isNegative(res *Response) bool {
	id := res.data[min(int(linux.SizeOfFUSEHeaderOut), len(res.data)):]
	return len(id) >= 8 && hostarch.ByteOrder.Uint64(id) == 0
}

// setToNow marks the times that a request sets to the present.
func setToNow(r *Request) {
	payload := r.data[linux.SizeOfFUSEHeaderIn:]
	var in linux.FUSESetAttrIn
	in.UnmarshalBytes(payload)
	in.Valid &^= linux.FATTR_ATIME_NOW | linux.FATTR_MTIME_NOW
	if in.Valid&linux.FATTR_ATIME != 0 && in.AtimeNsec == linux.UTIME_NOW {
		in.Valid |= linux.FATTR_ATIME_NOW
	}
	if in.Valid&linux.FATTR_MTIME != 0 && in.MtimeNsec == linux.UTIME_NOW {
		in.Valid |= linux.FATTR_MTIME_NOW
	}
	in.MarshalBytes(payload)
}

// call makes a request and waits for the answer. A signal with a handler is delivered after
// the answer: the server does not stop its work at a signal, so a repeated request would find
// the work done.
func (dc *deviceConn) call(ctx context.Context, r *Request) (*Response, error) {
	future, err := dc.conn.callFuture(ctx, r)
	if err != nil {
		return nil, linuxError(err)
	}
	if future.async {
		return nil, nil
	}
	if t := kernel.TaskFromContext(ctx); t != nil {
		err = t.BlockThroughSignals(future.ch)
	} else {
		err = ctx.Block(future.ch)
	}
	if err != nil {
		return nil, linuxError(err)
	}
	return future.getResponse(), nil
}

// NewFile creates a file, also if the server has no operation that creates and opens a file
// at once.
func (i *inode) NewFile(ctx context.Context, name string, opts vfs.OpenOptions) (kernfs.Inode, error) {
	if !i.fs.conn.absent.has(linux.FUSE_CREATE) {
		child, err := i.create(ctx, name, opts)
		if !linuxerr.Equals(linuxerr.ENOSYS, err) {
			return child, err
		}
		i.fs.conn.absent.add(linux.FUSE_CREATE)
	}
	return i.NewNode(ctx, name, vfs.MknodOptions{Mode: opts.Mode&^linux.S_IFMT | linux.S_IFREG})
}

// Sync asks the server to store what it has of the file, and waits for it.
func (fd *fileDescription) Sync(ctx context.Context, opts vfs.SyncOptions) error {
	i := fd.inode()
	in := linux.FUSEFsyncIn{Fh: fd.Fh}
	if opts.DataOnly {
		in.FsyncFlags = linux.FUSE_FSYNC_FDATASYNC
	}
	i.attrMu.Lock()
	defer i.attrMu.Unlock()
	op := linux.FUSEOpcode(linux.FUSE_FSYNC)
	if i.filemode().IsDir() {
		op = linux.FUSE_FSYNCDIR
	}
	req := i.fs.conn.NewRequest(auth.CredentialsFromContext(ctx), pidFromContext(ctx), i.nodeID, op, &in)
	res, err := i.fs.conn.Call(ctx, req)
	if err != nil {
		return err
	}
	return res.Error()
}

// Write writes src to the file with as few requests as the server allows, none of them
// empty. It returns the number of bytes written, and the offset after them.
func (fs *filesystem) Write(ctx context.Context, fd *regularFileFD, offset int64, src usermem.IOSequence) (int64, int64, error) {
	most := min(int64(fs.conn.maxWrite), int64(fs.conn.maxPages)*hostarch.PageSize)
	if !fs.conn.bigWrites {
		most = hostarch.PageSize
	}
	start := offset
	for src.NumBytes() > 0 {
		data := make([]byte, min(src.NumBytes(), most))
		if _, err := src.CopyIn(ctx, data); err != nil {
			return offset - start, offset, err
		}
		in := linux.FUSEWritePayloadIn{
			Header:  linux.FUSEWriteIn{Fh: fd.Fh, Offset: uint64(offset), Size: uint32(len(data)), Flags: fd.statusFlags()},
			Payload: data,
		}
		var out linux.FUSEWriteOut
		if err := fd.inode().call(ctx, linux.FUSE_WRITE, &in, &out); err != nil {
			return offset - start, offset, err
		}
		if int(out.Size) > len(data) {
			return offset - start, offset, linuxerr.EIO
		}
		offset += int64(out.Size)
		if int(out.Size) < len(data) {
			break // not necessarily an error
		}
		src = src.DropFirst(len(data))
	}
	return offset - start, offset, nil
}
