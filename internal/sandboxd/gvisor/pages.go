package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"

	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/pages"
)

// Why a sentry may not write.
var (
	errTooLarge = errors.New("it is larger than what may be saved")
	errStopped  = errors.New("saving was given up")
)

// errDamaged is returned when saved state cannot be loaded.
var errDamaged = errors.New("what was saved of the machine is damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errDamaged}, args...)...)
}

// checkpointServer implements stateipc.AsyncFileServerImpl, the server side of a pager.
// All requests come from a sentry, which a guest may have taken over.
type checkpointServer struct {
	does string
	// files has the files by name. When loading, a name may have several files, which a
	// sentry sees as one; see place. When saving, each name has one file.
	files map[string][]servedFile

	bounded bool
	left    atomic.Int64 // bytes that may be written, if bounded
	stopped atomic.Bool
	opens   atomic.Int32 // how many files were opened

	base    *pages.Map // when saving: what pages are compared with; may be nil
	mapFile *os.File   // when saving pages in parts: the file for their map

	failed atomic.Pointer[error] // the first failure that is not of the sentry's making
}

// servedFile is a file of a checkpoint.
type servedFile struct {
	*os.File
	state *machine.State // nil: the file is not verified
	// m is the map of pages in parts, File is the file with the map. nil: File has the pages.
	m     *pages.Map
	parts []*os.File
}

// addPages adds a file with pages in parts, or with their map. When loading, a map precedes
// its parts.
func (s *checkpointServer) addPages(name string, f *os.File, state *machine.State) (err error) {
	all := s.files[checkpointfiles.PagesFileName]
	switch {
	case name == baseName:
		s.base, err = pages.ParseFile(f)
		return err
	case name == pages.MapName && s.does == saves:
		s.mapFile = f
	case name == pages.MapName:
		m, err := pages.ParseFile(f)
		if err != nil {
			return err
		}
		all = append(all, servedFile{File: f, state: state, m: m})
	case s.does == saves:
		all = append(all, servedFile{File: f})
	default:
		last := len(all) - 1
		if last < 0 || all[last].m == nil || len(all[last].parts) >= len(all[last].m.Parts) || all[last].m.Parts[len(all[last].parts)].Name != name {
			return fmt.Errorf("the part %s has no map", name)
		}
		all[last].parts = append(all[last].parts, f)
	}
	s.files[checkpointfiles.PagesFileName] = all
	return nil
}

// fail stores the first error that is not the sentry's fault, for the end of the process.
func (s *checkpointServer) fail(err error) error {
	s.failed.CompareAndSwap(nil, &err)
	return err
}

// awaitStop waits until stop is closed at its other end, and then makes writes fail and
// removes the pace of reads.
func (s *checkpointServer) awaitStop(stop io.Reader) {
	_, _ = io.Copy(io.Discard, stop) // an error is the end as well
	s.stopped.Store(true)
}

// refusal returns why no more may be written, with the error number for the sentry.
func (s *checkpointServer) refusal(bytes uint64) (unix.Errno, error) {
	if s.stopped.Load() {
		return unix.ECANCELED, errStopped
	}
	if s.bounded && s.left.Add(-int64(bytes)) < 0 {
		return unix.EFBIG, errTooLarge
	}
	return 0, nil
}

// Destroy implements stateipc.AsyncFileServerImpl. The process ends.
func (s *checkpointServer) Destroy() {}

// open returns the files of a name that a sentry opens.
func (s *checkpointServer) open(name string) ([]servedFile, error) {
	files := s.files[name]
	if len(files) == 0 {
		return nil, fmt.Errorf("a checkpoint has no file %q", name)
	}
	if int(s.opens.Add(1)) > len(s.files) { // once each is all that a sentry does
		return nil, errors.New("too many files were opened")
	}
	return files, nil
}

// OpenWrite implements stateio.AsyncFileServerImpl.
func (s *checkpointServer) OpenWrite(name string) (stateio.AsyncWriter, error) {
	if s.does != saves {
		return nil, fmt.Errorf("%q is not for writing", name)
	}
	files, err := s.open(name)
	if err != nil {
		return nil, err
	}
	w := newPageWriter(s, int(files[0].Fd()))
	if name == checkpointfiles.PagesFileName && s.mapFile != nil {
		w.blocks = pages.NewWriter(s.base, filepath.Base(files[0].Name()), files[0])
	}
	go w.write()
	return w, nil
}

// OpenRead implements stateio.AsyncFileServerImpl.
func (s *checkpointServer) OpenRead(name string) (stateio.AsyncReader, error) {
	if s.does == saves {
		return nil, fmt.Errorf("%q is not for reading", name)
	}
	files, err := s.open(name)
	if err != nil {
		return nil, err
	}
	// For small files, the sentry buffers as much as one request may ask for.
	r := &pageReader{s: s, maxRead: 64 << 10, parallel: 4}
	isPages := name == checkpointfiles.PagesFileName
	if isPages {
		r.maxRead, r.parallel = 256<<10, 2
		if s.does == paces {
			// A page that a program waits for is queued behind the pages that are loaded
			// in advance, so each piece of those should be short.
			r.maxRead = 64 << 10
			r.pace = rate.NewLimiter(startRate, int(r.maxRead))
		}
	}
	var sizes []int64
	for _, f := range files {
		if f.state == nil && !isPages {
			if err := awaitUnlocked(int(f.Fd()), 0, 0); err != nil {
				return nil, s.fail(err)
			}
		}
		size, err := f.size()
		if err != nil {
			return nil, s.fail(err)
		}
		sizes = append(sizes, size)
	}
	begins := place(name, sizes)
	for i, begin := range begins {
		p := filePart{begin: begin, size: sizes[i], end: begin + sizes[i], m: files[i].m}
		switch {
		case isPages && files[i].state != nil: // other files are verified
			if p.files, err = files[i].verified(); err != nil {
				return nil, s.fail(err)
			}
		case isPages: // it may be growing
			p.size, p.end = farApart, begin+farApart
			p.files = []*pageFile{{fd: int(files[i].Fd()), size: farApart, grows: true}}
		default:
			p.files = []*pageFile{{fd: int(files[i].Fd()), size: sizes[i]}}
			if i < len(files)-1 {
				p.end = begins[i+1]
			}
		}
		r.parts = append(r.parts, p)
	}
	r.buf = make([]byte, r.maxRead+2*machine.SumBlock)
	return r, nil
}

// size returns how many bytes a sentry sees.
func (f servedFile) size() (int64, error) {
	if f.m != nil {
		return f.m.Size(), nil
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// verified returns the files with the pages, with their sums. Errors: errDamaged.
func (f servedFile) verified() ([]*pageFile, error) {
	parts := f.parts
	if f.m == nil {
		parts = []*os.File{f.File}
	} else if len(parts) != len(f.m.Parts) {
		return nil, damaged("%d of %d parts of the pages are there", len(parts), len(f.m.Parts))
	}
	var files []*pageFile
	for _, part := range parts {
		info, err := part.Stat()
		if err != nil {
			return nil, err
		}
		name := filepath.Base(part.Name())
		sums := f.state.File(name)
		if sums == nil || sums.Size != info.Size() {
			return nil, damaged("%s has %d bytes", name, info.Size())
		}
		files = append(files, &pageFile{fd: int(part.Fd()), size: sums.Size, sums: sums, seen: make([]bool, len(sums.Sums)/4)})
	}
	return files, nil
}

// clientFDs are files that a sentry has passed to read from or write to.
type clientFDs []int

// maxClientFDs is how many files a sentry may register for each file of a checkpoint;
// genuine sentries have a few memory files.
const maxClientFDs = 64

// register stores a descriptor. It must be of a file, because a pager that had the other
// end of its own socket would not notice the sentry's end.
func (c *clientFDs) register(fd int32) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(fd), &st); err != nil {
		return 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, errors.New("only regular files can be registered")
	}
	if len(*c) >= maxClientFDs {
		return 0, errors.New("too many files were registered")
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	*c = append(*c, own)
	return own, nil
}

func (c clientFDs) close() error {
	var errs []error
	for _, fd := range c {
		errs = append(errs, unix.Close(fd))
	}
	return errors.Join(errs...)
}

const (
	// startRate is how fast pages are loaded, in bytes per second, while several machines
	// start, and for startTime after that: at that time the CPU has more urgent work than
	// copying pages that may not be needed soon.
	startRate = 32 << 20
	startTime = 2 * time.Second
)

// pageReader is a stateio.AsyncReader. It reads in Wait, one piece after another, through
// a buffer. So a file that shrinks, or a sentry that changes its own files, can only
// cause an error.
type pageReader struct {
	s        *checkpointServer
	parts    []filePart
	maxRead  uint64
	parallel int
	pace     *rate.Limiter // nil: unlimited
	buf      []byte
	dsts     clientFDs
	queue    []pageRead
}

// filePart is a part of the file that a sentry reads: one file, or parts of pages.
type filePart struct {
	// It begins at begin and has size bytes, followed by zeros until end.
	begin, size, end int64
	m                *pages.Map // nil: files has one file
	files            []*pageFile
}

// pageFile is a file that is read.
type pageFile struct {
	fd    int
	size  int64
	grows bool               // its unwritten part is locked
	sums  *machine.StateFile // nil: not verified
	seen  []bool             // which blocks are verified
}

type pageRead struct {
	id     int
	off    int64
	dst    int
	ranges []memmap.FileRange
}

// Close implements stateio.AsyncReader.
func (r *pageReader) Close() error { return r.dsts.close() }

func (r *pageReader) MaxReadBytes() uint64            { return r.maxRead }
func (r *pageReader) MaxRanges() int                  { return 64 }
func (r *pageReader) MaxParallel() int                { return r.parallel }
func (r *pageReader) NeedRegisterDestinationFD() bool { return true }

// RegisterDestinationFD implements stateio.AsyncReader.
func (r *pageReader) RegisterDestinationFD(fd int32, _ uint64, _ []stateio.ClientFileRangeSetting) (stateio.DestinationFile, error) {
	return r.dsts.register(fd)
}

// AddRead implements stateio.AsyncReader.
func (r *pageReader) AddRead(id int, off int64, dst stateio.DestinationFile, fr memmap.FileRange, _ []byte) {
	r.queue = append(r.queue, pageRead{id, off, dst.(int), []memmap.FileRange{fr}})
}

// AddReadv implements stateio.AsyncReader.
func (r *pageReader) AddReadv(id int, off int64, _ uint64, dst stateio.DestinationFile, ranges []memmap.FileRange, _ []unix.Iovec) {
	r.queue = append(r.queue, pageRead{id, off, dst.(int), ranges})
}

// Wait implements stateio.AsyncReader.
func (r *pageReader) Wait(cs []stateio.Completion, minCompletions int) ([]stateio.Completion, error) {
	for range minCompletions {
		if len(r.queue) == 0 {
			return cs, errors.New("a wait for reads that were not asked for")
		}
		q := r.queue[0]
		r.queue = r.queue[1:]
		n, err := r.read(q)
		cs = append(cs, stateio.Completion{ID: q.id, N: n, Err: err})
		if r.pace != nil && n > 0 && !r.s.stopped.Load() {
			if err := r.pace.WaitN(context.Background(), int(n)); err != nil {
				return cs, err
			}
		}
	}
	return cs, nil
}

// read executes a read. At the end of the file it reads a part, and returns io.EOF.
func (r *pageReader) read(q pageRead) (done uint64, err error) {
	var want uint64
	for _, fr := range q.ranges {
		want += fr.Length()
	}
	if q.off < 0 || want > r.maxRead { // the server has made sure of want
		return 0, unix.EINVAL
	}
	at := rangeWriter{fd: q.dst, ranges: q.ranges}
	for done < want {
		data, err := r.load(q.off+int64(done), q.off+int64(want))
		if err != nil {
			return done, r.s.fail(err)
		}
		if len(data) == 0 {
			return done, io.EOF
		}
		if err := at.write(data); err != nil {
			return done, err
		}
		done += uint64(len(data))
	}
	return done, nil
}

// rangeWriter writes to ranges of a file, one after another.
type rangeWriter struct {
	fd     int
	ranges []memmap.FileRange
	done   uint64 // of the first range
}

// write writes data, which must fit into the remaining ranges.
func (w *rangeWriter) write(data []byte) error {
	for len(data) > 0 {
		fr := w.ranges[0]
		if fr.Start+w.done == fr.End {
			w.ranges, w.done = w.ranges[1:], 0
			continue
		}
		n, err := unix.Pwrite(w.fd, data[:min(fr.Length()-w.done, uint64(len(data)))], int64(fr.Start+w.done))
		if err != nil {
			return err
		}
		data, w.done = data[n:], w.done+uint64(n)
	}
	return nil
}

// load returns the bytes from off to end, or fewer, verified if the part has sums. The
// slice is valid until the next call. It is empty if no part covers off.
func (r *pageReader) load(off, end int64) ([]byte, error) {
	i := slices.IndexFunc(r.parts, func(p filePart) bool { return p.begin <= off && off < p.end })
	if i < 0 {
		return nil, nil
	}
	p := &r.parts[i]
	if off, end = off-p.begin, min(end, p.end)-p.begin; off >= p.size {
		zeros := r.buf[:end-off]
		clear(zeros)
		return zeros, nil
	}
	return p.load(off, min(end, p.size), r.buf)
}

// load returns the bytes from off to end, or fewer, read into buf.
func (p *filePart) load(off, end int64, buf []byte) ([]byte, error) {
	if p.m == nil {
		return p.files[0].load(off, end, buf)
	}
	part, at, n := p.m.Find(off, end-off)
	return p.files[part].load(at, at+n, buf)
}

// load returns the bytes of the file from off to end, read into buf.
func (p *pageFile) load(off, end int64, buf []byte) ([]byte, error) {
	// Unverified bytes are read in whole blocks, because the sums cover whole blocks.
	first, last := off, end
	verify := p.sums != nil && slices.Contains(p.seen[off/machine.SumBlock:(end+machine.SumBlock-1)/machine.SumBlock], false)
	if verify {
		first = off / machine.SumBlock * machine.SumBlock
		last = min((end+machine.SumBlock-1)/machine.SumBlock*machine.SumBlock, p.size)
	}
	if p.grows {
		if err := awaitUnlocked(p.fd, first, last-first); err != nil {
			return nil, err
		}
	}
	buf = buf[:last-first]
	for n := 0; n < len(buf); {
		m, err := unix.Pread(p.fd, buf[n:], first+int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, fmt.Errorf("read at %d of %s: %w", first+int64(n), p.name(), err)
		case m == 0 && p.grows: // the end of the file, or its writer has failed
			return buf[:n], nil
		case m == 0:
			return nil, damaged("%s ends at %d instead of %d", p.name(), first+int64(n), last)
		}
		n += max(m, 0)
	}
	if verify {
		if !p.sums.Check(buf, first) {
			return nil, damaged("%s differs between bytes %d and %d", p.name(), first, last)
		}
		for i := first / machine.SumBlock; i*machine.SumBlock < last; i++ {
			p.seen[i] = true
		}
	}
	return buf[off-first : end-first], nil
}

func (p *pageFile) name() string {
	if p.sums == nil {
		return "a file of the checkpoint"
	}
	return p.sums.Name
}

// writeAhead is how many writes a sentry may request before the first is done.
const writeAhead = 4

// pageWriter is a stateio.AsyncWriter: it appends ranges of the sentry's files.
// Concurrent writes would be of no use, because a file system executes them one after
// another; so the file always has a complete prefix of the data.
type pageWriter struct {
	s    *checkpointServer
	fd   int
	srcs clientFDs
	// blocks writes pages in parts, to fd; nil: all that is written is appended to fd.
	blocks    *pages.Writer
	finalized bool
	// todo has the writes for the writing goroutine, done their results.
	todo     chan pageWrite
	done     chan stateio.Completion
	inflight int
}

type pageWrite struct {
	id, src int
	first   bool // src is the first file that was registered
	total   uint64
	ranges  []memmap.FileRange
}

// newPageWriter returns a writer to fd, whose write is to be started.
func newPageWriter(s *checkpointServer, fd int) *pageWriter {
	return &pageWriter{s: s, fd: fd, todo: make(chan pageWrite, writeAhead), done: make(chan stateio.Completion, writeAhead)}
}

// Close implements stateio.AsyncWriter.
func (w *pageWriter) Close() error {
	close(w.todo)
	for ; w.inflight > 0; w.inflight-- {
		<-w.done
	}
	return w.srcs.close()
}

func (w *pageWriter) MaxWriteBytes() uint64      { return 2 << 20 }
func (w *pageWriter) MaxRanges() int             { return 256 }
func (w *pageWriter) MaxParallel() int           { return writeAhead }
func (w *pageWriter) NeedRegisterSourceFD() bool { return true }
func (w *pageWriter) Reserve(uint64)             {}

// Finalize implements stateio.AsyncWriter: the file is complete. The process that started
// the pager syncs the file.
func (w *pageWriter) Finalize() error {
	if w.blocks == nil {
		return unlockFile(w.fd, 0, 0)
	}
	if w.inflight > 0 || w.finalized {
		return errors.New("the file is not written yet, or is complete")
	}
	w.finalized = true
	m, err := w.blocks.Close()
	if err != nil {
		return w.s.fail(fmt.Errorf("write checkpoint: %w", err))
	}
	if _, err := w.s.mapFile.Write(m.Encode()); err != nil {
		return w.s.fail(fmt.Errorf("write checkpoint: %w", err))
	}
	return nil
}

// RegisterSourceFD implements stateio.AsyncWriter.
func (w *pageWriter) RegisterSourceFD(fd int32, _ uint64, _ []stateio.ClientFileRangeSetting) (stateio.SourceFile, error) {
	return w.srcs.register(fd)
}

// AddWrite implements stateio.AsyncWriter.
func (w *pageWriter) AddWrite(id int, src stateio.SourceFile, fr memmap.FileRange, _ []byte) {
	w.add(id, src.(int), fr.Length(), []memmap.FileRange{fr})
}

// AddWritev implements stateio.AsyncWriter.
func (w *pageWriter) AddWritev(id int, total uint64, src stateio.SourceFile, ranges []memmap.FileRange, _ []unix.Iovec) {
	w.add(id, src.(int), total, ranges)
}

func (w *pageWriter) add(id, src int, total uint64, ranges []memmap.FileRange) {
	w.inflight++
	w.todo <- pageWrite{id, src, src == w.srcs[0], total, ranges}
}

// Wait implements stateio.AsyncWriter.
func (w *pageWriter) Wait(cs []stateio.Completion, minCompletions int) ([]stateio.Completion, error) {
	if minCompletions > w.inflight {
		return cs, errors.New("a wait for writes that were not asked for")
	}
	for ; minCompletions > 0; minCompletions-- {
		cs = append(cs, <-w.done)
		w.inflight--
	}
	return cs, nil
}

// write executes the writes in todo until it is closed. After a failed write it only
// reports the error for the others.
func (w *pageWriter) write() {
	var off int64
	var failed error
	for q := range w.todo {
		c := stateio.Completion{ID: q.id, Err: failed}
		if errno, err := w.s.refusal(q.total); failed == nil && err != nil {
			w.s.fail(err)
			c.Err = errno
		}
		if c.Err == nil {
			if c.Err = w.writeRanges(q); c.Err != nil {
				w.s.fail(fmt.Errorf("write checkpoint: %w", c.Err))
			}
		}
		if c.Err == nil {
			c.N = q.total
			c.Err = unlockFile(w.fd, off, int64(q.total))
			off += int64(q.total)
		}
		failed = c.Err
		w.done <- c
	}
}

// writeRanges executes a write. The sentry's machine stands still until the last page is
// written, so pages in parts can be read later.
func (w *pageWriter) writeRanges(q pageWrite) error {
	if w.blocks == nil {
		return appendRanges(w.fd, q.src, q.ranges)
	}
	for _, fr := range q.ranges {
		// Offsets of different memory files must not be taken for each other.
		if err := w.blocks.Write(clientFile(q.src), fr.Start, fr.Length(), q.first); err != nil {
			return err
		}
	}
	return nil
}

// clientFile is a file of the sentry's, by its descriptor.
type clientFile int

// ReadAt implements io.ReaderAt.
func (f clientFile) ReadAt(b []byte, off int64) (done int, err error) {
	for done < len(b) {
		n, err := unix.Pread(int(f), b[done:], off+int64(done))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return done, err
		case n == 0:
			return done, io.ErrUnexpectedEOF
		default:
			done += n
		}
	}
	return done, nil
}

// appendRanges writes ranges of src, one after another, to dst at its current offset. If
// the guest changes the ranges meanwhile, the copy is a mixture, at the guest's own risk.
// The kernel copies, so holes in src take no memory, however large they are.
func appendRanges(dst, src int, ranges []memmap.FileRange) error {
	for _, fr := range ranges {
		for at := int64(fr.Start); at < int64(fr.End); {
			n, err := unix.Sendfile(dst, src, &at, int(int64(fr.End)-at))
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err == nil && n == 0 {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
