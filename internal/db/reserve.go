package db

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// reserveEvery is how often the reserve is allocated again.
const reserveEvery = 10 * time.Second

// reserve keeps disk space that only the database can use when the disk is full: it
// allocates blocks for the write-ahead log, beyond the file's end. A transaction is
// written to the log, and only a checkpoint, which may fail, grows the database's own
// file. So writes that fit into the reserve succeed.
//
// reserve opens no second descriptor of the database or its -shm file: closing it would
// release the locks that SQLite holds on them. The log has no locks.
type reserve struct {
	wal   string
	bytes int64 // 0: there is no reserve

	mu sync.Mutex // guards what follows
	at time.Time  // when it was taken last; zero: never
}

// keep allocates the reserve, unless it was allocated in the last reserveEvery.
// Allocating again is needed because truncating the log frees the blocks, and because
// allocating fails on a full disk. Callers have just written, so the log exists. On
// failure the database has no reserved space, and a later call tries again: the disk is
// full, or the file system cannot allocate beyond the end of a file.
func (r *reserve) keep() {
	if r.bytes == 0 || !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	if !r.at.IsZero() && time.Since(r.at) < reserveEvery {
		return
	}
	r.at = time.Now()
	f, err := os.OpenFile(r.wal, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer f.Close()
	_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, r.bytes)
}
