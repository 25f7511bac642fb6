package workflowd

import (
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

const (
	expireEvery = time.Minute
	expirePage  = 500
)

// expire deletes ended runs whose time is over, and the payloads of those that are
// to be kept without, until the engine ends.
func (e *Engine) expire() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-timer.C:
		case <-e.strip:
		}
		more, err := e.expireSome()
		switch {
		case err != nil && e.ctx.Err() == nil:
			e.log.Warn("cannot delete what has expired, will try again", "error", err)
			timer.Reset(lastRetry)
		case more:
			timer.Reset(0)
		default:
			timer.Reset(expireEvery)
		}
	}
}

// expireSome deletes a page of runs, and reports whether there may be more.
func (e *Engine) expireSome() (bool, error) {
	ids, err := e.store.Expired(e.ctx, e.cfg.Now(), expirePage)
	if err != nil || len(ids) == 0 {
		return false, err
	}
	var strip, remove []string
	rows := make(map[string]*history.Run, len(ids))
	for _, id := range ids {
		r, err := e.store.Run(e.ctx, id)
		switch {
		case cay.CodeOf(err) == cay.NotFound: // somebody else was first
		case err != nil:
			return false, err
		case r.ExpiresAt < 0:
			strip, rows[id] = append(strip, id), r
		default:
			remove, rows[id] = append(remove, id), r
		}
	}
	if len(strip) > 0 {
		if err := e.store.Strip(e.ctx, strip); err != nil {
			return false, err
		}
		for _, id := range strip {
			rows[id].ExpiresAt = 0
			e.relist(rows[id])
		}
	}
	if len(remove) > 0 {
		if err := e.store.Delete(e.ctx, remove); err != nil {
			return false, err
		}
		for _, id := range remove {
			e.unlist(rows[id])
		}
	}
	return len(ids) == expirePage, nil
}
