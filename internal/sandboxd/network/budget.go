package network

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The payload that connections hold before it has arrived is bounded, wherever it waits:
// in our stack, between a flow's two ends, and in the host's kernel. A connection begins
// with small windows, whose full size is counted when it opens, whether they are used or
// not. Each window doubles as bytes pass, while its sandbox and all sandboxes together
// are within their bounds; the socket enforces the window by itself. So a connection
// whose other end takes nothing stays small, and a fast connection is as fast as without
// bounds. When a bound is reached, a connection goes on slowly, or is refused.
const (
	// sandboxBudget is how many bytes the connections of one sandbox may hold;
	// growthBudget of these are for growth. The rest is for the first windows of
	// DefaultConnections connections, or of more connections if the operator allows more.
	sandboxBudget = DefaultConnections*connectionFloor + growthBudget
	growthBudget  = 64 << 20
	// The connections of all sandboxes may hold 1/budgetParts of the machine's memory, at
	// least leastBudget; 1/budgetGrowth of this is for growth. So the part in the kernel
	// stays below 1/16 of the memory, above which Linux begins to restrict all TCP
	// connections of the machine.
	budgetParts  = 8
	budgetGrowth = 4
	leastBudget  = 256 << 20
	// sureBudget is how many bytes a sandbox may hold in any case, however many bytes the
	// other sandboxes hold.
	sureBudget = 32 * connectionFloor
	// growthParts keeps the first windows from taking all growth: each step of a window
	// takes at most 1/growthParts of the available bytes.
	growthParts = 8
	// reclaimEvery is the least time between two calls of reclaim that shrink windows.
	reclaimEvery = time.Second
)

// The first and the largest sizes of windows, in bytes of memory.
const (
	// The guest is offered half of a window. The offer must hold a whole segment, because
	// after a loss the guest's stack waits for ever for space for the rest of a segment.
	// The window has a reserve: if the packet that opens the connection was lost, our
	// stack counts the next segment with data twice, permanently. The connection begins
	// with this size, because a larger offer later would cost a packet.
	leastFromGuest = 160 << 10
	leastToGuest   = 8 << 10
	leastFromHost  = 48 << 10 // the bytes that servers send before our first byte
	leastToHost    = 16 << 10
	// At least the sizes that Linux by itself gives a fast connection.
	mostFromHost = 8 << 20
	mostToHost   = 4 << 20
)

const (
	// connectionFloor is counted for a connection when it opens, in bytes: its windows, a
	// piece that the kernel takes beyond its window, and a buffer for each direction.
	connectionFloor = leastFromGuest + leastToGuest + leastFromHost + leastToHost + smallBuffer + 2*smallBuffer
	// packetFloor is counted for a UDP flow, in bytes: a datagram in each direction, and
	// the datagrams that wait in the kernel.
	packetFloor  = 2*datagramBuffer + leastPackets
	leastPackets = 64 << 10
	mostPackets  = 256 << 10
)

// budget counts the bytes that the connections of all links hold, and bounds them.
type budget struct {
	size         int64 // of all shares together, beyond sure
	each, growth int64 // of a link, at most
	sure         int64 // of a link, however much the other links hold

	mu        sync.Mutex // guards what follows, and the shares
	used      int64
	grown     int64 // part of used
	shares    map[*share]struct{}
	reclaimed time.Time
}

// newBudget returns the budget of sandboxes that may have the given number of connections.
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

// share is a link's part of the budget. It can grow to the size that is left for all
// other links together.
type share struct {
	of *budget

	used      int64
	growth    int64 // part of used
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

// close gives back the whole share, when its connections have ended.
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

// roomLocked returns how many bytes the share can grow by. own reports whether the
// sandbox's own bound, and not the bound of all sandboxes, decides that.
func (s *share) roomLocked() (n int64, own bool) {
	left := s.of.size - s.of.used
	return min(s.of.each, max(left, s.of.sure)) - s.used, s.of.each <= left
}

// ownBound reports whether the sandbox's own bound limits the share's growth.
func (s *share) ownBound() bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	_, own := s.roomLocked()
	return own
}

// take adds n bytes to the share, for a connection, until give. It returns false
// if a bound would be exceeded.
func (s *share) take(n int64) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if room, _ := s.roomLocked(); s.closed || n > room {
		return false
	}
	s.addLocked(n)
	return true
}

// takeSpare is take for optional buffers: it leaves half of the possible size of the
// share to connections that open.
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

// grow is take for bytes that make a connection faster: they count as growth, too.
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

// makeRoom shrinks windows that are larger than their use if there is no room for n bytes.
func (s *share) makeRoom(n int64) {
	s.of.mu.Lock()
	room, _ := s.roomLocked()
	s.of.mu.Unlock()
	if n > room {
		s.reclaim()
	}
}

// reclaim shrinks windows, at most once in reclaimEvery: the sandbox's windows if its own
// bound is reached, else the windows of all sandboxes. The caller must not hold a
// window's lock.
func (s *share) reclaim() {
	b := s.of
	b.mu.Lock()
	_, own := s.roomLocked()
	// The scarce resource may also be the growth of all sandboxes.
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
	parts       int64                  // the window grows when 1/parts of its size has passed
	resize      func(size int64) error // makes the socket keep to a size
	taking      bool                   // held bytes have passed already, but not arrived
	held        func() (n int64)       // returns the bytes that the socket holds

	mu     sync.Mutex // guards what follows
	size   int64
	taken  int64 // of the share; size-least, or more if more than size may still be held
	passed int64 // since the last change of size
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
	_ = w.resize(size) // succeeded in open, so it fails only if the socket has ended
}

// use counts n bytes that have passed through the window.
func (w *window) use(n int) {
	if w == nil || n <= 0 {
		return
	}
	if !w.count(int64(n)) {
		w.share.reclaim()
	}
}

// count returns false if the window should grow but a bound forbids it.
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

// shrink halves a window through which less than its size has passed since the last call.
// Bytes that the socket holds beyond the new size stay counted until they have left.
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

// keepLocked gives back all but n of the bytes that the window took.
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

// close gives back the bytes that the window took, when the socket holds nothing any
// more.
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
