package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

// Env names the descriptor of the new process's end of the socket pair.
const Env = "CAY_HANDOVER_FD"

// The steps; see the package comment.
type step string

const (
	stepSockets step = "sockets"
	stepWaiting step = "waiting"
	stepBegin   step = "begin"
	stepServing step = "serving"
	stepEnded   step = "ended"
)

// message is one step. At most maxMessage bytes.
type message struct {
	Step    step           `json:"step"`
	Sockets []socketHeader `json:"sockets,omitempty"` // in the order of the files
	// Data is the data directory that the new process is about to open, Version its
	// version.
	Data    string `json:"data,omitempty"`
	Version string `json:"version,omitempty"`
}

type socketHeader struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

const (
	maxMessage = 64 << 10
	maxSockets = 16
	// farewell is how long a process that serves waits for the old one's last word.
	farewell = 5 * time.Second
)

// send sends a message. Errors: errEnded.
func send(c *net.UnixConn, m message, files []int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode step %s: %w", m.Step, err)
	}
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	_, _, err = c.WriteMsgUnix(b, rights, nil)
	switch {
	case errors.Is(err, unix.EPIPE):
		return errEnded
	case err != nil:
		return fmt.Errorf("send step %s: %w", m.Step, err)
	}
	return nil
}

// receive returns the next message and its files, which the caller owns. Errors: errEnded.
func receive(c *net.UnixConn) (m message, files []int, err error) {
	b, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxSockets))
	n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET): // ReadMsgUnix wraps both
		return m, nil, errEnded
	case err != nil:
		return m, nil, fmt.Errorf("receive a step: %w", err)
	}
	all, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return m, nil, fmt.Errorf("read the files of a step: %w", err)
	}
	for _, cm := range all {
		fds, err := unix.ParseUnixRights(&cm)
		if err != nil {
			return m, nil, fmt.Errorf("read the files of a step: %w", err)
		}
		files = append(files, fds...)
	}
	if err := json.Unmarshal(b[:n], &m); err != nil {
		return m, files, fmt.Errorf("read a step: %w", err)
	}
	return m, files, nil
}

var errEnded = errors.New("the other process has ended")

// expect receives a message of one step and no files.
func expect(c *net.UnixConn, want step) (message, error) {
	m, files, err := receive(c)
	for _, fd := range files {
		unix.Close(fd)
	}
	if err == nil && m.Step != want {
		err = fmt.Errorf("the other process is at step %q, not at %q", m.Step, want)
	}
	return m, err
}

// Program is the new process to start.
type Program struct {
	Path           string
	Args           []string // without the name
	Env            []string
	Stdout, Stderr *os.File
}

// Successor is the new process, seen by the old one.
type Successor struct {
	Version string
	cmd     *exec.Cmd
	conn    *net.UnixConn
	sockets *Sockets
	exited  chan struct{} // closed when it has ended; then state is set
	state   *os.ProcessState
}

// Start starts the new process and passes the sockets on. It returns when the new process
// waits for this one to stop. data is this process's data directory: a process for another
// one is no successor. Errors: invalid if the program is none, or fails. Call Begin, or
// Kill.
func Start(ctx context.Context, p Program, data string, sockets []Shared) (_ *Successor, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket pair: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "successor")
	conn, err := connOf(fds[0])
	if err != nil {
		theirs.Close()
		return nil, err
	}
	s := &Successor{conn: conn, exited: make(chan struct{})}
	if s.sockets, err = share(sockets); err != nil {
		theirs.Close()
		return nil, errors.Join(err, conn.Close())
	}
	s.cmd = exec.Command(p.Path, p.Args...)
	s.cmd.Env = append(p.Env, Env+"="+strconv.Itoa(firstFD))
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.ExtraFiles = p.Stdout, p.Stderr, []*os.File{theirs}
	err = s.cmd.Start()
	theirs.Close() // the new process has the only copy: the end of the conversation is its end
	if err != nil {
		s.sockets.Close()
		return nil, errors.Join(cay.Errorf(cay.Invalid, "%s cannot be started: %w", p.Path, err), conn.Close())
	}
	go func() {
		defer close(s.exited)
		_ = s.cmd.Wait() // the state says it
		s.state = s.cmd.ProcessState
	}()
	defer func() {
		if err != nil {
			s.Kill()
			err = s.explain(ctx, err)
		}
	}()
	m := message{Step: stepSockets}
	var files []int
	for name, f := range s.sockets.open {
		m.Sockets = append(m.Sockets, socketHeader{name, f.address})
		files = append(files, f.fd)
	}
	// From here on the new process ends with its conversation.
	unhook := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	if err := send(conn, m, files); err != nil {
		return nil, err
	}
	answer, err := expect(conn, stepWaiting)
	if err != nil {
		return nil, err
	}
	if answer.Data != data {
		return nil, fmt.Errorf("it is configured for the data directory %q, not %q", answer.Data, data)
	}
	s.Version = answer.Version
	return s, nil
}

func connOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "handover")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("open the conversation with another process: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a conversation over a %T", c), c.Close())
	}
	return u, nil
}

// explain says why the new process is not one.
func (s *Successor) explain(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return cay.Errorf(cay.DeadlineExceeded, "the new process %s was not ready in time: %w", s.cmd.Path, context.Cause(ctx))
	case s.state != nil && s.state.Exited():
		return cay.Errorf(cay.Invalid, "the new process %s ended with status %d: its output has the reason", s.cmd.Path, s.state.ExitCode())
	}
	return cay.Errorf(cay.Invalid, "the new process %s does not take over: %w", s.cmd.Path, err)
}

// PID is the id of the new process.
func (s *Successor) PID() int { return s.cmd.Process.Pid }

// Begin tells the new process that this one has stopped, and returns when the new one
// serves. If that fails, or ctx ends, the new process has been killed, and this process may
// use again what it had.
func (s *Successor) Begin(ctx context.Context) error {
	unhook := context.AfterFunc(ctx, func() { s.conn.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	err := send(s.conn, message{Step: stepBegin}, nil)
	if err == nil {
		_, err = expect(s.conn, stepServing)
	}
	if err != nil {
		s.kill()
		return s.explain(ctx, err)
	}
	return nil
}

// Leave ends the conversation with a process that serves; this process is about to exit.
func (s *Successor) Leave() error {
	s.sockets.Close()
	return errors.Join(send(s.conn, message{Step: stepEnded}, nil), s.conn.Close())
}

// Kill ends the new process.
func (s *Successor) Kill() {
	s.kill()
	s.sockets.Close()
}

func (s *Successor) kill() {
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.exited
	s.conn.Close()
}

// Sockets returns the sockets that were passed on, so that this process can listen again
// after a failed Begin.
func (s *Successor) Sockets() *Sockets { return s.sockets }

// Predecessor is the old process, seen by the new one. A nil *Predecessor is none: its
// methods do nothing.
type Predecessor struct {
	conn    *net.UnixConn
	sockets *Sockets
}

// FromPredecessor returns the process that has started this one to replace it, nil if none
// did. lookup is os.Getenv. Call it once, before this process starts others.
func FromPredecessor(lookup func(string) string) (*Predecessor, error) {
	text := lookup(Env)
	if text == "" {
		return nil, nil
	}
	fd, err := strconv.Atoi(text)
	if err != nil || fd < firstFD {
		return nil, fmt.Errorf("%s is %q, not a descriptor", Env, text)
	}
	unix.CloseOnExec(fd)
	conn, err := connOf(fd)
	if err != nil {
		return nil, err
	}
	m, files, err := receive(conn)
	s := &Sockets{open: make(map[string]socket)}
	for i, f := range files {
		unix.CloseOnExec(f)
		h := socketHeader{Name: strconv.Itoa(i)}
		if i < len(m.Sockets) {
			h = m.Sockets[i]
		}
		s.open[h.Name] = socket{os.NewFile(uintptr(f), h.Name), f, h.Address}
	}
	if err == nil && (m.Step != stepSockets || len(files) != len(m.Sockets)) {
		err = fmt.Errorf("the old process begins with step %q and %d files", m.Step, len(files))
	}
	if err != nil {
		s.Close()
		return nil, errors.Join(err, conn.Close())
	}
	return &Predecessor{conn, s}, nil
}

// Sockets returns the sockets that the old process passed on.
func (p *Predecessor) Sockets() *Sockets {
	if p == nil {
		return nil
	}
	return p.sockets
}

// Await returns when the old process has stopped, or was killed. data is the data directory that this
// process is about to open.
func (p *Predecessor) Await(ctx context.Context, data, version string) error {
	if p == nil {
		return nil
	}
	unhook := context.AfterFunc(ctx, func() { p.conn.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	err := send(p.conn, message{Step: stepWaiting, Data: data, Version: version}, nil)
	if err == nil {
		_, err = expect(p.conn, stepBegin)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, errEnded) {
		return nil
	}
	return err
}

// Serving tells the old process that this one serves, and returns when the old one has
// nothing to do any more.
func (p *Predecessor) Serving() error {
	if p == nil {
		return nil
	}
	defer p.conn.Close()
	if err := p.conn.SetDeadline(time.Now().Add(farewell)); err != nil {
		return err
	}
	err := send(p.conn, message{Step: stepServing}, nil)
	if err == nil {
		_, err = expect(p.conn, stepEnded)
	}
	if errors.Is(err, errEnded) {
		return nil
	}
	return err
}
