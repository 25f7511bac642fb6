// Package label resolves labels of ports, and creates and checks links to private ports.
// Its authority is the database. The session that a label leads to is cached in memory
// only and can be looked up again.
package label

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

var (
	// ErrGone is the error for a label that existed and was removed.
	ErrGone = cay.Errorf(cay.Stopped, "the port of this preview was removed, or its sandbox was deleted")
	// ErrAgain is the error of a lookup of a session during which something changed, so
	// that Find reads the label again.
	ErrAgain = errors.New("it is to be read again")
)

// Rows reads the rows of labels. *store.Store implements it.
type Rows interface {
	Declared(ctx context.Context, label string) (store.Declared, error)
}

// Session is one run of a sandbox. The engine's sessions implement it.
type Session interface {
	Running() bool
	Context() context.Context // ends with the session
}

// Label is a declared label. It is immutable.
type Label[S Session] struct {
	Name      string
	SandboxID string
	Port      int
	Access    sandbox.PortAccess
	epoch     int64

	// Session is the current session of the label's sandbox. Context ends when the label
	// changes or the session ends. Both are unset unless the sandbox runs.
	Session S
	Context context.Context
	cancel  context.CancelCauseFunc
}

// Book caches the labels of running sandboxes, as long as they match the database.
type Book[S Session] struct {
	rows Rows
	key  []byte // signs links
	now  func() time.Time

	mu      sync.RWMutex // guards the fields below
	version int64        // incremented by each change; a row read before a change is not cached after it
	byName  map[string]*Label[S]
}

// New returns a book. key signs the tokens of links.
func New[S Session](rows Rows, key []byte, now func() time.Time) *Book[S] {
	return &Book[S]{rows: rows, key: key, now: now, byName: make(map[string]*Label[S])}
}

// Find returns the label with that name. Unless the label is cached, Find calls await for
// the running session of its sandbox; ok is false if the sandbox is asleep, and Find then
// returns a Label without a session. Errors: not_found, ErrGone, and those of await
// except ErrAgain.
func (b *Book[S]) Find(ctx context.Context, name string, await func(context.Context, store.Declared) (s S, ok bool, err error)) (*Label[S], error) {
	if l := b.get(name); l != nil && l.Session.Running() {
		return l, nil
	}
	for {
		version := b.current()
		l, d, err := b.read(ctx, name)
		if err != nil {
			return nil, err
		}
		s, ok, err := await(ctx, d)
		switch {
		case errors.Is(err, ErrAgain):
			continue
		case err != nil:
			return nil, err
		case !ok:
			return l, nil
		}
		if l, ok := b.put(*l, s, version); ok {
			return l, nil
		}
	}
}

// Read returns the label with that name, without a session. Errors: not_found, ErrGone.
func (b *Book[S]) Read(ctx context.Context, name string) (*Label[S], error) {
	l, _, err := b.read(ctx, name)
	return l, err
}

func (b *Book[S]) read(ctx context.Context, name string) (*Label[S], store.Declared, error) {
	if len(name) != ident.LabelLength {
		return nil, store.Declared{}, cay.Errorf(cay.NotFound, "there is no such preview")
	}
	d, err := b.rows.Declared(ctx, name)
	if err == nil && (d.Gone || d.Status == "") {
		err = ErrGone
	}
	if err != nil {
		return nil, d, err
	}
	return &Label[S]{Name: name, SandboxID: d.SandboxID, Port: d.Port, Access: d.Access, epoch: d.Epoch}, d, nil
}

func (b *Book[S]) get(name string) *Label[S] {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.byName[name]
}

func (b *Book[S]) current() int64 {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.version
}

// put caches a label that was read from the database at a version, for a running session.
// It returns the cached label; false if the label must be read again.
func (b *Book[S]) put(l Label[S], s S, version int64) (*Label[S], bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.version != version || s.Context().Err() != nil {
		return nil, false
	}
	if have := b.byName[l.Name]; have != nil {
		return have, true
	}
	l.Session = s
	l.Context, l.cancel = context.WithCancelCause(s.Context())
	b.byName[l.Name] = &l
	return &l, true
}

// Forget drops changed labels. Connections through them end.
func (b *Book[S]) Forget(ended map[string]bool) {
	if len(ended) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.version++
	for name := range ended {
		b.dropLocked(name)
	}
}

// ForgetSandbox drops the labels of a sandbox.
func (b *Book[S]) ForgetSandbox(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.version++
	for name, l := range b.byName {
		if l.SandboxID == id {
			b.dropLocked(name)
		}
	}
}

func (b *Book[S]) dropLocked(name string) {
	if l := b.byName[name]; l != nil {
		delete(b.byName, name)
		l.cancel(ErrGone)
	}
}
