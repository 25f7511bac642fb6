// Package cache stores answers and replays them for the same request: the same caller,
// model and body; bodies may differ only in white space and the order of members. It is
// used only if a key or a request asks for it.
//
// Answers are kept in memory, not in the database: a lookup must not slow the requests
// that may be cached, an answer lost with the process costs only one more call, and
// prompts and answers stay off the disk of users who have not asked for that. The cache
// is bounded in bytes; the least recently used answers are evicted first. Only complete
// and successful answers are stored. Bytes are counted here and not by a cache with
// weights, such as github.com/maypok86/otter, because Put holds the bound at every moment,
// and stores each answer that fits: those caches evict later, and may drop a new entry.
package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// Header is the header that says whether an answer is from the cache; its values are Hit
// and Miss. The header is missing from answers that could not have been cached.
const (
	Header = "X-Cay-Cache"
	Hit    = "hit"
	Miss   = "miss"
)

// These are the defaults of New.
const (
	DefaultSize  = 64 << 20
	DefaultEntry = 4 << 20
	// MaxTTL is the maximum lifetime of an answer.
	MaxTTL = 30 * 24 * time.Hour
)

// Cache is an LRU cache of answers. It is safe for concurrent use.
type Cache struct {
	size, entry int64
	now         func() time.Time

	mu    sync.Mutex // guards the following fields
	used  int64
	items *simplelru.LRU[Key, *item]
}

type item struct {
	entry   *Entry
	size    int64
	expires time.Time
}

// Entry is a stored answer. Entries are immutable.
type Entry struct {
	// Head has the client's headers that describe the content.
	Head http.Header
	Body []byte // for a stream, all of its bytes
	// Record is the record of the original request, with the original tokens and cost.
	Record gateway.Request
	// At is when the answer was given.
	At time.Time
}

// New returns a cache of at most size bytes, with answers of at most entry bytes each; 0
// selects a default.
func New(size, entry int64) *Cache {
	if size == 0 {
		size = DefaultSize
	}
	if entry == 0 {
		entry = DefaultEntry
	}
	c := &Cache{size: size, entry: min(entry, size), now: time.Now}
	c.items, _ = simplelru.NewLRU(math.MaxInt, func(_ Key, it *item) { c.used -= it.size }) // fails only for a size below 1
	return c
}

// Key identifies a request.
type Key [sha256.Size]byte

// Question holds all that must be equal for two requests to share an answer.
type Question struct {
	// Caller makes the request. Only requests of the same key share answers.
	Caller *ledger.Caller
	// Surface and Version are the client's wire format, and Variant holds the other
	// headers that change the answer.
	Surface, Version, Variant string
	// Model is the catalogue's id of the model, after aliases and rules.
	Model string
	// Stream says that the client wants a stream.
	Stream bool
	// Body is the request's body, JSON.
	Body []byte
}

// maxDepth is the maximum nesting of a request's JSON.
const maxDepth = 512

// Key returns the key of a request. Errors: a body that is not JSON, is nested too
// deeply, or repeats a member, because servers differ in how they read duplicates. Such
// requests are not cached.
func (q *Question) Key() (Key, error) {
	h := sha256.New()
	for _, s := range []string{q.Caller.TeamID, q.Caller.ProjectID, q.Caller.KeyID, q.Caller.User, q.Surface, q.Version, q.Variant, q.Model, fmt.Sprint(q.Stream)} {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	d := json.NewDecoder(bytes.NewReader(q.Body))
	d.UseNumber()
	if err := canonical(h, d, 0); err != nil {
		return Key{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Key{}, errors.New("there is something after the JSON")
	}
	return Key(h.Sum(nil)), nil
}

// canonical writes the next value of d in canonical form: without spaces, members sorted,
// numbers as they were written.
func canonical(w io.Writer, d *json.Decoder, depth int) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if depth > maxDepth {
		return fmt.Errorf("the JSON is nested deeper than %d levels", maxDepth)
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '[' {
			io.WriteString(w, "[") // a hash does not fail, nor does a Buffer
			for d.More() {
				if err := canonical(w, d, depth+1); err != nil {
					return err
				}
				io.WriteString(w, ",")
			}
			io.WriteString(w, "]")
		} else if err := members(w, d, depth); err != nil {
			return err
		}
		_, err := d.Token() // its end
		return err
	case string:
		text(w, t)
	case json.Number:
		io.WriteString(w, t.String())
	case bool:
		fmt.Fprint(w, t)
	case nil:
		io.WriteString(w, "null")
	}
	return nil
}

func text(w io.Writer, s string) { fmt.Fprintf(w, "%d%q", len(s), s) }

// members writes the members of an object. Each value is hashed before the members are
// sorted, so that a large value is not copied.
func members(w io.Writer, d *json.Decoder, depth int) error {
	type member struct {
		name string
		sum  []byte
	}
	var all []member
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		var h hash.Hash = sha256.New()
		if err := canonical(h, d, depth+1); err != nil {
			return err
		}
		all = append(all, member{name.(string), h.Sum(nil)})
	}
	slices.SortFunc(all, func(a, b member) int { return bytes.Compare([]byte(a.name), []byte(b.name)) })
	io.WriteString(w, "{")
	for i, m := range all {
		if i > 0 && all[i-1].name == m.name {
			return fmt.Errorf("the member %.100q is there twice", m.name)
		}
		text(w, m.name)
		w.Write(m.sum)
	}
	io.WriteString(w, "}")
	return nil
}

// Get returns the answer to a request, nil if none is stored.
func (c *Cache) Get(k Key) *Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	it, ok := c.items.Get(k)
	if !ok {
		return nil
	}
	if !c.now().Before(it.expires) {
		c.items.Remove(k)
		return nil
	}
	return it.entry
}

// overhead is the approximate memory of an entry besides its bytes.
const overhead = 1 << 10

// Put stores an answer for ttl, at most MaxTTL, and replaces an answer with the same key.
// Put reports whether the answer was stored; an answer that is too large is not.
func (c *Cache) Put(k Key, e *Entry, ttl time.Duration) bool {
	size := int64(len(e.Body)) + overhead
	if ttl <= 0 || int64(len(e.Body)) > c.entry || size > c.size {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.items.Remove(k)
	for c.used+size > c.size {
		c.items.RemoveOldest()
	}
	c.items.Add(k, &item{e, size, c.now().Add(min(ttl, MaxTTL))})
	c.used += size
	return true
}

// Usage is the current content of a Cache in numbers.
type Usage struct {
	Entries int
	Bytes   int64
}

// Usage returns the current usage.
func (c *Cache) Usage() Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Usage{c.items.Len(), c.used}
}
