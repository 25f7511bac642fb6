package accountd

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

var _ api.Holder = (*Engine)(nil)

// holds are the requests in progress, by their credential, so that streams and terminals
// end with the token or the session that opened them.
type holds struct {
	mu      sync.Mutex // guards what follows
	byToken map[string]map[*hold]struct{}
}

// hold is one request.
type hold struct {
	by     hash  // the secret, or the session
	why    error // the error for its client when the credential ends
	cancel context.CancelCauseFunc
	timer  *time.Timer // nil if what it was let in with does not expire; holds.mu guards it
}

func (hs *holds) add(tokenID string, h *hold) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.byToken == nil {
		hs.byToken = make(map[string]map[*hold]struct{})
	}
	if hs.byToken[tokenID] == nil {
		hs.byToken[tokenID] = make(map[*hold]struct{})
	}
	hs.byToken[tokenID][h] = struct{}{}
}

func (hs *holds) remove(tokenID string, h *hold) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h.timer != nil {
		h.timer.Stop()
	}
	delete(hs.byToken[tokenID], h)
	if len(hs.byToken[tokenID]) == 0 {
		delete(hs.byToken, tokenID)
	}
}

// end ends the requests of a token, all of them or those of one secret or session.
func (hs *holds) end(tokenID string, by *hash) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for h := range hs.byToken[tokenID] {
		if by == nil || h.by == *by {
			h.cancel(h.why)
		}
	}
}

// tokens lists the tokens with requests in progress.
func (hs *holds) tokens() []string {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	ids := make([]string, 0, len(hs.byToken))
	for id := range hs.byToken {
		ids = append(ids, id)
	}
	return ids
}

// Hold implements api.Holder.
func (e *Engine) Hold(ctx context.Context, p api.Principal, c api.Credential) (context.Context, func(), error) {
	by, why := hash(sha256.Sum256([]byte(c.Secret))), errBadToken()
	if c.Session != nil {
		by, why = sessionHash(*c.Session), errNoSession()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	h := &hold{by: by, why: why, cancel: cancel}
	e.holds.add(p.TokenID, h)
	release := func() {
		cancel(nil) // first: then expire sets no timer any more
		e.holds.remove(p.TokenID, h)
	}
	// The credential may have ended since it was checked. From now on, a call that ends
	// the credential finds the hold.
	ends, err := e.credentialEnds(ctx, c, e.now())
	if ctx.Err() != nil {
		err = context.Cause(ctx) // it ended just now, or the client left
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	if ends != nil {
		e.expire(ctx, h, c, *ends)
	}
	return ctx, release, nil
}

// expire ends a request when its credential expires. A session that was used meanwhile
// ends later.
func (e *Engine) expire(ctx context.Context, h *hold, c api.Credential, at time.Time) {
	e.holds.mu.Lock()
	defer e.holds.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	h.timer = time.AfterFunc(at.Sub(e.now()), func() {
		if c.Session == nil {
			h.cancel(h.why)
			return
		}
		found, err := e.store.findSession(ctx, h.by)
		if err != nil || found == nil || !e.now().Before(found.ends()) {
			h.cancel(h.why)
			return
		}
		e.expire(ctx, h, c, found.ends())
	})
}

// credentialEnds returns when a credential expires, nil if never. Errors: unauthenticated
// if it is not valid any more.
func (e *Engine) credentialEnds(ctx context.Context, c api.Credential, now time.Time) (*time.Time, error) {
	var entry *cached
	var err error
	if c.Session != nil {
		entry, err = e.sessionEntry(ctx, *c.Session, now)
	} else {
		entry, err = e.secretEntry(ctx, c.Secret, now)
	}
	if err != nil {
		return nil, err
	}
	return entry.expires, nil
}

// endOrphans ends the requests of tokens that were deleted with their team or project.
func (e *Engine) endOrphans(ctx context.Context) {
	for _, id := range e.holds.tokens() {
		if _, err := e.store.getToken(ctx, id); err != nil {
			if cay.CodeOf(err) != cay.NotFound {
				e.log.ErrorContext(ctx, "cannot tell whether a token is still good: its requests end", "id", id, "error", err)
			}
			e.holds.end(id, nil)
		}
	}
}
