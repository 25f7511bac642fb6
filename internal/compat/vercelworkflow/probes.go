package vercelworkflow

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// probePrefix begins the names of the streams by which apps answer health checks of the
// SDK, such as `npx workflow health`: __health_check__ and an id that the asker chose. The
// runs that their requests name do not exist. Source: runtime/helpers.js of @workflow/core.
const probePrefix = "__health_check__"

// Bounds of answers to health checks.
const (
	maxProbes   = 100 // of a project
	probeLife   = 2 * time.Minute
	maxProbe    = 64 << 10 // bytes of one answer
	probePeriod = 30 * time.Second
)

// probes holds the answers of apps to health checks. They live in memory only, for
// probeLife: the asker asks again when the daemon has restarted.
type probes struct {
	mu     sync.Mutex // guards the fields below, and the answers of all
	byName map[probeName]*probe
}

type probeName struct{ project, stream string }

// probe is one answer.
type probe struct {
	begun  time.Time
	answer []byte
	ended  bool
	done   chan struct{} // closed with ended
}

// probe returns the probe with a name, which may have no answer yet. The caller holds mu.
// Errors: quota_exceeded.
func (p *probes) probe(name probeName) (*probe, error) {
	if found := p.byName[name]; found != nil {
		return found, nil
	}
	n := 0
	for other, old := range p.byName {
		switch {
		case time.Since(old.begun) > probeLife:
			delete(p.byName, other)
		case other.project == name.project:
			n++
		}
	}
	if n >= maxProbes {
		return nil, cay.Errorf(cay.QuotaExceeded, "the project has had %d health checks in the last %v, and no more are allowed", n, probeLife)
	}
	if p.byName == nil {
		p.byName = make(map[probeName]*probe)
	}
	made := &probe{begun: time.Now(), done: make(chan struct{})}
	p.byName[name] = made
	return made, nil
}

// write appends to an answer, and ends it if end is set. Errors: quota_exceeded, too_large.
func (p *probes) write(name probeName, b []byte, end bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, err := p.probe(name)
	if err != nil || found.ended {
		return err
	}
	if len(found.answer)+len(b) > maxProbe {
		return cay.Errorf(cay.TooLarge, "the answer to a health check has more than %d bytes", maxProbe)
	}
	found.answer = append(found.answer, b...)
	if end {
		found.ended = true
		close(found.done)
	}
	return nil
}

// read waits until an answer is whole, for probePeriod at most. Errors: not_found,
// quota_exceeded.
func (p *probes) read(ctx context.Context, name probeName) ([]byte, error) {
	p.mu.Lock()
	found, err := p.probe(name)
	p.mu.Unlock()
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, probePeriod)
	defer cancel()
	select {
	case <-found.done:
		return found.answer, nil
	case <-wait.Done():
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return nil, cay.Errorf(cay.NotFound, "no app has answered health check %.100q", name.stream)
	}
}

// probeOf returns the name of the health check that a request is about, ok if it is about one.
func (h *handler) probeOf(r *http.Request) (name probeName, ok bool, err error) {
	name.stream = r.PathValue("stream")
	if !strings.HasPrefix(name.stream, probePrefix) {
		return name, false, nil
	}
	name.project, err = h.Project(r.Context(), "")
	return name, true, err
}

// writeProbe takes the answer to a health check, or its end.
func (h *handler) writeProbe(w http.ResponseWriter, r *http.Request, name probeName) error {
	b, err := readAll(api.Body(w, r), maxProbe)
	if err != nil {
		return err
	}
	if r.Header.Get("X-Stream-Multi") == "true" {
		framed := b
		for b = nil; len(framed) > 0; {
			chunk, rest, ok := takeBytes(framed)
			if !ok {
				return cay.Errorf(cay.Invalid, "the chunks are cut short")
			}
			b, framed = append(b, chunk...), rest
		}
	}
	if err := h.probes.write(name, b, r.Header.Get("X-Stream-Done") == "true"); err != nil {
		return err
	}
	return api.NoContent(w)
}

// readProbe answers with the answer to a health check, once an app has sent it.
func (h *handler) readProbe(w http.ResponseWriter, r *http.Request, name probeName) error {
	b, err := h.probes.read(r.Context(), name)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, err = w.Write(b)
	return err
}
