package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/cayhq/cay"
)

// bodySource is a request body that records whether it was used, released or
// failed. The transport may continue to read a body after it has returned;
// release makes that harmless.
type bodySource struct {
	r       io.Reader
	want    int64 // 0: unknown
	read    int64 // so far; reads come one at a time
	patient *patientReader

	mu   sync.Mutex // guards what follows
	used bool
	gone bool
	err  error // of r, or a length that is not want
}

// newBodySource returns a source of r, which may be nil. want is as in
// Request.Length.
func newBodySource(ctx context.Context, r io.Reader, want int64) *bodySource {
	b := &bodySource{r: r, want: want}
	if r != nil && !prompt(r) {
		b.patient = newPatientReader(ctx, r)
		b.r = b.patient
	}
	return b
}

func (b *bodySource) Read(p []byte) (int, error) {
	b.mu.Lock()
	gone := b.gone
	b.used = true
	b.mu.Unlock()
	if gone {
		return 0, errOver
	}
	n, err := b.r.Read(p)
	if b.want > 0 && err == nil && b.read+int64(n) == b.want {
		// Hold the last bytes back until the reader has ended without an error:
		// once they are sent, the daemon may answer that the request succeeded.
		var more [1]byte
		var m int
		for m == 0 && err == nil {
			m, err = b.r.Read(more[:])
		}
		b.read += int64(m)
	}
	b.read += int64(n)
	if b.want > 0 && (b.read > b.want || err == io.EOF && b.read < b.want) {
		err = cay.Errorf(cay.Invalid, "the content is not the %d bytes that were announced", b.want)
	}
	if err != nil && err != io.EOF {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.err = err
		return 0, err
	}
	return n, err
}

var errOver = errors.New("the request is over")

func (b *bodySource) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = true
	if b.patient != nil {
		b.patient.stop()
	}
}

func (b *bodySource) touched() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// failure returns the reader's error. An error after the end of the request's
// context is not the reader's: failure returns nil.
func (b *bodySource) failure() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.patient != nil && b.patient.ctx.Err() != nil {
		return nil
	}
	return b.err
}

// prompt reports whether reading r is always fast.
func prompt(r io.Reader) bool {
	switch r := r.(type) {
	case *bytes.Reader, *bytes.Buffer, *strings.Reader:
		return true
	case *os.File:
		fi, err := r.Stat()
		return err == nil && fi.Mode().IsRegular()
	}
	return false
}

// patientReader reads a reader that may block for any time, such as a terminal,
// on a goroutine of its own, because the transport does not return before a
// Read of the body does. It reads only when the transport asks, never ahead. If
// the request ends during a Read, the goroutine stays until the Read returns,
// and the bytes of that Read are lost.
type patientReader struct {
	ctx   context.Context // of the request
	r     io.Reader
	start sync.Once
	asked chan struct{}   // a Read is wanted
	given chan readResult // the result; buffered, so that sending never blocks
	left  []byte          // read, not yet taken

	end  sync.Once
	over chan struct{} // closed by stop
}

type readResult struct {
	data []byte
	err  error
}

const patientBuffer = 128 << 10

func newPatientReader(ctx context.Context, r io.Reader) *patientReader {
	return &patientReader{ctx: ctx, r: r, asked: make(chan struct{}), given: make(chan readResult, 1), over: make(chan struct{})}
}

func (p *patientReader) Read(b []byte) (int, error) {
	p.start.Do(func() { go p.run() })
	if len(p.left) == 0 {
		select {
		case p.asked <- struct{}{}:
		case <-p.ctx.Done():
			return 0, p.ctx.Err()
		case <-p.over:
			return 0, errOver
		}
		select {
		case got := <-p.given:
			if len(got.data) == 0 {
				return 0, got.err
			}
			p.left = got.data // with data an error waits for the next Read
		case <-p.ctx.Done():
			return 0, p.ctx.Err()
		case <-p.over:
			return 0, errOver
		}
	}
	n := copy(b, p.left)
	p.left = p.left[n:]
	return n, nil
}

// run reads once for each request.
func (p *patientReader) run() {
	buf := make([]byte, patientBuffer)
	var err error
	for {
		select {
		case <-p.asked:
		case <-p.ctx.Done():
			return
		case <-p.over:
			return
		}
		var n int
		if err == nil {
			n, err = p.r.Read(buf)
		}
		p.given <- readResult{buf[:n], err}
		if n == 0 && err != nil {
			return
		}
	}
}

// stop makes further Reads fail.
func (p *patientReader) stop() { p.end.Do(func() { close(p.over) }) }

// releasing releases a source when the answer to its request is closed.
type releasing struct {
	io.ReadCloser
	src *bodySource
}

func (r releasing) Close() error {
	r.src.release()
	return r.ReadCloser.Close()
}
