package cache

import (
	"net/http"
	"time"

	"github.com/cayhq/cay/gateway"
)

// Recorder collects an answer while it is sent to the client. It is not safe for
// concurrent use.
type Recorder struct {
	cache *Cache
	key   Key
	ttl   time.Duration
	body  []byte
	lost  bool // the answer is too large, or failed
}

// Record returns a Recorder for the answer to a request; the answer will be stored for
// ttl.
func (c *Cache) Record(k Key, ttl time.Duration) *Recorder {
	return &Recorder{cache: c, key: k, ttl: ttl}
}

// Write collects the next bytes. It never fails.
func (r *Recorder) Write(p []byte) (int, error) {
	switch {
	case r.lost:
	case int64(len(r.body)+len(p)) > r.cache.entry:
		r.Discard()
	default:
		r.body = append(r.body, p...)
	}
	return len(p), nil
}

// Discard drops the answer.
func (r *Recorder) Discard() { r.lost, r.body = true, nil }

// contentHeaders are the headers that describe the body.
var contentHeaders = []string{"Content-Type", "Content-Encoding"}

// Keep stores the answer if the request succeeded with status 200 and the answer is not
// too large, and reports whether it was stored. head is the client's headers; only
// contentHeaders are stored.
func (r *Recorder) Keep(head http.Header, record *gateway.Request) bool {
	if r.lost || record.Status != gateway.Succeeded || record.HTTPStatus != http.StatusOK || len(r.body) == 0 {
		return false
	}
	e := &Entry{Head: make(http.Header, len(contentHeaders)), Body: r.body, Record: *record, At: r.cache.now()}
	for _, name := range contentHeaders {
		if v := head[name]; v != nil {
			e.Head[name] = v
		}
	}
	r.lost, r.body = true, nil
	return r.cache.Put(r.key, e, r.ttl)
}

// Replay sends the answer. A stream is sent in one write.
func (e *Entry) Replay(w http.ResponseWriter) error {
	for name, values := range e.Head {
		w.Header()[name] = values
	}
	w.Header().Set(Header, Hit)
	w.WriteHeader(http.StatusOK)
	_, err := w.Write(e.Body)
	return err
}
