package imaged

import (
	"context"
	"io"
	"net/http"
	"sync"

	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

// serveProgress streams the progress of work; the last line has the phase "done" and the
// image.
func serveProgress(w http.ResponseWriter, r *http.Request, work func(context.Context, func(sandbox.ImageProgress)) (*sandbox.Image, error)) error {
	ctx, cancel := context.WithCancel(r.Context())
	p := &progress{cancel: cancel, wake: make(chan struct{}, 1), finished: make(chan struct{})}
	go func() {
		img, err := work(ctx, p.report)
		p.finish(img, err)
	}()
	return api.ServeLines(w, r, p, api.JSONLines[sandbox.ImageProgress]{})
}

// progress turns progress calls into values to be read. A slow client misses steps, but
// never the last step.
type progress struct {
	cancel   context.CancelFunc
	wake     chan struct{} // one token: something changed
	finished chan struct{} // closed when the work has ended

	mu    sync.Mutex // guards what follows
	steps []sandbox.ImageProgress
	done  bool
	err   error // with done: how it ended, or io.EOF
}

// maxSteps is how many steps wait for a slow client.
const maxSteps = 64

func (p *progress) report(s sandbox.ImageProgress) {
	if s.Phase == phaseDone {
		return // finish says so, with the image
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.steps) == maxSteps {
		p.steps = append(p.steps[:0], p.steps[1:]...)
	}
	p.steps = append(p.steps, s)
	p.notify()
}

const phaseDone = "done"

func (p *progress) finish(img *sandbox.Image, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.err = true, err
	if err == nil {
		p.steps = append(p.steps, sandbox.ImageProgress{Phase: phaseDone, Image: img})
		p.err = io.EOF
	}
	p.notify()
	close(p.finished)
}

func (p *progress) notify() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Next returns the next step, and after the last step the result of the work.
func (p *progress) Next() (sandbox.ImageProgress, error) {
	for {
		p.mu.Lock()
		if len(p.steps) > 0 {
			s := p.steps[0]
			p.steps = p.steps[1:]
			p.mu.Unlock()
			return s, nil
		}
		if p.done {
			defer p.mu.Unlock()
			return sandbox.ImageProgress{}, p.err
		}
		p.mu.Unlock()
		<-p.wake
	}
}

// Close cancels the work and waits for its end.
func (p *progress) Close() error {
	p.cancel()
	<-p.finished
	return nil
}
