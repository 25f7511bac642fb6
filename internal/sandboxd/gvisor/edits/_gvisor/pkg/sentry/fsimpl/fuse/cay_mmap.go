package fuse

import (
	"io"
	"maps"
	"math"
	"slices"
	"sync"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/usage"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// A file description can be mapped, except shared and writable. The mapped pages that a
// program touches are read from the server into fd.data, and stay there until the last
// mapping ends, or a program in the sandbox writes to the file or truncates it. Changes that
// the server makes by itself are seen by later mappings.
//
// Lock order: fd.mapsMu, mm.activeMu, fd.dataMu. The server is asked without dataMu and
// attrMu: a page fault may come while the task holds attrMu, because a program writes
// from mapped memory. Nothing here is saved with memory but the mappings.

// cachedPages is the state of fd.data beside the pages.
type cachedPages struct {
	file  *pgalloc.MemoryFile // of the pages; dataMu protects it
	drops uint64              // how often pages were dropped; dataMu protects it

	// The attributes of the file when it was last mapped. attrMu of the inode protects them.
	mtime, ctime int64
	size         uint64
}

// mappedFiles are the descriptions of a file that have pages.
type mappedFiles struct {
	mu  sync.Mutex
	fds map[*regularFileFD]struct{}
}

func (m *mappedFiles) add(fd *regularFileFD) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fds == nil {
		m.fds = make(map[*regularFileFD]struct{})
	}
	m.fds[fd] = struct{}{}
}

func (m *mappedFiles) remove(fd *regularFileFD) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.fds, fd)
}

func (m *mappedFiles) all() []*regularFileFD {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.fds))
}

const (
	readahead = 128 << 10
	lastPage  = math.MaxUint64 &^ (hostarch.PageSize - 1)
)

// ConfigureMMap implements vfs.FileDescriptionImpl.ConfigureMMap.
func (fd *regularFileFD) ConfigureMMap(ctx context.Context, opts *memmap.MMapOpts) error {
	if !opts.Private {
		if opts.Perms.Write {
			return linuxerr.ENODEV // as Linux does without a page cache
		}
		opts.MaxPerms.Write = false
	}
	if err := fd.renew(ctx); err != nil {
		return err
	}
	return vfs.GenericConfigureMMap(&fd.vfsfd, fd, opts)
}

// renew drops the pages if the file has changed since it was last mapped.
func (fd *regularFileFD) renew(ctx context.Context) error {
	i := fd.inode()
	i.attrMu.Lock()
	defer i.attrMu.Unlock()
	if err := i.reviseAttr(ctx, linux.FUSE_GETATTR_FH, fd.Fh); err != nil {
		return err
	}
	c := &fd.cached
	if c.mtime != i.mtime.Load() || c.ctime != i.ctime.Load() || c.size != i.size.Load() {
		fd.drop(memmap.MappableRange{End: lastPage}, memmap.InvalidateOpts{})
		c.mtime, c.ctime, c.size = i.mtime.Load(), i.ctime.Load(), i.size.Load()
	}
	return nil
}

// drop makes programs that touch a part of the file from now on see the file's present
// content.
func (fd *regularFileFD) drop(part memmap.MappableRange, opts memmap.InvalidateOpts) {
	fd.mapsMu.Lock()
	defer fd.mapsMu.Unlock()
	fd.mappings.Invalidate(part, opts)
	fd.dataMu.Lock()
	defer fd.dataMu.Unlock()
	fd.dropPages(part)
}

// dropPages needs dataMu.
func (fd *regularFileFD) dropPages(part memmap.MappableRange) {
	fd.cached.drops++
	if fd.cached.file != nil {
		fd.data.Drop(part, fd.cached.file)
	}
}

// changed drops the pages of a part of the file in all of its descriptions.
func (i *inode) changed(start, end uint64, opts memmap.InvalidateOpts) {
	part := memmap.MappableRange{Start: start &^ (hostarch.PageSize - 1), End: lastPage}
	if rounded, ok := hostarch.PageRoundUp(end); ok && rounded < lastPage {
		part.End = rounded
	}
	if part.Length() == 0 {
		return
	}
	for _, fd := range i.extra.mapped.all() {
		fd.drop(part, opts)
	}
}

// pwrite writes to the file, and drops the pages that it changed.
func (fd *regularFileFD) pwrite(ctx context.Context, src usermem.IOSequence, offset int64, opts vfs.WriteOptions) (int64, int64, error) {
	n, end, err := fd.writeServer(ctx, src, offset, opts)
	if n > 0 {
		fd.inode().changed(uint64(end-n), uint64(end), memmap.InvalidateOpts{})
	}
	return n, end, err
}

// Allocate implements vfs.FileDescriptionImpl.Allocate.
func (fd *regularFileFD) Allocate(ctx context.Context, mode, offset, length uint64) error {
	err := fd.allocateServer(ctx, mode, offset, length)
	if err == nil {
		fd.inode().changed(offset, offset+length, memmap.InvalidateOpts{})
	}
	return err
}

// setAttr sets attributes of the file, and drops the pages that it cut off.
//
// +checklocks:i.attrMu
func (i *inode) setAttr(ctx context.Context, fs *vfs.Filesystem, creds *auth.Credentials, opts vfs.SetStatOptions, fh fhOptions) error {
	err := i.setServerAttr(ctx, fs, creds, opts, fh)
	if err == nil && opts.Stat.Mask&linux.STATX_SIZE != 0 {
		size := opts.Stat.Size
		i.changed(size, size+1, memmap.InvalidateOpts{}) // the rest of the last page is zero now
		if end, ok := hostarch.PageRoundUp(size); ok {
			i.changed(end, lastPage, memmap.InvalidateOpts{InvalidatePrivate: true})
		}
	}
	return err
}

// AddMapping implements memmap.Mappable.AddMapping.
func (fd *regularFileFD) AddMapping(_ context.Context, ms memmap.MappingSpace, ar hostarch.AddrRange, offset uint64, writable bool) error {
	fd.mapsMu.Lock()
	defer fd.mapsMu.Unlock()
	fd.mappings.AddMapping(ms, ar, offset, writable)
	return nil
}

// CopyMapping implements memmap.Mappable.CopyMapping.
func (fd *regularFileFD) CopyMapping(ctx context.Context, ms memmap.MappingSpace, _, ar hostarch.AddrRange, offset uint64, writable bool) error {
	return fd.AddMapping(ctx, ms, ar, offset, writable)
}

// RemoveMapping implements memmap.Mappable.RemoveMapping. The last one frees the pages.
func (fd *regularFileFD) RemoveMapping(_ context.Context, ms memmap.MappingSpace, ar hostarch.AddrRange, offset uint64, writable bool) {
	fd.mapsMu.Lock()
	defer fd.mapsMu.Unlock()
	fd.mappings.RemoveMapping(ms, ar, offset, writable)
	if !fd.mappings.IsEmpty() {
		return
	}
	fd.dataMu.Lock()
	fd.dropPages(memmap.MappableRange{End: lastPage})
	fd.dataMu.Unlock()
	fd.inode().extra.mapped.remove(fd)
}

// InvalidateUnsavable implements memmap.Mappable.InvalidateUnsavable: no page is saved, all
// are read again.
func (fd *regularFileFD) InvalidateUnsavable(context.Context) error {
	fd.drop(memmap.MappableRange{End: lastPage}, memmap.InvalidateOpts{})
	return nil
}

// Translate implements memmap.Mappable.Translate.
func (fd *regularFileFD) Translate(ctx context.Context, required, optional memmap.MappableRange, _ hostarch.AccessType) ([]memmap.Translation, error) {
	i := fd.inode()
	i.extra.mapped.add(fd) // after a restore as well
	for {
		size := i.size.RacyLoad()
		end, ok := hostarch.PageRoundUp(size)
		if !ok {
			return nil, &memmap.BusError{Err: linuxerr.EIO}
		}
		if required.Start >= end {
			return nil, &memmap.BusError{Err: io.EOF}
		}
		want := memmap.MappableRange{Start: required.Start, End: min(required.End, end)}
		fd.dataMu.Lock()
		if fd.data.PagesToFill(want, want) == 0 {
			ts := fd.translations(want, optional)
			fd.dataMu.Unlock()
			if want.End < required.End {
				return ts, &memmap.BusError{Err: io.EOF}
			}
			return ts, nil
		}
		drops := fd.cached.drops
		fd.dataMu.Unlock()
		part := memmap.MappableRange{Start: want.Start, End: max(want.End, min(optional.End, end, want.Start+readahead))}
		content, err := fd.read(ctx, i, part, size)
		if err != nil {
			return nil, &memmap.BusError{Err: err}
		}
		if err := fd.keep(ctx, part, content, drops); err != nil {
			return nil, &memmap.BusError{Err: err}
		}
	}
}

// translations needs dataMu, and all pages of the part.
func (fd *regularFileFD) translations(part, optional memmap.MappableRange) []memmap.Translation {
	var ts []memmap.Translation
	for seg := fd.data.FindSegment(part.Start); seg.Ok() && seg.Start() < part.End; seg = seg.NextSegment() {
		source := seg.Range().Intersect(optional)
		ts = append(ts, memmap.Translation{
			Source: source,
			File:   fd.cached.file,
			Offset: seg.FileRangeOf(source).Start,
			Perms:  hostarch.ReadExecute,
		})
	}
	return ts
}

// read asks the server for a part of the file. After the end of the file, or where the file
// has become shorter, the part has zeros.
func (fd *regularFileFD) read(ctx context.Context, i *inode, part memmap.MappableRange, size uint64) ([]byte, error) {
	content := make([]byte, part.Length())
	most := min(uint64(i.fs.conn.maxRead)&^(hostarch.PageSize-1), uint64(i.fs.conn.maxPages)*hostarch.PageSize)
	for offset := part.Start; offset < min(part.End, size); {
		in := linux.FUSEReadIn{
			Fh:     fd.Fh,
			Offset: offset,
			Size:   uint32(min(part.End-offset, most)),
			Flags:  fd.statusFlags(),
		}
		res, err := i.callRaw(ctx, linux.FUSE_READ, &in)
		if err != nil {
			return nil, err
		}
		if err := res.Error(); err != nil {
			return nil, err
		}
		payload := res.data[min(int(linux.SizeOfFUSEHeaderOut), len(res.data)):]
		copy(content[offset-part.Start:], payload[:min(len(payload), int(in.Size))])
		if len(payload) < int(in.Size) {
			break
		}
		offset += uint64(in.Size)
	}
	return content, nil
}

// keep keeps pages with the content that the server gave, unless pages were dropped since it
// was asked.
func (fd *regularFileFD) keep(ctx context.Context, part memmap.MappableRange, content []byte, drops uint64) error {
	file := kernel.KernelFromContext(ctx).MemoryFile()
	opts := pgalloc.AllocOpts{
		Kind:    usage.PageCache,
		MemCgID: pgalloc.MemoryCgroupIDFromContext(ctx),
		Mode:    pgalloc.AllocateAndWritePopulate,
	}
	fd.dataMu.Lock()
	defer fd.dataMu.Unlock()
	if fd.cached.drops != drops {
		return nil
	}
	fd.cached.file = file
	_, err := fd.data.Fill(ctx, part, part, part.End, file, opts,
		func(_ context.Context, to safemem.BlockSeq, offset uint64) (uint64, error) {
			from := safemem.BlockSeqOf(safemem.BlockFromSafeSlice(content[offset-part.Start:]))
			return safemem.CopySeq(to, from)
		})
	return err
}
