package gatewayd

import (
	"net/http"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/scripted"
)

// formatScripted is the format of the provider that answers from a file.
const formatScripted = "scripted"

// play gets an answer from the script.
func (x *exchange) play() *hub.Error {
	rq := &x.cl.rq
	result, delay, failed := x.e.cfg.Scripted.Answer(x.cl.doc.Call)
	if delay > 0 {
		t := time.NewTimer(delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-x.ctx.Done():
			return broken(x.ctx, x.o.Provider.Name, x.ctx.Err())
		}
	}
	if failed != nil {
		e := *failed
		e.Provider = x.o.Provider.Name
		failed = &e
	}
	x.record.Status = http.StatusOK
	if failed != nil && (result == nil || !rq.Stream || x.v.Buffers(rq)) {
		x.record.Status = failed.Status
		return failed
	}
	x.serving = true
	if !rq.Stream || x.v.Buffers(rq) {
		return x.answerWhole(result, nil)
	}
	x.stream()
	t := newTranslation(x, nil)
	events := scripted.Events(result, failed)
	for i := range events { // like a stream
		if gone := t.add(events[i : i+1]); gone != nil || t.failed != nil {
			break
		}
	}
	return t.end()
}
