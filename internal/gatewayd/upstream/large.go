package upstream

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// maxJoined is how much of a large body is sent together with the head, in bytes.
const maxJoined = 16 << 10

// writing is a large request on its way. A goroutine of its own writes it, because a
// server may answer what it has not read, and wait until its answer is taken.
type writing struct {
	cn   *conn
	head *[]byte // nil once it was sent
	left int64   // bytes of the body
	sent atomic.Bool
	done chan struct{}

	mu       sync.Mutex // guards what follows
	answered bool       // nobody waits for the head of an answer any more
	err      error      // why it was not written whole
}

// large reports whether a request is one to be written while its answer is looked for.
// Its body is in memory, so that nothing but the connection is waited for.
func large(r *http.Request) bool { return r.ContentLength > maxBody }

// begin begins to write a request, whose body is closed at the end.
func (cn *conn) begin(r *http.Request, head *[]byte) *writing {
	w := &writing{cn: cn, head: head, left: r.ContentLength, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		_, err := r.Body.(io.WriterTo).WriteTo(w)
		if err == nil && w.left != 0 {
			err = errLength
		}
		if w.head != nil {
			keep(w.head)
		}
		if err != nil {
			w.fail(err)
		}
		closeBody(r)
	}()
	return w
}

// Write implements io.Writer, for the body.
func (w *writing) Write(p []byte) (n int, err error) {
	if int64(len(p)) > w.left {
		return 0, errLength
	}
	if w.head != nil && len(p) > 0 {
		n = min(len(p), maxJoined)
		head := len(*w.head)
		*w.head = append(*w.head, p[:n]...)
		m, err := w.write(*w.head)
		if err != nil {
			return max(0, m-head), err
		}
		keep(w.head)
		w.head = nil
	}
	if len(p) > n {
		var m int
		m, err = w.write(p[n:])
		n += m
	}
	w.left -= int64(n)
	return n, err
}

func (w *writing) write(p []byte) (int, error) {
	n, err := w.cn.net.Write(p)
	if n > 0 {
		w.sent.Store(true)
	}
	return n, err
}

// fail notes why the request was not written whole. The server may have said why it
// does not read on.
func (w *writing) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	if !w.answered {
		_ = w.cn.net.SetReadDeadline(time.Now().Add(early))
	}
}

// answer notes that the head of an answer is there, or that there is none, and returns
// why the request was not written whole, if that is known.
func (w *writing) answer() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered = true
	return w.err
}

// end waits for the end of what is written, which an answer usually comes after, and
// reports whether all of it is.
func (w *writing) end() bool {
	select {
	case <-w.done:
	default:
		t := time.NewTimer(early)
		defer t.Stop()
		select {
		case <-w.done:
		case <-t.C:
			return false
		}
	}
	return w.answer() == nil
}
