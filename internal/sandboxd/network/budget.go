package network

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// What connections hold of payload that has not arrived yet is bounded, wherever
// it waits: in our stack, between a flow's two ends, and in the host's kernel. A
// connection begins with little, which is counted when it opens whether it holds
// anything or not. Each of its windows doubles as bytes pass, while there is room
// in what its sandbox and all sandboxes together may hold; the socket keeps to
// its window by itself. So a connection whose other end takes nothing stays small,
// a fast one is as fast as without bounds, and where there is no room a connection
// goes on slowly, or is refused.
const (
	// sandboxBudget is what the connections of one sandbox may hold, in bytes, and
	// growthBudget what of it is for growth: the rest is for DefaultConnections, or
	// as many more as the operator allows.
	sandboxBudget = DefaultConnections*connectionFloor + growthBudget
	growthBudget  = 64 << 20
	// Those of all sandboxes may hold one part in budgetParts of the machine's
	// memory, and leastBudget in any case; of that, one part in budgetGrowth is for
	// growth. So what of it is in the kernel stays below a sixteenth of the memory,
	// from where on Linux is sparing with it for all TCP connections of the machine.
	budgetParts  = 8
	budgetGrowth = 4
	leastBudget  = 256 << 20
	// sureBudget is what a sandbox may hold however much the others do.
	sureBudget = 32 * connectionFloor
	// growthParts keeps the first windows from taking all: one grows by no more than
	// one part of the room there is.
	growthParts = 8
	// reclaimEvery is how often windows that are too large for their use give room
	// back, if there is none.
	reclaimEvery = time.Second
)

// What a window is at first and at most, in bytes of memory.
const (
	// The guest is offered half of a window. That has to be a whole segment: after a
	// loss its stack waits for ever for room for what is left of one. There is some
	// to spare, since ours counts a segment twice, for good, that brings data where
	// the packet which opens the connection was lost. It is what a connection begins
	// with, too: one that was offered more later would be told so by a packet.
	leastFromGuest = 160 << 10
	leastToGuest   = 8 << 10
	leastFromHost  = 48 << 10 // what servers send before they hear from us
	leastToHost    = 16 << 10
	// What Linux gives a fast connection by itself, or more.
	mostFromHost = 8 << 20
	mostToHost   = 4 << 20
)

const (
	// connectionFloor is what a connection counts when it opens: its windows, a
	// piece that the kernel takes beyond its own, and a buffer for each direction.
	connectionFloor = leastFromGuest + leastToGuest + leastFromHost + leastToHost + smallBuffer + 2*smallBuffer
	// packetFloor is what a UDP flow counts: a datagram in each direction, and what
	// waits in the kernel.
	packetFloor  = 2*datagramBuffer + leastPackets
	leastPackets = 64 << 10
	mostPackets  = 256 << 10
)

// budget is what the connections of all links hold.
type budget struct {
	size         int64 // of all together, but for what is sure
	each, growth int64 // of a link, at most
	sure         int64 // of a link, whatever the others have

	mu        sync.Mutex // guards what follows, and the shares
	used      int64
	grown     int64 // of it
	shares    map[*share]struct{}
	reclaimed time.Time
}

// newBudget returns the budget of sandboxes that may have so many connections.
func newBudget(connections int) (*budget, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return nil, fmt.Errorf("read the size of the machine's memory: %w", err)
	}
	memory := int64(info.Totalram) * int64(info.Unit)
	return &budget{
		size: max(memory/budgetParts, leastBudget),
		each: sandboxBudget + max(0, int64(connections)-DefaultConnections)*connectionFloor, growth: growthBudget,
		sure: sureBudget, shares: map[*share]struct{}{},
	}, nil
}

// share is a link's part of the budget. It can be as large as what is left for
// all others together.
type share struct {
	of *budget

	used      int64
	growth    int64 // of it
	grown     map[*window]struct{}
	reclaimed time.Time
	closed    bool
}

func (b *budget) newShare() *share {
	s := &share{of: b, grown: map[*window]struct{}{}}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shares[s] = struct{}{}
	return s
}

// close gives back all of a share, when its connections have ended.
func (s *share) close() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.of.used -= s.used
	s.of.grown -= s.growth
	s.used, s.growth = 0, 0
	clear(s.grown)
	delete(s.of.shares, s)
}

// roomLocked is how many bytes the share can grow by, and whether it is the
// sandbox's own bound that says so.
func (s *share) roomLocked() (n int64, own bool) {
	left := s.of.size - s.of.used
	return min(s.of.each, max(left, s.of.sure)) - s.used, s.of.each <= left
}

// ownBound reports whether the sandbox's own bound is what the share can grow to.
func (s *share) ownBound() bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	_, own := s.roomLocked()
	return own
}

// take adds n bytes to the share, for a connection, until give. It returns false
// if there is no room.
func (s *share) take(n int64) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if room, _ := s.roomLocked(); s.closed || n > room {
		return false
	}
	s.addLocked(n)
	return true
}

// takeSpare is take for what connections can do without: half of what the share can
// be is left to those that open.
func (s *share) takeSpare(n int64) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	room, _ := s.roomLocked()
	if s.closed || s.used+n > (s.used+room)/2 {
		return false
	}
	s.addLocked(n)
	return true
}

// give returns n bytes.
func (s *share) give(n int64) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.addLocked(-n)
}

func (s *share) addLocked(n int64) {
	if s.closed {
		return // all is given back
	}
	s.used += n
	s.of.used += n
}

// grow is take for what makes a connection faster.
func (s *share) grow(n int64) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.growLocked(n)
}

func (s *share) growLocked(n int64) bool {
	room, _ := s.roomLocked()
	room = min(room, s.of.growth-s.growth, s.of.size/budgetGrowth-s.of.grown)
	if s.closed || n > room/growthParts {
		return false
	}
	s.growth += n
	s.of.grown += n
	s.addLocked(n)
	return true
}

// shrink returns n bytes of growth.
func (s *share) shrink(n int64) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if !s.closed {
		s.growth -= n
		s.of.grown -= n
	}
	s.addLocked(-n)
}

// makeRoom has windows give back what they do not need if there is no room for n
// bytes.
func (s *share) makeRoom(n int64) {
	s.of.mu.Lock()
	room, _ := s.roomLocked()
	s.of.mu.Unlock()
	if n > room {
		s.reclaim()
	}
}

// reclaim shrinks windows, from time to time: those of the sandbox if its own
// bound is reached, else of all. It is called without a window's lock.
func (s *share) reclaim() {
	b := s.of
	b.mu.Lock()
	_, own := s.roomLocked()
	// What is short may also be room for growth.
	own = own && s.of.growth-s.growth <= b.size/budgetGrowth-b.grown
	last, shares := &b.reclaimed, b.shares
	if own {
		last, shares = &s.reclaimed, map[*share]struct{}{s: {}}
	}
	var grown []*window
	if now := time.Now(); now.Sub(*last) >= reclaimEvery {
		*last = now
		for s := range shares {
			for w := range s.grown {
				grown = append(grown, w)
			}
		}
	}
	b.mu.Unlock()
	for _, w := range grown {
		w.shrink()
	}
}

// window bounds what a socket holds in one direction. A nil window bounds
// nothing.
type window struct {
	share       *share
	least, most int64                  // sizes in bytes; least is counted already
	parts       int64                  // it grows when one part in so many of its size has passed
	resize      func(size int64) error // makes the socket keep to a size
	taking      bool                   // what is held has passed, but not arrived
	held        func() (n int64)       // is what the socket holds

	mu     sync.Mutex // guards what follows
	size   int64
	taken  int64 // of the share; size-least, or more if more than size may still be held
	passed int64 // since its size changed
	lately int64 // passed since it was last asked to shrink
	closed bool
}

// open makes the socket keep to the least size.
func (w *window) open() error {
	w.size = w.least
	return w.resize(w.size)
}

// resizeLocked changes the size.
func (w *window) resizeLocked(size int64) {
	w.size, w.passed = size, 0
	_ = w.resize(size) // what open could do fails only if the socket has ended
}

// use says that n bytes have passed.
func (w *window) use(n int) {
	if w == nil || n <= 0 {
		return
	}
	if !w.count(int64(n)) {
		w.share.reclaim()
	}
}

// count returns false if the window should grow and there is no room.
func (w *window) count(n int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passed += n
	w.lately += n
	if w.closed || w.size >= w.most || w.passed < w.size/w.parts {
		return true
	}
	if w.taking && w.passed < w.size+w.held() {
		return true // the other end has not taken as much
	}
	size := min(2*w.size, w.most)
	if more := size - w.least - w.taken; more > 0 && !w.takeLocked(more) {
		w.passed = 0
		return false
	}
	w.resizeLocked(size)
	return true
}

// shrink halves a window through which less than its size has passed since the
// last time. What the socket still holds beyond it is given back when it has left.
func (w *window) shrink() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	if w.lately < w.size && w.size > w.least {
		w.resizeLocked(max(w.size/2, w.least))
	}
	w.lately = 0
	if w.taken > w.size-w.least && w.held() <= w.size {
		w.keepLocked(w.size - w.least)
	}
}

func (w *window) takeLocked(n int64) bool {
	b := w.share.of
	b.mu.Lock()
	defer b.mu.Unlock()
	if !w.share.growLocked(n) {
		return false
	}
	w.taken += n
	w.share.grown[w] = struct{}{}
	return true
}

// keepLocked gives back all but n bytes of what was taken.
func (w *window) keepLocked(n int64) {
	w.share.shrink(w.taken - n)
	w.taken = n
	if n > 0 {
		return
	}
	b := w.share.of
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(w.share.grown, w)
}

// now is the window's size.
func (w *window) now() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.size
}

// close gives back what was taken, when the socket holds nothing any more.
func (w *window) close() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.closed = true
		w.keepLocked(0)
	}
}
