package db

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

// syncer makes commits survive a power cut. SQLite appends a commit to the write-ahead
// log and, with synchronous=NORMAL, syncs that file only at a checkpoint; after a power
// cut it reads the log up to the last whole commit (https://sqlite.org/wal.html). The
// syncer syncs the log after a commit, while others commit: whoever has committed
// before a sync begins shares it.
type syncer struct {
	path   string // of the database
	synced func() // called after each sync; for tests. Nil: none

	turn sync.Mutex // held while the log is synced; guards the next two
	log  *os.File   // nil until first needed
	err  error      // of a sync that failed: what it was to write may be lost, whatever the next one says

	mu   sync.Mutex // guards next
	next *syncRound // has not begun; nil if nobody waits
}

// syncRound is one sync, for all who wait for it.
type syncRound struct {
	done chan struct{}
	err  error // set before done is closed
}

// sync returns when all that was committed before the call is on the disk.
func (s *syncer) sync() error {
	s.mu.Lock()
	r := s.next
	first := r == nil
	if first {
		r = &syncRound{done: make(chan struct{})}
		s.next = r
	}
	s.mu.Unlock()
	if first {
		s.turn.Lock()
		s.mu.Lock()
		s.next = nil
		s.mu.Unlock()
		if s.err == nil {
			s.err = s.syncLog()
		}
		r.err = s.err
		s.turn.Unlock()
		close(r.done)
	}
	<-r.done
	return r.err
}

// syncLog syncs the log, and its directory if the log is new.
func (s *syncer) syncLog() error {
	if err := s.openLog(); err != nil {
		return s.failed(err)
	}
	if err := unix.Fdatasync(int(s.log.Fd())); err != nil {
		return s.failed(err)
	}
	if s.synced != nil {
		s.synced()
	}
	return nil
}

func (s *syncer) failed(err error) error {
	return cay.Errorf(cay.Internal, "database %s was not written to the disk: %w", s.path, err).
		WithHint("Look at the disk, then start the daemon again: until then it acknowledges no change.")
}

// openLog opens the log, once more if SQLite has made another one. Unlike the database
// itself the log may be opened and closed beside SQLite, which has no locks on it.
func (s *syncer) openLog() error {
	info, err := os.Stat(s.path + "-wal")
	if err != nil {
		return err
	}
	if s.log != nil {
		if had, err := s.log.Stat(); err == nil && os.SameFile(had, info) {
			return nil
		}
		if err := s.close(); err != nil {
			return err
		}
	}
	if s.log, err = os.Open(s.path + "-wal"); err != nil {
		return err
	}
	return syncDir(filepath.Dir(s.path))
}

// close closes the log. Nobody syncs.
func (s *syncer) close() error {
	if s.log == nil {
		return nil
	}
	err := s.log.Close()
	s.log = nil
	return err
}

// syncDir makes what was created in a directory survive a power cut.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	err = dir.Sync()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrInvalid) {
		err = nil // a file system without
	}
	if err := errors.Join(err, dir.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", path, err)
	}
	return nil
}
