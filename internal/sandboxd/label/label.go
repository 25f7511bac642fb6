// Package label knows what labels of ports stand for, for as long as the database says
// so, and makes and checks links to private ones. That a label leads to a session is only
// ever remembered: it can be read again.
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
	// ErrGone is the error for a label that there was once.
	ErrGone = cay.Errorf(cay.Stopped, "the port of this preview was removed, or its sandbox was deleted")
	// ErrAgain is what who is asked for a session returns if something has changed
	// meanwhile, so that the label is to be read again.
	ErrAgain = errors.New("it is to be read again")
)

// Rows are what labels stand for. *store.Store is one.
type Rows interface {
	Declared(ctx context.Context, label string) (store.Declared, error)
}

// Session is one run of a sandbox. The engine's sessions are.
type Session interface {
	Running() bool
	Context() context.Context // ends with it
}

// Label is a label that is declared. It does not change.
type Label[S Session] struct {
	Name      string
	SandboxID string
	Port      int
	Access    sandbox.PortAccess
	epoch     int64

	// Session is its sandbox's, and Context ends when all this is no longer so. Both
	// are not set unless the sandbox runs.
	Session S
	Context context.Context
	cancel  context.CancelCauseFunc
}

// Book has the labels of sandboxes that run, for as long as they are as the database
// says.
type Book[S Session] struct {
	rows Rows
	key  []byte // signs links
	now  func() time.Time

	mu      sync.RWMutex // guards what follows
	version int64        // grows with each change; what was read before one is not taken in after it
	byName  map[string]*Label[S]
}

// New returns a book. key signs the tokens of links.
func New[S Session](rows Rows, key []byte, now func() time.Time) *Book[S] {
	return &Book[S]{rows: rows, key: key, now: now, byName: make(map[string]*Label[S])}
}

// Find returns what a label stands for. Unless that is known, await is asked for the
// session of its sandbox, which runs; not ok: the sandbox sleeps, and the Label is
// without a session. Errors: not_found, ErrGone, and those of await but ErrAgain.
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

// Read returns what a label stands for, without a session. Errors: not_found, ErrGone.
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

// put takes in what was read from the database at a version, for a session that
// runs. It returns what is there now; false if that is to be read again.
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

// Forget drops labels that are not as they were. What is under way with them ends.
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
