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
// syncer syncs the log after a commit, while other transactions commit: all commits made
// before a sync begins share that sync.
type syncer struct {
	path   string // of the database
	synced func() // called after each sync; for tests. May be nil

	turn sync.Mutex // held while the log is synced; guards the next two
	log  *os.File   // nil until first needed
	err  error      // of a failed write to the disk: its data may be lost, even if later writes succeed

	mu   sync.Mutex // guards next
	next *syncRound // not begun yet; nil if no commit waits
}

// syncRound is one sync, shared by all commits that wait for it.
type syncRound struct {
	done chan struct{}
	err  error // set before done is closed
}

// sync returns when all commits made before the call are on the disk.
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
		if r.err = s.err; r.err == nil {
			r.err = s.syncLog()
		}
		s.turn.Unlock()
		close(r.done)
	}
	<-r.done
	return r.err
}

// syncLog syncs the log, and its directory if the log is new. If it cannot open them, for
// example for lack of descriptors, the next sync covers the same commits.
func (s *syncer) syncLog() error {
	if err := s.openLog(); err != nil {
		return err
	}
	if err := unix.Fdatasync(int(s.log.Fd())); err != nil {
		return s.failed(err)
	}
	if s.synced != nil {
		s.synced()
	}
	return nil
}

// failed records that committed data may be lost, and makes every later sync fail.
func (s *syncer) failed(err error) error {
	s.err = cay.Errorf(cay.Internal, "database %s was not written to the disk: %w", s.path, err).
		WithHint("Look at the disk, then start the daemon again: until then it acknowledges no change.")
	return s.err
}

// notNow is the error for a sync that was not tried.
func (s *syncer) notNow(err error) error {
	return cay.Errorf(cay.Unavailable, "database %s could not be written to the disk: %w", s.path, err).
		WithHint("Try again. The change may have been made.")
}

// openLog opens the log, and opens it again if SQLite has made a new log. Unlike the
// database file, the log may be opened and closed beside SQLite, because SQLite has no
// locks on it.
func (s *syncer) openLog() error {
	info, err := os.Stat(s.path + "-wal")
	if err != nil {
		return s.notNow(err)
	}
	if s.log != nil {
		if had, err := s.log.Stat(); err == nil && os.SameFile(had, info) {
			return nil
		}
		if err := s.close(); err != nil {
			return s.failed(err)
		}
	}
	log, err := os.Open(s.path + "-wal")
	if err != nil {
		return s.notNow(err)
	}
	dir, err := os.Open(filepath.Dir(s.path))
	if err != nil {
		return errors.Join(s.notNow(err), log.Close())
	}
	if err := errors.Join(syncDir(dir), dir.Close()); err != nil {
		return errors.Join(s.failed(err), log.Close())
	}
	s.log = log
	return nil
}

// close closes the log. No sync may be in progress.
func (s *syncer) close() error {
	if s.log == nil {
		return nil
	}
	err := s.log.Close()
	s.log = nil
	return err
}

// syncDir makes new entries of a directory survive a power cut.
func syncDir(dir *os.File) error {
	err := dir.Sync()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrInvalid) {
		err = nil // a file system without
	}
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", dir.Name(), err)
	}
	return nil
}
