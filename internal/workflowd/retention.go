package workflowd

import (
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

const (
	expireEvery = time.Minute
	expirePage  = 500
	// readTime is how long after its end a run without retention keeps its payloads, so
	// that callers waiting for the result can read it.
	readTime = 250 * time.Millisecond
)

// expire deletes ended runs whose retention is over, and the payloads of runs that are
// kept without payloads, until the engine ends.
func (e *Engine) expire() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	soon := false // the timer is set for a deletion of payloads
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-timer.C:
			soon = false
		case <-e.strip:
			if !soon { // otherwise a steady stream of ending runs would postpone the deletion for ever
				soon = true
				timer.Reset(readTime)
			}
			continue
		}
		next, err := e.expireSome()
		switch {
		case err != nil && e.ctx.Err() == nil:
			e.log.Warn("cannot delete what has expired, will try again", "error", err)
			timer.Reset(lastRetry)
		default:
			timer.Reset(next)
		}
	}
}

// expireSome deletes a page of runs, and returns how long to wait before the next.
func (e *Engine) expireSome() (next time.Duration, err error) {
	ids, err := e.store.Expired(e.ctx, e.cfg.Now(), expirePage)
	if err != nil || len(ids) == 0 {
		return expireEvery, err
	}
	var strip, remove []string
	fresh := false
	rows := make(map[string]*history.Run, len(ids))
	for _, id := range ids {
		r, err := e.store.Run(e.ctx, id)
		switch {
		case cay.CodeOf(err) == cay.NotFound: // another caller deleted the run first
		case err != nil:
			return 0, err
		case r.ExpiresAt < 0 && e.justEnded(r):
			fresh = true
		case r.ExpiresAt < 0:
			strip, rows[id] = append(strip, id), r
		default:
			remove, rows[id] = append(remove, id), r
		}
	}
	if len(strip) > 0 {
		if err := e.store.Strip(e.ctx, strip); err != nil {
			return 0, err
		}
		for _, id := range strip {
			rows[id].ExpiresAt = 0
			e.relist(rows[id])
		}
	}
	if len(remove) > 0 {
		if err := e.store.Delete(e.ctx, remove); err != nil {
			return 0, err
		}
		for _, id := range remove {
			e.unlist(rows[id])
		}
	}
	switch {
	case fresh:
		return readTime, nil
	case len(ids) == expirePage:
		return 0, nil
	}
	return expireEvery, nil
}

// justEnded reports whether a caller may be about to read the result of a run.
func (e *Engine) justEnded(r *history.Run) bool {
	since := e.now() - r.CompletedAt
	return since >= 0 && since < readTime.Milliseconds()
}
