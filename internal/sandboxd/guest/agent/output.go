package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
)

// outputs keeps the output of commands, in memory, within a bound for each command and a
// bound for all commands together. Room is made, in this order, by
//
//  1. forgetting the oldest bytes of the command itself, if it is at its own bound;
//  2. forgetting output of finished commands, the longest finished first;
//  3. forgetting the oldest bytes of the running command that keeps most.
//
// Bytes that a reader has still to read are claimed: they are not forgotten but hold up
// the writer, and with it the command, until the reader has them. A reader that reads
// nothing while it holds up a writer for Limits.Stall loses its claim until it reads
// again. However much other commands keep, each command may keep floor bytes, so that the
// claims of other commands hold up no command for ever.
type outputs struct {
	limits Limits

	mu       sync.Mutex // guards everything below, and the logs
	total    int64      // bytes kept, with bookkeeping
	running  map[*outputLog]struct{}
	finished []*outputLog  // longest finished first
	changed  chan struct{} // closed when a writer may find room; nil if no writer waits
}

const (
	// segmentCost is the bookkeeping cost that is added to the bytes of a segment.
	segmentCost = 96
	// markCost is the same for a mark of a segment.
	markCost = 16
	// markEvery is how exactly the times of a segment's bytes are kept.
	markEvery = 10 * time.Millisecond
	// floor is how many bytes every running command may keep.
	floor = 32 << 10
	// maxArena bounds the blocks that hold small writes.
	maxArena = 16 << 10
	// drainSlack is how many bytes a command may exceed its bound by after its exit, so
	// that a reader does not hold up the bytes in the command's pipes (64 KiB each) and
	// the bytes just read from them (as many).
	drainSlack = 320 << 10
)

func newOutputs(l Limits) *outputs {
	return &outputs{limits: l, running: map[*outputLog]struct{}{}}
}

// outputLog is one command's output: segments in the order in which they were read from
// the command. If bytes were lost because there was no room, the next segment's cursor is
// beyond the end of the segment before. All fields are guarded by outputs.mu.
type outputLog struct {
	all       *outputs
	segments  []segment
	start     int64 // cursor of the first byte kept
	end       int64 // cursor after the last byte
	size      int64 // bytes kept, with bookkeeping
	arena     []byte
	readers   []*outputReader
	draining  bool          // the process has exited; see drainSlack
	closed    bool          // the command is done; its children may still write
	forgotten bool          // the output cannot be read any more
	changed   chan struct{} // closed when there is more to read; nil if no reader waits
}

// segment is a run of bytes of one stream. The bytes never change.
type segment struct {
	kind   guest.Kind // KindStdout or KindStderr
	cursor int64
	data   []byte
	at     int64  // when the first byte was read from the command, in nanoseconds since 1970
	marks  []mark // times of later bytes, in order
}

// mark says when the bytes of a segment from cursor on were read from the command.
type mark struct{ cursor, at int64 }

func (s segment) cost() int64 { return int64(len(s.data)) + segmentCost + markCost*int64(len(s.marks)) }
func (s segment) end() int64  { return s.cursor + int64(len(s.data)) }

// latest returns the time of the segment's last bytes.
func (s segment) latest() int64 {
	if n := len(s.marks); n > 0 {
		return s.marks[n-1].at
	}
	return s.at
}

// byTime returns the segment in parts whose bytes have one time each.
func (s segment) byTime() []segment {
	var parts []segment
	rest := s
	rest.marks = nil
	for _, m := range s.marks {
		if n := m.cursor - rest.cursor; n > 0 {
			part := rest
			part.data = rest.data[:n]
			parts = append(parts, part)
			rest.cursor, rest.data = m.cursor, rest.data[n:]
		}
		rest.at = m.at
	}
	return append(parts, rest)
}

func (o *outputs) newLog() *outputLog {
	l := &outputLog{all: o}
	o.mu.Lock()
	o.running[l] = struct{}{}
	o.mu.Unlock()
	return l
}

// append adds bytes to the log, and waits while there is no room. If keep is set the log
// may keep data itself, which must not change any more. If abandon is closed before there
// is room, the bytes are lost, readers learn of the loss, and append returns false.
func (l *outputLog) append(kind guest.Kind, data []byte, keep bool, abandon <-chan struct{}) bool {
	o := l.all
	o.mu.Lock()
	defer o.mu.Unlock()
	room := o.makeRoomLocked(l, int64(len(data))+segmentCost)
	for !room && o.waitLocked(l, abandon) {
		room = o.makeRoomLocked(l, int64(len(data))+segmentCost)
	}
	switch {
	case l.forgotten:
		return false
	case room:
		l.addLocked(kind, data, keep)
	default:
		l.end += int64(len(data))
	}
	if room && l.closed && !slices.Contains(o.finished, l) { // it was empty
		o.finished = append(o.finished, l)
	}
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	return room
}

func (l *outputLog) addLocked(kind guest.Kind, data []byte, keep bool) {
	n, now := int64(len(data)), max(time.Now().UnixNano(), 0)
	if !keep {
		if cap(l.arena)-len(l.arena) < len(data) {
			// Each block is twice as large as the block before, so that the many commands
			// with little output need little.
			l.arena = make([]byte, 0, max(len(data), min(2*cap(l.arena), maxArena), 512))
		}
		at := len(l.arena)
		l.arena = append(l.arena, data...)
		data = l.arena[at:len(l.arena):len(l.arena)]
		if i := len(l.segments) - 1; i >= 0 && at > 0 && l.segments[i].kind == kind && l.segments[i].end() == l.end {
			// The preceding bytes in the block belong to the last segment, unless that
			// segment has memory of its own.
			last := &l.segments[i]
			if from := at - len(last.data); from >= 0 && &last.data[0] == &l.arena[from] {
				last.data = l.arena[from:len(l.arena):len(l.arena)]
				cost := n
				if d := time.Duration(now - last.latest()); d < 0 || d >= markEvery { // the clock can be set back
					last.marks = append(last.marks, mark{l.end, now})
					cost += markCost
				}
				l.grewLocked(n, cost)
				return
			}
		}
	}
	l.segments = append(l.segments, segment{kind: kind, cursor: l.end, data: data, at: now})
	l.grewLocked(n, n+segmentCost)
}

func (l *outputLog) grewLocked(n, cost int64) {
	l.end += n
	l.size += cost
	l.all.total += cost
}

// makeRoomLocked makes room for cost more bytes in l, if possible.
func (o *outputs) makeRoomLocked(l *outputLog, cost int64) bool {
	limit := o.limits.CommandOutput
	if l.draining {
		limit += drainSlack
	}
	for l.size+cost > limit && l.size > 0 {
		if !l.dropLocked() {
			return false
		}
	}
	shared := o.limits.AllOutput - min(int64(o.limits.Running)*floor, o.limits.AllOutput/4)
	for o.total+cost > shared {
		if !o.dropAnyLocked() {
			return l.size+cost <= floor
		}
	}
	return true
}

func (o *outputs) dropAnyLocked() bool {
	for i, l := range o.finished {
		if l.dropLocked() {
			if l.size == 0 {
				o.finished = append(o.finished[:i], o.finished[i+1:]...)
			}
			return true
		}
	}
	var largest *outputLog
	for l := range o.running {
		if l.size > floor && (largest == nil || l.size > largest.size) && !l.claimedLocked() {
			largest = l
		}
	}
	return largest != nil && largest.dropLocked()
}

// dropLocked forgets the oldest segment, if it is not claimed.
func (l *outputLog) dropLocked() bool {
	if len(l.segments) == 0 || l.claimedLocked() {
		return false
	}
	s := l.segments[0]
	l.segments[0] = segment{}
	l.segments = l.segments[1:]
	l.start = s.end()
	l.size -= s.cost()
	l.all.total -= s.cost()
	return true
}

// claimedLocked reports whether a reader has a claim on the oldest segment, and records
// since when the reader holds up a writer.
func (l *outputLog) claimedLocked() bool {
	if len(l.segments) == 0 {
		return false
	}
	claimed := false
	for _, r := range l.readers {
		if r.cursor >= l.segments[0].end() {
			continue
		}
		if r.stalledAt.IsZero() {
			r.stalledAt = time.Now()
		}
		if time.Since(r.stalledAt) < l.all.limits.Stall {
			claimed = true
		}
	}
	return claimed
}

// waitLocked waits until l may find room. It returns false if abandon was closed.
func (o *outputs) waitLocked(l *outputLog, abandon <-chan struct{}) bool {
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	changed := o.changed
	expiry := time.NewTimer(o.nextExpiryLocked())
	o.mu.Unlock()
	defer o.mu.Lock()
	defer expiry.Stop()
	select {
	case <-changed:
	case <-expiry.C:
	case <-abandon:
		return false
	}
	return true
}

// nextExpiryLocked returns the time until the first reader that holds up a writer loses
// its claim.
func (o *outputs) nextExpiryLocked() time.Duration {
	wait := o.limits.Stall
	look := func(l *outputLog) {
		for _, r := range l.readers {
			if !r.stalledAt.IsZero() {
				if left := o.limits.Stall - time.Since(r.stalledAt); left > 0 {
					wait = min(wait, left)
				}
			}
		}
	}
	for l := range o.running {
		look(l)
	}
	for _, l := range o.finished {
		look(l)
	}
	return wait
}

func (o *outputs) wakeWritersLocked() {
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
}

// drain says that the command's process has exited.
func (l *outputLog) drain() {
	l.all.mu.Lock()
	l.draining = true
	l.all.wakeWritersLocked()
	l.all.mu.Unlock()
}

// close records that the command is done: readers do not wait any more.
func (l *outputLog) close() {
	o := l.all
	o.mu.Lock()
	defer o.mu.Unlock()
	l.closed = true
	l.arena = nil
	delete(o.running, l)
	if l.size > 0 {
		o.finished = append(o.finished, l)
	}
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	o.wakeWritersLocked()
}

// forget drops a closed log's output, even if it has readers.
func (l *outputLog) forget() {
	o := l.all
	o.mu.Lock()
	defer o.mu.Unlock()
	o.total -= l.size
	l.size, l.segments, l.start, l.forgotten = 0, nil, l.end, true
	for i, f := range o.finished {
		if f == l {
			o.finished = append(o.finished[:i], o.finished[i+1:]...)
			break
		}
	}
	o.wakeWritersLocked()
}

func (l *outputLog) bounds() (start, end int64) {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	return l.start, l.end
}

// outputReader reads a log from a cursor. Until it is closed, it has a claim on all bytes
// that it has not read.
type outputReader struct {
	log       *outputLog
	cursor    int64     // guarded by outputs.mu; of the next byte to read
	stalledAt time.Time // guarded by outputs.mu; since when it holds up a writer
}

// reader returns a reader that starts at cursor. Errors: invalid.
func (l *outputLog) reader(cursor int64) (*outputReader, error) {
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	if cursor < 0 || cursor > l.end {
		return nil, cay.Errorf(cay.Invalid, "cursor %d is beyond the output's end at %d", cursor, l.end)
	}
	r := &outputReader{log: l, cursor: cursor}
	l.readers = append(l.readers, r)
	return r, nil
}

// read returns the next segments, of at most batch bytes together. With follow it waits
// for segments. truncated means that bytes before the first segment, or without segments
// before the cursor, are lost. Without segments, truncated and error, all was read. The
// caller confirms that it has read the segments by calling advance with the cursor after
// them.
func (r *outputReader) read(ctx context.Context, follow bool) (segs []segment, truncated bool, err error) {
	l, o := r.log, r.log.all
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		if r.cursor < l.start {
			r.cursor, truncated = l.start, true
		}
		segs = l.fromLocked(r.cursor)
		next := l.end
		if len(segs) > 0 {
			next = segs[0].cursor
		}
		if r.cursor < next { // the bytes between were lost
			r.cursor, truncated = next, true
		}
		if len(segs) > 0 || truncated || l.closed || !follow {
			return segs, truncated, nil
		}
		if l.waitLocked(ctx); ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
	}
}

// await waits until there are bytes to read, or the command is done. It returns false if
// ctx ended or d passed first.
func (r *outputReader) await(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	l := r.log
	l.all.mu.Lock()
	defer l.all.mu.Unlock()
	for r.cursor == l.end && !l.closed && ctx.Err() == nil {
		l.waitLocked(ctx)
	}
	return r.cursor < l.end || l.closed
}

// waitLocked waits until the log has changed, or ctx has ended.
func (l *outputLog) waitLocked(ctx context.Context) {
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	changed := l.changed
	l.all.mu.Unlock()
	defer l.all.mu.Lock()
	select {
	case <-changed:
	case <-ctx.Done():
	}
}

// batch is about how many bytes are sent between two flushes.
const batch = 256 << 10

// fromLocked returns consecutive segments from a cursor, or from the first segment after
// it if the bytes there were lost.
func (l *outputLog) fromLocked(cursor int64) []segment {
	// Most readers are near the end or at the start; a binary search is fast for both.
	lo, hi := 0, len(l.segments)
	for lo < hi {
		if mid := (lo + hi) / 2; l.segments[mid].end() <= cursor {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	var out []segment
	for n := 0; lo < len(l.segments) && n < batch; lo++ {
		s := l.segments[lo]
		if skip := cursor - s.cursor; skip > 0 {
			s.cursor, s.data = cursor, s.data[skip:]
		}
		if len(out) > 0 && out[len(out)-1].end() != s.cursor {
			break
		}
		n += len(s.data)
		out = append(out, s)
	}
	return out
}

// advance records that all bytes before cursor have been read.
func (r *outputReader) advance(cursor int64) {
	r.log.all.mu.Lock()
	r.cursor, r.stalledAt = cursor, time.Time{}
	r.log.all.wakeWritersLocked()
	r.log.all.mu.Unlock()
}

func (r *outputReader) close() {
	o := r.log.all
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, other := range r.log.readers {
		if other == r {
			r.log.readers = append(r.log.readers[:i], r.log.readers[i+1:]...)
			break
		}
	}
	o.wakeWritersLocked()
}
