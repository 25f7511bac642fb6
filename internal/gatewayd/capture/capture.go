package capture

import (
	"context"
	"encoding/json"
	"log/slog"
	"mime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/secret"
)

const (
	// queued is the maximum number of calls that wait to be written; maxBytes is the
	// maximum size in bytes of the bodies of waiting and running calls.
	queued   = 1024
	maxBytes = 64 << 20
	// batch is the maximum number of calls per transaction.
	batch = 32
	// pruneEvery is the interval at which expired bodies are deleted.
	pruneEvery = 10 * time.Minute
	// writeTimeout is the timeout of a write.
	writeTimeout = 30 * time.Second
)

// Options tune a Store.
type Options struct {
	// Rules returns the current rules, nil if capturing is off. Stored bodies still
	// expire then.
	Rules  func() *Rules
	Now    func() time.Time // nil means time.Now
	Logger *slog.Logger     // nil: none
}

// Stats are counters since the start.
type Stats struct {
	Kept, Dropped, Failed int64 // calls
	Bytes                 int64 // in the database, now
}

// Store stores sealed bodies in a database. Methods may be called concurrently.
type Store struct {
	rows  rows
	opts  Options
	log   *slog.Logger
	queue chan *item
	held  atomic.Int64 // bytes in memory

	kept, dropped, failed, bytes atomic.Int64

	waiting sync.Mutex               // guards pending
	pending map[string]chan struct{} // by call id, the calls not written yet; closed when written

	mu     sync.RWMutex // held for reading to use queue; guards closed
	closed bool
	done   chan struct{}
	cancel context.CancelFunc
}

// Body is a body of a finished call.
type Body struct {
	ContentType string
	Bytes       []byte // its beginning
	Size        int64  // all of it
	// Omitted says why the body is not stored; empty means that the body is stored.
	Omitted string
}

// item is a call that waits to be written.
type item struct {
	id, team, project string
	at                time.Time
	rules             *Rules
	request, answer   *Body
	held              int
}

// Open brings d to this version's schema and returns the Store in it. The caller must
// Close it.
func Open(ctx context.Context, d *db.DB, box *secret.Box, o Options) (*Store, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{opts: o, log: o.Logger.With("component", "capture"), queue: make(chan *item, queued), pending: make(map[string]chan struct{}), done: make(chan struct{})}
	var err error
	if s.rows, err = openRows(ctx, d, box); err != nil {
		return nil, err
	}
	bytes, err := s.rows.bytes(ctx)
	if err != nil {
		return nil, err
	}
	s.bytes.Store(bytes)
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(s.done)
		s.write(ctx)
	}()
	return s, nil
}

// Close writes the queued bodies.
func (s *Store) Close() {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.queue)
	}
	s.mu.Unlock()
	<-s.done
	s.cancel()
}

// Stats returns the counters.
func (s *Store) Stats() Stats {
	return Stats{Kept: s.kept.Load(), Dropped: s.dropped.Load(), Failed: s.failed.Load(), Bytes: s.bytes.Load()}
}

func (s *Store) reserve(n int) bool {
	if s.held.Add(int64(n)) > maxBytes {
		s.held.Add(-int64(n))
		return false
	}
	return true
}

func (s *Store) release(n int) { s.held.Add(-int64(n)) }

// Offer queues the bodies of a call, and reports whether they will be stored. A nil body
// is not stored. Offer copies the needed part of request; it takes ownership of answer,
// which must not be used afterwards.
func (s *Store) Offer(r *gateway.Request, rules *Rules, request *Body, answer *Tee, contentType string) bool {
	it := &item{id: r.ID, team: r.TeamID, project: r.ProjectID, at: r.CreatedAt, rules: rules}
	fits := true
	if answer != nil {
		it.answer = &Body{ContentType: contentType, Bytes: answer.body, Size: answer.size}
		it.held, fits = len(answer.body), !answer.lost
		answer.body = nil
	}
	if request != nil {
		b := *request
		n := min(len(b.Bytes), int(rules.Max)+slack)
		if fits = fits && s.reserve(n); fits {
			it.held += n
			b.Bytes = append([]byte(nil), b.Bytes[:n]...)
			it.request = &b
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if fits && !s.closed {
		s.await(it.id)
		select {
		case s.queue <- it:
			return true
		default:
		}
		s.written(it.id)
	}
	s.release(it.held)
	s.dropped.Add(1)
	return false
}

// await registers a call whose bodies are queued, until written is called.
func (s *Store) await(id string) {
	s.waiting.Lock()
	defer s.waiting.Unlock()
	s.pending[id] = make(chan struct{})
}

func (s *Store) written(id string) {
	s.waiting.Lock()
	defer s.waiting.Unlock()
	close(s.pending[id])
	delete(s.pending, id)
}

// settled waits until the bodies of a call are written, if the call is queued.
func (s *Store) settled(ctx context.Context, id string) error {
	s.waiting.Lock()
	wait := s.pending[id]
	s.waiting.Unlock()
	if wait == nil {
		return nil
	}
	select {
	case <-wait:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Has returns the ids whose bodies are stored or queued.
func (s *Store) Has(ctx context.Context, ids []string) (map[string]bool, error) {
	has := make(map[string]bool, len(ids))
	s.waiting.Lock()
	for _, id := range ids {
		if s.pending[id] != nil {
			has[id] = true
		}
	}
	s.waiting.Unlock()
	return has, s.rows.having(ctx, ids, has) // read the queue first: a call written meanwhile is in the database
}

// write is the writer goroutine.
func (s *Store) write(ctx context.Context) {
	ticker := time.NewTicker(pruneEvery)
	defer ticker.Stop()
	s.prune(ctx)
	for {
		select {
		case it, ok := <-s.queue:
			if !ok {
				return
			}
			all := append(make([]*item, 0, batch), it)
			for len(all) < batch && len(s.queue) > 0 {
				if it, ok = <-s.queue; !ok {
					break
				}
				all = append(all, it)
			}
			s.put(ctx, all)
		case <-ticker.C:
			s.prune(ctx)
		}
	}
}

// put writes a batch, and deletes the oldest bodies if the quota is exceeded.
func (s *Store) put(ctx context.Context, all []*item) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	sealed := make([]row, 0, len(all))
	for _, it := range all {
		body := gateway.RequestBody{ID: it.id, Request: it.rules.keep(it.request), Answer: it.rules.keep(it.answer)}
		raw, err := json.Marshal(body)
		if err != nil { // texts always encode
			continue
		}
		sealed = append(sealed, row{it.id, it.team, it.project, it.at, raw})
	}
	added, err := s.rows.put(ctx, sealed)
	if err == nil {
		var freed int64
		freed, err = s.rows.shrink(ctx, s.bytes.Load()+added-all[len(all)-1].rules.Quota)
		s.bytes.Add(added - freed)
	}
	for _, it := range all {
		s.release(it.held)
		s.written(it.id)
	}
	if err != nil {
		s.failed.Add(int64(len(all)))
		s.log.ErrorContext(ctx, "bodies of requests were not kept", "count", len(all), "error", err)
		return
	}
	s.kept.Add(int64(len(all)))
}

// prune deletes expired bodies.
func (s *Store) prune(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	retention := time.Duration(DefaultRetention)
	if r := s.opts.Rules(); r != nil {
		retention = r.Retention
	}
	freed, err := s.rows.prune(ctx, s.opts.Now().Add(-retention))
	s.bytes.Add(-freed)
	if err != nil && ctx.Err() == nil {
		s.log.ErrorContext(ctx, "bodies that are too old were not deleted", "error", err)
	}
}

// keep returns a body in the form to be stored: redacted, then cut.
func (r *Rules) keep(b *Body) *gateway.Body {
	if b == nil {
		return nil
	}
	out := &gateway.Body{ContentType: b.ContentType, Size: b.Size, Omitted: b.Omitted}
	media, _, _ := mime.ParseMediaType(b.ContentType) // an invalid type does not count as text
	stream := media == "text/event-stream"
	switch {
	case out.Omitted != "":
		return out
	case media != "application/json" && !strings.HasPrefix(media, "text/"):
		out.Omitted = "it is no text"
		return out
	}
	text := b.Bytes
	if !r.Redact.Empty() {
		if stream {
			text, out.Assembled = r.Redact.Events(text)
		} else {
			text = r.Redact.JSON(text)
		}
	}
	out.Cut = int64(len(b.Bytes)) < b.Size || int64(len(text)) > r.Max
	out.Text = strings.ToValidUTF8(string(text[:min(int64(len(text)), r.Max)]), "\uFFFD")
	return out
}

// Get returns the bodies of a request of a team, or of one of its projects; it waits for
// a queued write. Errors: not_found.
func (s *Store) Get(ctx context.Context, team, project, id string) (*gateway.RequestBody, error) {
	if err := s.settled(ctx, id); err != nil {
		return nil, err
	}
	raw, err := s.rows.get(ctx, team, project, id)
	if err != nil {
		return nil, err
	}
	b := new(gateway.RequestBody)
	return b, json.Unmarshal(raw, b)
}

// Delete deletes the bodies of a request. Errors: not_found.
func (s *Store) Delete(ctx context.Context, team, project, id string) error {
	if err := s.settled(ctx, id); err != nil {
		return err
	}
	freed, err := s.rows.remove(ctx, team, project, id)
	s.bytes.Add(-freed)
	return err
}
