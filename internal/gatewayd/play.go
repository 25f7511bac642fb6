package gatewayd

import (
	"net/http"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/provider"
	"github.com/cayhq/cay/internal/gatewayd/scripted"
)

// formatScripted is the format of the provider that answers from a file.
const formatScripted = "scripted"

// play gets an answer from the script.
func (c *call) play(o *candidate, cred provider.Credential) *hub.Error {
	if err := c.decode(); err != nil {
		return err
	}
	a := c.begin(o, cred)
	err := a.play()
	a.finish(err)
	return err
}

func (a *attempt) play() *hub.Error {
	c := a.c
	result, delay, failed := c.e.cfg.Scripted.Answer(c.parsed)
	if delay > 0 {
		t := time.NewTimer(delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-a.ctx.Done():
			return broken(a.ctx, a.o.provider.Name, a.ctx.Err())
		}
	}
	if failed != nil {
		e := *failed
		e.Provider = a.o.provider.Name
		failed = &e
	}
	a.record.Status = http.StatusOK
	if failed != nil && (result == nil || !c.stream || c.buffers()) {
		a.record.Status = failed.Status
		return failed
	}
	c.serve(a)
	if !c.stream || c.buffers() {
		return a.answerWhole(result, nil)
	}
	a.stream()
	t := newTranslation(a, nil)
	events := scripted.Events(result, failed)
	for i := range events { // like a stream
		if gone := t.add(events[i : i+1]); gone != nil || t.failed != nil {
			break
		}
	}
	return t.end()
}
