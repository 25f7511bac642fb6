package protocol

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

const (
	// roomy is the number of queued bytes at which WaitForRoom waits.
	roomy = 8 << 20
	// flooded is the number of queued bytes at which the other side counts as lost.
	flooded = 1 << 30
	// batch is the number of bytes in one write.
	batch = 256 << 10
)

// ErrLinkClosed is the reason of a Link that was closed on purpose.
var ErrLinkClosed = errors.New("the link was closed")

// Link is one side of a session's connection: it sends messages from a queue, passes
// received messages to a function, keeps the connection alive, and notices when the other
// side is gone.
//
//	link := NewLink(conn)
//	err := link.Serve(handle) // until Close, Finish or a failure
type Link struct {
	conn io.ReadWriteCloser

	mu     sync.Mutex // guards the fields below
	room   sync.Cond  // signalled when the queue got shorter, or the link has ended
	queue  []Message
	queued int // approximate bytes in queue
	finish bool
	end    error // why the link has ended; nil while it is open

	wake chan struct{} // has capacity 1: there are messages to send, or the link has ended
	done chan struct{} // closed when end is set
}

// NewLink returns a Link over conn. The Link closes conn at its end.
func NewLink(conn io.ReadWriteCloser) *Link {
	l := &Link{conn: conn, wake: make(chan struct{}, 1), done: make(chan struct{})}
	l.room.L = &l.mu
	return l
}

// Send queues m without blocking. The caller must not change m afterwards. It fails if
// the link has ended, or m is too_large. A side that lets more than 1 GiB queue up counts
// as lost.
func (l *Link) Send(m Message) error {
	size := m.size()
	if size > MaxMessage-1<<10 {
		return cay.Errorf(cay.TooLarge, "%d bytes at one time are more than %d", size, MaxMessage-1<<10)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.end != nil {
		return l.end
	}
	if l.finish {
		return ErrLinkClosed
	}
	if l.queued+size > flooded {
		l.endLocked(cay.Errorf(cay.Unavailable, "the other side does not take what is sent: %d bytes wait", l.queued))
		return l.end
	}
	l.queue = append(l.queue, m)
	l.queued += size
	l.poke()
	return nil
}

// WaitForRoom waits while more than 8 MiB are queued.
func (l *Link) WaitForRoom() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.queued > roomy && l.end == nil {
		l.room.Wait()
	}
}

// Finish ends the link after the queued messages were sent.
func (l *Link) Finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finish = true
	l.poke()
}

// Close ends the link at once. Serve returns err, which may be nil.
func (l *Link) Close(err error) {
	if err == nil {
		err = ErrLinkClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(err)
}

// Done is closed when the link has ended.
func (l *Link) Done() <-chan struct{} { return l.done }

// endLocked ends the link. Only the first call sets the reason.
func (l *Link) endLocked(err error) {
	if l.end != nil {
		return
	}
	l.end = err
	l.queue, l.queued = nil, 0
	close(l.done)
	l.room.Broadcast()
	l.conn.Close() // the link has ended, so an error of Close does not matter
}

func (l *Link) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Serve passes messages other than Pings to handle until the link ends, and returns the
// reason; an error of handle ends the link. All goroutines of the link have ended when
// Serve returns.
func (l *Link) Serve(handle func(*Message) error) error {
	var writer sync.WaitGroup
	writer.Go(l.write)
	defer writer.Wait()

	silence := time.AfterFunc(Silence, func() {
		l.Close(cay.Errorf(cay.Unavailable, "the other side has been silent for %v", Silence))
	})
	defer silence.Stop()
	messages := NewMessageReader(readerFunc(func(p []byte) (int, error) {
		n, err := l.conn.Read(p)
		if n > 0 {
			silence.Reset(Silence)
		}
		return n, err
	}))
	for {
		m, err := messages.Next()
		if err == nil && m.Kind != KindPing {
			// While handle runs, nothing is read, so the silence is not the other side's.
			silence.Stop()
			err = handle(m)
			silence.Reset(Silence)
		}
		if err != nil {
			l.Close(err)
			return l.why()
		}
	}
}

func (l *Link) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// write sends queued messages, and Pings when the queue has been empty for a while.
func (l *Link) write() {
	stalled := time.AfterFunc(Silence, func() {
		l.Close(cay.Errorf(cay.Unavailable, "the other side has taken nothing for %v", Silence))
	})
	stalled.Stop()
	defer stalled.Stop()
	beat := time.NewTicker(Beat)
	defer beat.Stop()
	var buf []byte
	for {
		next, finish := l.take()
		idle := len(next) == 0
		if idle {
			if finish {
				l.Close(nil)
				return
			}
			select {
			case <-l.wake:
				continue
			case <-l.done:
				return
			case <-beat.C:
				next = []Message{{Kind: KindPing}}
			}
		}
		for i := range next {
			var err error
			if buf, err = AppendMessage(buf, &next[i]); err != nil {
				l.Close(err)
				return
			}
			if len(buf) < batch && i < len(next)-1 {
				continue
			}
			for rest := buf; len(rest) > 0; {
				stalled.Reset(Silence)
				n, err := l.conn.Write(rest[:min(len(rest), batch)])
				stalled.Stop()
				if err != nil {
					l.Close(err)
					return
				}
				rest = rest[n:]
			}
			if buf = buf[:0]; cap(buf) > 4*batch {
				buf = nil
			}
		}
		beat.Reset(Beat)
	}
}

// take takes the queued messages, and reports whether the link ends after them.
func (l *Link) take() ([]Message, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queue
	l.queue, l.queued = nil, 0
	l.room.Broadcast()
	return q, l.finish
}

// size estimates the encoded bytes of m, never too few.
func (m *Message) size() int {
	n := 64 + len(m.Run) + len(m.Body)
	if m.Info != nil {
		n += 1024 + len(m.Info.Workflow) + len(m.Info.Key) + len(m.Info.Group) + len(m.Info.CancelReason)
		for k, v := range m.Info.Attributes {
			n += 16 + len(k) + len(v)
		}
	}
	for i := range m.Events {
		e := &m.Events[i]
		n += 128 + len(e.ID) + len(e.Name) + len(e.Payload) + len(e.Input) + len(e.Token) + len(e.Key) + len(e.Code) + len(e.Reason)
		for k, v := range e.Attributes {
			n += 16 + len(k) + len(v)
		}
	}
	return n
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
