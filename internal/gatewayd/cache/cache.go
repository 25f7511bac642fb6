// Package cache keeps answers and gives them again to the same request: the same
// caller, model and body, of which only spaces and the order of members may
// differ. It is used only where a key or a request asks for it.
//
// Answers are kept in memory, not in the database: looking one up is on the way of
// every request that may be cached, what is lost with the process costs one more
// call each, and prompts and answers stay off the disk of who has not asked for
// that. It is bounded by bytes; what was not used for longest goes first. What is
// not a whole and successful answer is not kept.
package cache

import (
	"bytes"
	"container/list"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// Header says in an answer whether it is from the cache; its values are Hit and
// Miss. A request whose answer could not have been kept has none.
const (
	Header = "X-Cay-Cache"
	Hit    = "hit"
	Miss   = "miss"
)

// The bounds, where New is given none.
const (
	DefaultSize  = 64 << 20
	DefaultEntry = 4 << 20
	// MaxTTL is the longest an answer is kept.
	MaxTTL = 30 * 24 * time.Hour
)

// Cache is a bounded set of answers. It is safe for concurrent use.
type Cache struct {
	size, entry int64
	now         func() time.Time

	mu    sync.Mutex // guards what follows
	used  int64
	byKey map[Key]*list.Element // of *item
	order *list.List            // the one used last is in front
}

type item struct {
	key     Key
	entry   *Entry
	size    int64
	expires time.Time
}

// Entry is an answer. It does not change.
type Entry struct {
	// Head has what the client got of headers and belongs to the content.
	Head http.Header
	Body []byte // of a stream: all of its bytes
	// Record is that of the request which was answered. Its tokens and cost are what
	// they were.
	Record gateway.Request
	// At is when the answer was given.
	At time.Time
}

// New returns a cache of at most size bytes, with answers of at most entry bytes
// each; 0 for the defaults.
func New(size, entry int64) *Cache {
	if size == 0 {
		size = DefaultSize
	}
	if entry == 0 {
		entry = DefaultEntry
	}
	return &Cache{size: size, entry: min(entry, size), now: time.Now, byKey: make(map[Key]*list.Element), order: list.New()}
}

// Key stands for a request.
type Key [sha256.Size]byte

// Question is what makes a request the same as another one.
type Question struct {
	// Caller is who asks. Answers are shared by the requests of one key only.
	Caller *ledger.Caller
	// Surface and Version are what the client speaks, and Variant what else of its
	// headers changes the answer.
	Surface, Version, Variant string
	// Model is the catalogue's name of the model, behind all aliases and rules.
	Model string
	// Stream says that the client wants a stream.
	Stream bool
	// Body is that of the request: JSON.
	Body []byte
}

// maxDepth is how deep the JSON of a request may nest.
const maxDepth = 512

// Key returns the key of a request. Errors: a body that is not JSON, is nested
// too deeply, or has a member twice, which one server may read in another way than
// the next. Such requests are not cached.
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

// canonical writes the next value of d in the one form it has: without spaces,
// members sorted, numbers as they were written.
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

// members writes the members of an object. Each is hashed before they are sorted,
// so that a large one is not held twice.
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

// Get returns the answer to a request, nil if there is none.
func (c *Cache) Get(k Key) *Entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[k]
	if e == nil {
		return nil
	}
	it := e.Value.(*item)
	if !c.now().Before(it.expires) {
		c.removeLocked(e)
		return nil
	}
	c.order.MoveToFront(e)
	return it.entry
}

// overhead is about what an answer takes besides its bytes.
const overhead = 1 << 10

// Put keeps an answer for ttl, at most MaxTTL, in place of one of the same key. It
// reports whether it did: it does not if the answer is too large.
func (c *Cache) Put(k Key, e *Entry, ttl time.Duration) bool {
	size := int64(len(e.Body)) + overhead
	if ttl <= 0 || int64(len(e.Body)) > c.entry || size > c.size {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.byKey[k]; old != nil {
		c.removeLocked(old)
	}
	for c.used+size > c.size {
		c.removeLocked(c.order.Back())
	}
	c.byKey[k] = c.order.PushFront(&item{k, e, size, c.now().Add(min(ttl, MaxTTL))})
	c.used += size
	return true
}

func (c *Cache) removeLocked(e *list.Element) {
	it := c.order.Remove(e).(*item)
	delete(c.byKey, it.key)
	c.used -= it.size
}

// Usage is how much a Cache holds.
type Usage struct {
	Entries int
	Bytes   int64
}

// Usage returns how much there is now.
func (c *Cache) Usage() Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Usage{len(c.byKey), c.used}
}
