package db

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// reserveEvery is how often the room of a reserve is taken again.
const reserveEvery = 10 * time.Second

// reserve takes room on the disk that nobody but the database can use, for the time in
// which the disk is full: it allocates blocks for the write-ahead log, beyond the end
// that the file has. A transaction is written to the log, and only a checkpoint, which
// may fail, grows the database's own file. So what fits in the reserve can be written.
//
// No second descriptor of the database or its -shm file is opened: closing that would
// take away the locks that SQLite holds on them. The log has no locks.
type reserve struct {
	wal   string
	bytes int64 // 0: there is no reserve

	mu sync.Mutex // guards what follows
	at time.Time  // when it was taken last; zero: never
}

// keep takes the room, if it was not taken just now: a log that was cut off has lost it,
// and a full disk had none. Callers have just written, so there is a log.
// On failure the database has no more room than any other file, and it is tried again:
// the disk is full, or the file system cannot allocate beyond the end of a file.
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
