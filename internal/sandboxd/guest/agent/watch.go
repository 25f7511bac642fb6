package agent

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

const (
	// maxWatched bounds the directories of one watch.
	maxWatched = 16384
	// maxEvents bounds the events that wait to be sent.
	maxEvents = 4096
	// pairing is how long the first half of a rename waits for the second half, which the
	// kernel queues right after it.
	pairing = 20 * time.Millisecond
)

func (s *Server) handleWatch(w http.ResponseWriter, r *http.Request) error {
	real, shown, err := s.pathParam(r, "path")
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(real, &st); err != nil {
		return fileError("watch", shown, err)
	}
	real = path.Clean(real)
	wt := &watcher{prefix: strings.TrimSuffix(s.cfg.Root, "/"), dirs: map[int32]string{}, byDir: map[string]int32{}}
	wt.queue.wake = make(chan struct{}, 1)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		// A file is watched by its name in its directory, so that the watch survives a
		// replacement.
		wt.only, real = path.Base(real), path.Dir(real)
	} else {
		wt.recursive = flagParam(r, "recursive")
	}
	if err := wt.open(real); err != nil {
		return fileError("watch", shown, err)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	stop := context.AfterFunc(s.ctx, func() { cancel(errGoingDown) })
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cancel(wt.run())
	}()
	defer func() {
		cancel(nil)
		wt.stop()
		<-ended
		wt.file.Close()
	}()
	f := newFrameWriter(w)
	f.flush()
	for {
		events, overflow := wt.queue.take()
		for _, e := range events {
			if err := f.json(guest.KindFileEvent, e); err != nil {
				return &begunError{err}
			}
		}
		if overflow {
			if err := f.json(guest.KindFileEvent, guest.FileEvent{Op: sandbox.OpOverflow}); err != nil {
				return &begunError{err}
			}
		}
		f.flush()
		if f.err != nil {
			return &begunError{f.err}
		}
		select {
		case <-wt.queue.wake:
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errGoingDown) {
				f.frame(guest.KindEnd, 0, nil)
				return nil
			}
			if e, ok := errors.AsType[*cay.Error](context.Cause(ctx)); ok {
				return f.json(guest.KindError, errorBody(e))
			}
			return &begunError{context.Cause(ctx)}
		}
	}
}

var errGoingDown = errors.New("the agent is going down")

func errorBody(e *cay.Error) guest.ErrorBody {
	return guest.ErrorBody{Code: string(e.Code), Message: e.Message, Hint: e.Hint}
}

// eventQueue holds events between the watcher and the sender. An event equal to the
// newest is left out. When the queue is full, further events are dropped, and overflow is
// set.
type eventQueue struct {
	wake chan struct{} // has an element when there is something new

	mu       sync.Mutex // guards what follows
	events   []guest.FileEvent
	overflow bool
}

func (q *eventQueue) put(e guest.FileEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.events); n > 0 {
		last := q.events[n-1]
		if last.Op == e.Op && string(last.Path) == string(e.Path) && e.From == nil {
			return
		}
	}
	if e.Op == sandbox.OpOverflow || len(q.events) >= maxEvents {
		q.overflow = true
	} else {
		q.events = append(q.events, e)
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *eventQueue) take() (events []guest.FileEvent, overflow bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	events, overflow = q.events, q.overflow
	q.events, q.overflow = nil, false
	return events, overflow
}

// watcher turns inotify's events of directories into a sequence of guest.FileEvents.
// After open, all fields but the queue belong to the goroutine of run.
type watcher struct {
	file      *os.File // of inotify
	fd        int
	prefix    string // prefix of real paths that shown paths lack
	only      string // if set, the name that matters
	recursive bool
	top       string
	dirs      map[int32]string // real path by watch descriptor
	byDir     map[string]int32
	moved     *movedFrom // a rename whose second half has not come yet
	queue     eventQueue
	stopped   atomic.Bool
}

// stop makes run return. The file is closed after that, because the descriptor of a
// closed file may come to mean another file.
func (w *watcher) stop() {
	w.stopped.Store(true)
	// It fails only on a closed file, which needs no deadline.
	_ = w.file.SetReadDeadline(time.Unix(1, 0))
}

type movedFrom struct {
	cookie uint32
	path   string
	isDir  bool
}

const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB |
	unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

func (w *watcher) open(top string) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	w.fd, w.top = fd, top
	w.file = os.NewFile(uintptr(fd), "inotify")
	err = w.add(top, false)
	if err != nil {
		w.file.Close()
	}
	return err
}

// add watches a directory and, if the watch is recursive, all directories below. With
// report it reports the files that it finds there, because they were made before the
// watch: no file is missed, though some may be reported twice.
func (w *watcher) add(dir string, report bool) error {
	if len(w.dirs) >= maxWatched {
		return cay.Errorf(cay.TooLarge, "there are more than %d directories to watch", maxWatched).WithHint("watch a smaller tree")
	}
	wd, err := unix.InotifyAddWatch(w.fd, dir, watchMask)
	if err != nil {
		return err
	}
	w.dirs[int32(wd)], w.byDir[dir] = dir, int32(wd)
	if !w.recursive {
		return nil
	}
	d, err := openDir(unix.AT_FDCWD, dir, false)
	if err != nil {
		return ignoreGone(err)
	}
	defer d.Close()
	for {
		entries, err := d.ReadDir(512)
		for _, e := range entries {
			p := path.Join(dir, e.Name())
			if report {
				w.emit(sandbox.OpCreate, p, "")
			}
			if !e.IsDir() {
				continue
			}
			if err := w.add(p, report); ignoreGone(err) != nil {
				return err
			}
		}
		if err == io.EOF || len(entries) == 0 {
			return nil
		}
		if err != nil {
			return ignoreGone(err)
		}
	}
}

// ignoreGone drops errors that say that a directory no longer exists.
func ignoreGone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	return err
}

// run reads events until it is stopped or the watch fails.
func (w *watcher) run() error {
	buf := make([]byte, 16<<10)
	for {
		// The deadline below may have taken the place of stop's.
		if w.stopped.Load() {
			return nil
		}
		n, err := w.file.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			// No second half of the move came: the file was moved out of the watched
			// tree.
			w.flushMoved()
			if err := w.file.SetReadDeadline(time.Time{}); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		had := w.moved
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			ev := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
			end := unix.SizeofInotifyEvent + int(ev.Len)
			name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00")
			if err := w.handle(ev.Wd, ev.Mask, ev.Cookie, name); err != nil {
				return err
			}
			b = b[end:]
		}
		if w.moved == had {
			continue
		}
		var wait time.Time
		if w.moved != nil {
			wait = time.Now().Add(pairing)
		}
		if err := w.file.SetReadDeadline(wait); err != nil {
			return err
		}
	}
}

func (w *watcher) handle(wd int32, mask, cookie uint32, name string) error {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		w.flushMoved()
		w.queue.put(guest.FileEvent{Op: sandbox.OpOverflow})
		return nil
	}
	dir, known := w.dirs[wd]
	if !known {
		return nil
	}
	if mask&unix.IN_IGNORED != 0 {
		w.forget(wd)
		return nil
	}
	if w.moved != nil && (mask&unix.IN_MOVED_TO == 0 || cookie != w.moved.cookie) {
		w.flushMoved()
	}
	if name == "" {
		if dir == w.top {
			w.self(mask, dir)
		}
		return nil
	}
	if w.only != "" && name != w.only && mask&(unix.IN_MOVED_FROM|unix.IN_MOVED_TO) == 0 {
		return nil
	}
	p, isDir := path.Join(dir, name), mask&unix.IN_ISDIR != 0
	switch {
	case mask&unix.IN_CREATE != 0:
		w.emit(sandbox.OpCreate, p, "")
		return w.addNew(p, isDir)
	case mask&unix.IN_DELETE != 0:
		w.emit(sandbox.OpRemove, p, "")
	case mask&unix.IN_MODIFY != 0:
		w.emit(sandbox.OpWrite, p, "")
	case mask&unix.IN_ATTRIB != 0:
		w.emit(sandbox.OpChmod, p, "")
	case mask&unix.IN_MOVED_FROM != 0:
		w.moved = &movedFrom{cookie: cookie, path: p, isDir: isDir}
	case mask&unix.IN_MOVED_TO != 0:
		from := w.moved
		w.moved = nil
		if from == nil {
			w.emit(sandbox.OpCreate, p, "")
			return w.addNew(p, isDir)
		}
		w.emit(sandbox.OpRename, p, from.path)
		if isDir {
			w.rename(from.path, p)
		}
	}
	return nil
}

// self reports events of the watched directory itself.
func (w *watcher) self(mask uint32, dir string) {
	switch {
	case mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0:
		w.emit(sandbox.OpRemove, dir, "")
	case mask&unix.IN_ATTRIB != 0:
		w.emit(sandbox.OpChmod, dir, "")
	}
}

// addNew watches a new directory of a recursive watch.
func (w *watcher) addNew(p string, isDir bool) error {
	if !isDir || !w.recursive {
		return nil
	}
	return ignoreGone(w.add(p, true))
}

// flushMoved reports a rename to an unwatched place as a removal.
func (w *watcher) flushMoved() {
	m := w.moved
	if m == nil {
		return
	}
	w.moved = nil
	w.emit(sandbox.OpRemove, m.path, "")
	if !m.isDir {
		return
	}
	for dir, wd := range w.byDir {
		if within(dir, m.path) {
			// The kernel may have dropped it already.
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
			w.forget(wd)
		}
	}
}

// rename follows directories that were moved within the watch.
func (w *watcher) rename(from, to string) {
	for dir, wd := range w.byDir {
		if within(dir, from) {
			delete(w.byDir, dir)
			moved := to + strings.TrimPrefix(dir, from)
			w.dirs[wd] = moved
			defer func() { w.byDir[moved] = wd }() // not during the range over byDir
		}
	}
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func (w *watcher) forget(wd int32) {
	dir := w.dirs[wd]
	delete(w.dirs, wd)
	if w.byDir[dir] == wd {
		delete(w.byDir, dir)
	}
}

// emit queues an event. The temporary names of files being written are not shown:
// renaming such a file to its final name is shown as the creation of that file.
func (w *watcher) emit(op sandbox.FileOp, p, from string) {
	if strings.HasPrefix(path.Base(from), tempPrefix) {
		op, from = sandbox.OpCreate, ""
	}
	if strings.HasPrefix(path.Base(p), tempPrefix) {
		if from == "" {
			return
		}
		op, p, from = sandbox.OpRemove, from, ""
	}
	if w.only != "" && path.Base(p) != w.only {
		if from == "" || path.Base(from) != w.only {
			return
		}
		op, p, from = sandbox.OpRemove, from, ""
	}
	e := guest.FileEvent{Op: op, Path: []byte(w.shown(p))}
	if from != "" {
		e.From = []byte(w.shown(from))
	}
	w.queue.put(e)
}

func (w *watcher) shown(real string) string {
	if s := strings.TrimPrefix(real, w.prefix); s != "" {
		return s
	}
	return "/"
}
