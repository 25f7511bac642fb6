package agent

import (
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// stdio connects a process to the agent. All descriptors close on exec; the child gets
// copies of its own three by dup.
type stdio struct {
	child  [3]int // of the child: to close when it was started
	shared bool   // but for the first
	// output has the files to read stdout and stderr from, or the terminal alone. input
	// is the file to write stdin to, nil if there is none. The terminal is both. All of
	// these files are non-blocking.
	output []*os.File
	input  *os.File
	tty    bool
}

// pipes has the pipes of the next command ready: making them takes ten system calls,
// which in a sandbox would delay the command by 1/3 ms.
type pipes struct {
	mu     sync.Mutex // guards what follows
	next   *stdio     // nil: not prepared
	closed bool
}

// take returns pipes without input.
func (p *pipes) take(null int) (*stdio, error) {
	p.mu.Lock()
	s := p.next
	p.next = nil
	p.mu.Unlock()
	if s != nil {
		return s, nil
	}
	return openPipes(null, false)
}

// prepare makes the pipes that take returns next, in idle time.
func (p *pipes) prepare(null int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next != nil || p.closed {
		return
	}
	if s, err := openPipes(null, false); err == nil { // or take says why not
		p.next = s
	}
}

func (p *pipes) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed = true; p.next != nil {
		p.next.closeChild()
		p.next.closeOurs()
		p.next = nil
	}
}

// openPipes connects stdout and stderr by pipes, stdin by a pipe or to null.
func openPipes(null int, withInput bool) (s *stdio, err error) {
	s = &stdio{child: [3]int{-1, -1, -1}}
	defer func() {
		if err != nil {
			s.closeChild()
			s.closeOurs()
			err = cay.Errorf(cay.Unavailable, "open pipes for the command: %w", err)
		}
	}()
	if withInput {
		var ours int
		if s.child[0], ours, err = pipe(0); err != nil {
			return nil, err
		}
		s.input = os.NewFile(uintptr(ours), "stdin")
	} else {
		s.child[0], s.shared = null, true
	}
	for i, name := range []string{"stdout", "stderr"} {
		var ours int
		if s.child[i+1], ours, err = pipe(1); err != nil {
			return nil, err
		}
		s.output = append(s.output, os.NewFile(uintptr(ours), name))
	}
	return s, nil
}

// openTerminal connects stdin, stdout and stderr to a new terminal. The usual library
// makes the master blocking, so that reading would occupy a thread.
func openTerminal(size sandbox.WindowSize, owner *account) (s *stdio, err error) {
	s = &stdio{child: [3]int{-1, -1, -1}, tty: true}
	defer func() {
		if err != nil {
			s.closeChild()
			s.closeOurs()
			err = cay.Errorf(cay.Unavailable, "open a terminal: %w", err)
		}
	}()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	master := os.NewFile(uintptr(fd), "terminal")
	s.input, s.output = master, []*os.File{master}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, err
	}
	if err := setWindow(fd, size); err != nil {
		return nil, err
	}
	slave, err := unix.Open("/dev/pts/"+strconv.FormatUint(uint64(n), 10), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	s.child[0], s.child[1], s.child[2] = slave, slave, slave
	if owner != nil && owner.uid != 0 {
		if err := unix.Fchown(slave, int(owner.uid), int(owner.gid)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func setWindow(fd int, size sandbox.WindowSize) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: size.Cols, Row: size.Rows})
}

// pipe makes a pipe; childs is the index of the child's end: 0 to read, 1 to write. The
// child's end blocks, as programs expect; our end does not, so that reads and writes wait
// without a thread.
func pipe(childs int) (child, ours int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return -1, -1, err
	}
	if _, err := unix.FcntlInt(uintptr(fds[childs]), unix.F_SETFL, 0); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return -1, -1, err
	}
	return fds[childs], fds[1-childs], nil
}

func (s *stdio) closeChild() {
	for i, fd := range s.child {
		if fd >= 0 && (i == 0 && !s.shared || i > 0 && fd != s.child[0]) {
			unix.Close(fd)
		}
	}
	s.child = [3]int{-1, -1, -1}
}

func (s *stdio) closeOurs() {
	if s.input != nil {
		s.input.Close()
	}
	s.closeOutput()
}

// closeOutput closes the files that are read from. Closing twice does no harm.
func (s *stdio) closeOutput() {
	for _, f := range s.output {
		_ = f.Close()
	}
}
