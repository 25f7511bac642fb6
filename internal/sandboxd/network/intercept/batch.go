package intercept

import (
	"io"
	"sync"
)

const (
	// recordSize is the largest payload of a TLS record, in bytes.
	recordSize = 16 << 10
	// batchSize is the largest write to a guest, in bytes: as many whole records as fit
	// into a packet of its link.
	batchSize = 3 * (recordSize + 256)
)

var batchPool = sync.Pool{New: func() any { return new([batchSize]byte) }}

// batch collects the records that TLS writes one by one, because below it every write is
// a packet that the guest's stack and ours have to process.
type batch struct {
	io.Writer
	memory Memory

	turn sync.Mutex // held by together
	mu   sync.Mutex // guards what follows, and the writing
	kept []byte     // without room for anything outside of together
	lost error      // of a lost batch
}

// together calls write, a write of TLS, so that its records leave in few pieces, and all
// of them before together returns. If memory has no room, each record leaves by itself.
func (b *batch) together(write func() (int, error)) (int, error) {
	b.turn.Lock()
	defer b.turn.Unlock()
	if !take(b.memory, batchSize) {
		return write()
	}
	defer give(b.memory, batchSize)
	room := batchPool.Get().(*[batchSize]byte)
	defer batchPool.Put(room)
	b.mu.Lock()
	b.kept = room[:0]
	b.mu.Unlock()
	n, err := write()
	b.mu.Lock()
	defer b.mu.Unlock()
	if ferr := b.flushLocked(); err == nil {
		err = ferr
	}
	b.kept = nil
	return n, err
}

// Write implements io.Writer.
func (b *batch) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost != nil {
		return 0, b.lost
	}
	if len(b.kept)+len(p) > cap(b.kept) {
		if err := b.flushLocked(); err != nil {
			return 0, err
		}
	}
	if len(p) > cap(b.kept) {
		return b.Writer.Write(p)
	}
	b.kept = append(b.kept, p...)
	return len(p), nil
}

func (b *batch) flushLocked() error {
	if len(b.kept) == 0 {
		return b.lost
	}
	_, b.lost = b.Writer.Write(b.kept)
	b.kept = b.kept[:0]
	return b.lost
}
