package agent

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

// stdin is the writing end of a command's standard input.
type stdin struct {
	file *os.File
	tty  bool
	turn chan struct{} // holds an element while no writer writes

	// The following fields belong to the writer that has the turn.
	session   string // of the WriteStdin that wrote last
	offset    int64  // bytes of the session that were written
	ended     bool   // the session's end was written
	closed    bool
	lineStart bool // the last byte ended a line

	mu   sync.Mutex // guards over
	over bool       // the command has exited
}

func newStdin(f *os.File, tty bool) *stdin {
	s := &stdin{file: f, tty: tty, lineStart: true, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// write writes the part of a session that begins at offset, without the bytes that were
// written before, and closes the input if last. A terminal is not closed, but gets the
// end-of-file character. Errors: conflict.
func (s *stdin) write(done <-chan struct{}, session string, offset int64, data []byte, last bool) error {
	select {
	case <-s.turn:
	case <-done:
		return cay.Errorf(cay.Canceled, "the writer has left")
	}
	defer func() { s.turn <- struct{}{} }()
	if s.session != session {
		s.session, s.offset, s.ended = session, offset, false
	}
	switch {
	case s.isOver() && last && offset > 0 && offset == s.offset && len(data) == 0:
		return nil // it took all, and exited before it could be told the end
	case s.isOver():
		return cay.Errorf(cay.Conflict, "the command has exited")
	case s.ended && last:
		return nil // a repetition
	case s.closed:
		return cay.Errorf(cay.Conflict, "standard input is closed")
	case offset > s.offset || offset+int64(len(data)) < s.offset:
		return cay.Errorf(cay.Invalid, "standard input continues at %d, not at %d", s.offset, offset)
	}
	if err := s.writeAll(done, data[s.offset-offset:]); err != nil {
		return err
	}
	if !last {
		return nil
	}
	if s.tty {
		// In the middle of a line, the first end-of-file character only sends the line's
		// beginning.
		eof := []byte{s.eofChar(), s.eofChar()}
		if s.lineStart {
			eof = eof[:1]
		}
		at := s.offset
		err := s.writeAll(done, eof)
		s.offset, s.lineStart, s.ended = at, true, err == nil
		return err
	}
	s.closed, s.ended = true, true
	return s.file.Close()
}

func (s *stdin) writeAll(done <-chan struct{}, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	// A command that does not read must not block a writer whose client has left.
	stop := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-done:
			_ = s.file.SetWriteDeadline(time.Unix(1, 0))
		case <-stop:
		}
	}()
	n, err := s.file.Write(data)
	close(stop)
	<-stopped
	s.offset += int64(n)
	if n > 0 {
		s.lineStart = data[n-1] == '\n' || data[n-1] == '\r'
	}
	if err == nil {
		return nil
	}
	_ = s.file.SetWriteDeadline(time.Time{})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return cay.Errorf(cay.Canceled, "the writer has left")
	case errors.Is(err, os.ErrClosed):
		return cay.Errorf(cay.Conflict, "the command has exited")
	case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EIO):
		return cay.Errorf(cay.Conflict, "the command does not read its standard input any more")
	}
	return fileError("write to", "standard input", err)
}

// eofChar is the character that means end-of-file on the terminal.
func (s *stdin) eofChar() byte {
	const ctrlD = 4
	conn, err := s.file.SyscallConn()
	if err != nil {
		return ctrlD
	}
	eof := byte(ctrlD)
	_ = conn.Control(func(fd uintptr) {
		if t, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil && t.Cc[unix.VEOF] != 0 {
			eof = t.Cc[unix.VEOF]
		}
	})
	return eof
}

func (s *stdin) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// shut ends all writing: the command has exited.
func (s *stdin) shut() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	if !s.tty { // a terminal is closed with its output
		_ = s.file.Close()
	}
}
