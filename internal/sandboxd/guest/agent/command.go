package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// command is a started program. Its process leads a session and a process group of its own,
// so the group's id is the pid.
//
// States: the process runs; it has exited (exited is set, signals are refused, its output
// drains); it is done (exit is set, done is closed, the log is closed). A command is done
// at most Limits.Drain after its exit, because children that it leaves behind may hold
// its pipes open for ever. The bytes in the pipes at that moment are read first. Output
// that such children write later is kept, too, for later readers.
type command struct {
	info  sandbox.Command // as shown; ID to StartedAt never change
	log   *outputLog
	stdio *stdio
	stdin *stdin // nil without standard input
	done  chan struct{}
	// timeoutSignal is CommandParams.TimeoutSignal, 0 if it was not given.
	timeoutSignal syscall.Signal
	hidden        bool // the command is not listed, and is forgotten at its end

	mu       sync.Mutex // guards what follows
	exited   bool
	timedOut bool
	exit     *sandbox.Exit
	timers   []*runTimer
}

// launch starts a planned command.
func (s *Server) launch(id string, pl *plan) (*command, error) {
	var io *stdio
	var err error
	switch size := pl.params.PTY; {
	case size != nil:
		io, err = openTerminal(*size, pl.user)
	case pl.params.Stdin:
		io, err = openPipes(s.null, true)
	default:
		io, err = s.pipes.take(s.null)
	}
	if err != nil {
		return nil, err
	}
	defer io.closeChild()
	c := &command{log: s.outputs.newLog(), stdio: io, done: make(chan struct{}), timeoutSignal: syscall.Signal(pl.params.TimeoutSignal), hidden: pl.hidden}
	if io.input != nil {
		c.stdin = newStdin(io.input, io.tty)
	}
	user := s.self().user
	if pl.user != nil {
		user = pl.user.name
	}
	c.info = sandbox.Command{ID: id, Argv: shownArgv(pl.params.Argv), WorkDir: pl.workDir, User: user, PTY: io.tty, StartedAt: time.Now()}
	exited := make(chan syscall.WaitStatus, 1)
	ready := make(chan struct{}) // closed when info is complete
	for wait := time.Millisecond; ; wait *= 2 {
		c.info.PID, err = s.cfg.Reaper.start(
			func() (int, error) { return pl.spawn(io.child) },
			func(reap func() syscall.WaitStatus) {
				<-ready
				exited <- c.collect(reap)
			})
		if !errors.Is(err, syscall.ETXTBSY) || wait > busyPatience {
			break
		}
		time.Sleep(wait)
	}
	close(ready)
	if err != nil {
		io.closeOurs()
		c.log.close()
		return nil, err
	}
	pipes := s.pump(c)
	if d := time.Duration(pl.params.Timeout); d > 0 {
		c.after(d, func() { s.timeout(c) })
	}
	s.workers.Go(func() { s.finish(c, <-exited, pipes) })
	return c, nil
}

// busyPatience is how long a start is repeated while a process has the program open for
// writing. Such a process may be a child of ours that inherited the descriptor: the kernel
// lets the parent continue a moment before the child's descriptors are closed, and gives
// no notice of the close.
const busyPatience = 64 * time.Millisecond

// collect runs when the process is a zombie, so that its pid and its process group's id
// are not reused yet.
func (c *command) collect(reap func() syscall.WaitStatus) syscall.WaitStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exited = true
	for _, t := range c.timers {
		t.Stop()
	}
	if c.timedOut {
		// Its children got the same time to end. It is fine if no child is left.
		_ = syscall.Kill(-c.info.PID, syscall.SIGKILL)
	}
	return reap()
}

// signal signals the process group. Errors: conflict.
func (c *command) signal(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.exited {
		return cay.Errorf(cay.Conflict, "command %s has exited", c.info.ID)
	}
	err := syscall.Kill(-c.info.PID, sig)
	if errors.Is(err, syscall.ESRCH) {
		// The process group is created between fork and exec, and fork has returned. So
		// the process itself has left its group, and is signaled alone.
		err = syscall.Kill(c.info.PID, sig)
	}
	if err != nil {
		return fileError("signal", c.info.ID, err)
	}
	return nil
}

// after calls do when the command has run for d, unless it has exited by then.
func (c *command) after(d time.Duration, do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.exited {
		c.timers = append(c.timers, afterRunning(d, do))
	}
}

func (s *Server) timeout(c *command) {
	c.mu.Lock()
	c.timedOut = !c.exited
	c.mu.Unlock()
	sig := c.timeoutSignal
	set(&sig, syscall.SIGTERM)
	// An error means that the command has exited meanwhile, as it should. A stopped
	// process gets most signals only when it continues.
	_ = c.signal(sig)
	_ = c.signal(syscall.SIGCONT)
	c.after(s.cfg.Limits.KillAfter, func() { _ = c.signal(syscall.SIGKILL) })
}

// finish sees a command from its exit to its end.
func (s *Server) finish(c *command, ws syscall.WaitStatus, pipes *pipeReaders) {
	at := time.Now()
	c.log.drain()
	drained := make(chan struct{})
	drain := afterRunning(s.cfg.Limits.Drain, func() { close(drained) })
	select {
	case <-pipes.ended:
	case <-drained:
	case <-s.ctx.Done():
	}
	drain.Stop()
	pipes.catchUp(c.stdio.output)
	if c.stdin != nil {
		c.stdin.shut()
	}
	exit := exitOf(ws)
	exit.At, exit.Duration = at, sandbox.Duration(at.Sub(c.info.StartedAt))
	c.mu.Lock()
	if exit.TimedOut = c.timedOut; exit.TimedOut && c.timeoutSignal == 0 {
		exit.Code = exitTimedOut
	}
	c.exit = exit
	c.mu.Unlock()
	s.table.finish(c)
	s.detach(c, pipes)
	c.log.close()
	close(c.done)
	s.pipes.prepare(s.null)
}

const exitTimedOut = 124

func exitOf(ws syscall.WaitStatus) *sandbox.Exit {
	if ws.Signaled() {
		return &sandbox.Exit{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
	}
	return &sandbox.Exit{Code: ws.ExitStatus()}
}

// describe returns the command in its present state.
func (c *command) describe() sandbox.Command {
	info := c.info
	c.mu.Lock()
	info.Exit = c.exit
	c.mu.Unlock()
	info.OutputStart, info.OutputEnd = c.log.bounds()
	return info
}

// pipeReaders read the output of a command.
type pipeReaders struct {
	ended    chan struct{} // closed when all pipes have ended
	hurried  chan struct{} // closed when output may no longer wait for room in the log
	caughtUp chan struct{} // closed when the bytes that were in the pipes at catchUp are read
}

// past is a deadline in the past.
var past = time.Unix(1, 0)

// catchUp reads all bytes that are in the pipes now, and returns when they are read. From
// now on bytes that find no room in the log are lost.
func (p *pipeReaders) catchUp(output []*os.File) {
	close(p.hurried)
	for _, f := range output {
		if err := f.SetReadDeadline(past); err != nil {
			_ = f.Close() // most often it has ended, and is closed already
		}
	}
	<-p.caughtUp
}

// pump starts to read the command's output.
func (s *Server) pump(c *command) *pipeReaders {
	p := &pipeReaders{ended: make(chan struct{}), hurried: make(chan struct{}), caughtUp: make(chan struct{})}
	var left, behind atomic.Int32
	left.Store(int32(len(c.stdio.output)))
	behind.Store(int32(len(c.stdio.output)))
	for i, f := range c.stdio.output {
		kind := guest.KindStdout
		if i == 1 {
			kind = guest.KindStderr
		}
		s.workers.Go(func() {
			caughtUp := sync.OnceFunc(func() {
				if behind.Add(-1) == 0 {
					close(p.caughtUp)
				}
			})
			stop := context.AfterFunc(s.ctx, func() { f.Close() })
			c.read(kind, f, p.hurried, caughtUp)
			stop()
			caughtUp()
			if left.Add(-1) == 0 {
				close(p.ended)
			}
			if !c.stdio.tty { // a terminal may still be typed to
				f.Close() // nobody waits for the close
			}
		})
	}
	return p
}

// maxLingering is the number of finished commands whose pipes are still read.
const maxLingering = 256

// detach lets the pipe readers go on by themselves. Children that the command left behind
// may still write: reading on keeps them from blocking, and from dying of SIGPIPE. Beyond
// maxLingering commands the pipes are closed. A terminal is hung up instead.
func (s *Server) detach(c *command, p *pipeReaders) {
	if c.stdio.tty {
		c.stdio.closeOutput()
		return
	}
	select {
	case <-p.ended:
		return
	default:
	}
	if s.lingering.Add(1) > maxLingering {
		c.stdio.closeOutput()
	}
	s.workers.Go(func() {
		<-p.ended
		s.lingering.Add(-1)
	})
}

var readBuffers = sync.Pool{New: func() any { b := make([]byte, guest.MaxPayload); return &b }}

// read copies from a pipe or terminal to the log until it ends. At the deadline set by
// catchUp it copies the queued bytes and calls caughtUp.
func (c *command) read(kind guest.Kind, f *os.File, hurried <-chan struct{}, caughtUp func()) {
	conn, err := f.SyscallConn()
	for err == nil {
		_, err = c.readSome(kind, conn, hurried, true)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		err = f.SetReadDeadline(time.Time{})
		// A terminal of Linux passes on written bytes only when it is read.
		n := 1
		if err == nil {
			n, err = c.readSome(kind, conn, hurried, false)
		}
		// Only the bytes queued now: a program that writes without end is never caught up
		// with.
		for left := queued(conn); err == nil && left > 0 && n > 0; left -= n {
			n, err = c.readSome(kind, conn, hurried, false)
		}
		caughtUp()
	}
}

// queued is how many bytes are in a pipe or terminal.
func queued(conn syscall.RawConn) int {
	n := 0
	err := conn.Control(func(fd uintptr) {
		if q, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			n = q
		}
	})
	if err != nil {
		return 0 // closed
	}
	return n
}

// readSome copies the bytes of one read. With wait it waits for bytes; without, there may
// be none. It takes a buffer only when there are bytes to read.
func (c *command) readSome(kind guest.Kind, conn syscall.RawConn, hurried <-chan struct{}, wait bool) (n int, err error) {
	var buf *[]byte
	var readErr error
	err = conn.Read(func(fd uintptr) bool {
		buf = readBuffers.Get().(*[]byte)
		for {
			n, readErr = syscall.Read(int(fd), *buf)
			if readErr != syscall.EINTR {
				break
			}
		}
		if readErr == syscall.EAGAIN {
			readBuffers.Put(buf)
			return !wait
		}
		return true
	})
	switch {
	case err != nil:
		return 0, err
	case readErr == syscall.EAGAIN:
		return 0, nil
	case readErr != nil || n <= 0: // a terminal ends with EIO when the last program closes it
		readBuffers.Put(buf)
		return 0, io.EOF
	}
	keep := n >= guest.MaxPayload/2
	c.log.append(kind, (*buf)[:n:n], keep, hurried)
	if !keep {
		readBuffers.Put(buf)
	}
	return n, nil
}

// isDone reports whether the command is done.
func (c *command) isDone() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// ended reports whether the command is done and has no output from cursor on.
func (c *command) ended(cursor int64) bool {
	if !c.isDone() {
		return false
	}
	_, end := c.log.bounds()
	return cursor == end
}

// resize changes the size of the terminal. Errors: conflict.
func (c *command) resize(size sandbox.WindowSize) error {
	if !c.stdio.tty {
		return cay.Errorf(cay.Conflict, "command %s has no terminal", c.info.ID).WithHint("start it with pty")
	}
	conn, err := c.stdio.input.SyscallConn()
	if err == nil {
		var sizeErr error
		err = conn.Control(func(fd uintptr) { sizeErr = setWindow(int(fd), size) })
		if err == nil {
			err = sizeErr
		}
	}
	if err != nil {
		return cay.Errorf(cay.Conflict, "the terminal of command %s is gone: %w", c.info.ID, err)
	}
	return nil
}
