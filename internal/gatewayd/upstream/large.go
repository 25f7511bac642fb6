package upstream

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// maxJoined is how many bytes of a large body are sent in one write with the head.
const maxJoined = 16 << 10

// A Transport takes no more CPU time for large requests (cay-bench gateway, prompt_200k),
// but it returns a broken pipe where a server answers, for example with 413, and closes
// the connection without reading the whole request; here the caller gets the answer.

// writing is a large request being written. A separate goroutine writes it, because a
// server may answer without reading the whole request, and stop reading until its answer
// is read.
type writing struct {
	cn   *conn
	head *[]byte // nil after it was sent
	left int64   // bytes of the body
	sent atomic.Bool
	done chan struct{}

	mu       sync.Mutex // guards the following fields
	answered bool       // the caller no longer waits for the head of an answer
	err      error      // why the request was not written completely
}

// large reports whether a request is written concurrently with reading its answer. Its
// body is in memory, so that only the connection can block the writer.
func large(r *http.Request) bool { return r.ContentLength > maxBody }

// begin starts writing a request, and closes its body at the end.
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

// Write writes bytes of the body; it implements io.Writer.
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

// fail records why the request was not written completely. The server may have sent the
// reason why it stopped reading.
func (w *writing) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	if !w.answered {
		_ = w.cn.net.SetReadDeadline(time.Now().Add(early))
	}
}

// answer records that the head of an answer has arrived, or that there is no answer, and
// returns the write error if one is known.
func (w *writing) answer() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered = true
	return w.err
}

// end waits up to early for the writer, which has usually finished before the answer, and
// reports whether the whole request was written.
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
