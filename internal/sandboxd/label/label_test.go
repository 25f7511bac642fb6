package label

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// run is a Session.
type run struct {
	ctx    context.Context
	cancel context.CancelFunc
	paused bool
}

func begin(t *testing.T) *run {
	ctx, cancel := context.WithCancel(t.Context())
	return &run{ctx: ctx, cancel: cancel}
}

func (r *run) Running() bool            { return !r.paused }
func (r *run) Context() context.Context { return r.ctx }

// rows is a Rows with the content of a database.
type rows map[string]store.Declared

func (r rows) Declared(_ context.Context, name string) (store.Declared, error) {
	d, ok := r[name]
	if !ok {
		return d, cay.Errorf(cay.NotFound, "no %s", name)
	}
	return d, nil
}

// world is a Book with one sandbox's labels.
type world struct {
	*Book[*run]
	t       *testing.T
	rows    rows
	now     time.Time
	session *run   // nil: the sandbox is asleep
	asked   int    // number of calls for the session
	then    func() // runs during such a call
	name    string
}

func open(t *testing.T) *world {
	w := &world{t: t, now: time.UnixMilli(1_700_000_000_000), name: strings.Repeat("a", ident.LabelLength), session: begin(t), then: func() {}}
	w.rows = rows{w.name: {SandboxID: "sbx_1", Port: 80, Access: sandbox.Private, Epoch: 1, Status: sandbox.Running}}
	w.Book = New[*run](w.rows, []byte("key"), func() time.Time { return w.now })
	return w
}

func (w *world) find(name string) (*Label[*run], error) {
	return w.Find(w.t.Context(), name, func(context.Context, store.Declared) (*run, bool, error) {
		w.asked++
		s := w.session
		w.then()
		return s, s != nil, nil
	})
}

func TestBook_Find(t *testing.T) {
	t.Parallel()
	w := open(t)
	first := checktest.Must(w.find(w.name))(t)
	if first.Port != 80 || first.Session != w.session || first.Context.Err() != nil {
		t.Errorf("got %+v", first)
	}
	if again := checktest.Must(w.find(w.name))(t); again != first || w.asked != 1 {
		t.Errorf("it was asked for %d times", w.asked)
	}
	w.session.paused = true // not cached
	checktest.Must(w.find(w.name))(t)
	if w.asked != 2 {
		t.Errorf("it was asked for %d times", w.asked)
	}
	w.session.cancel()
	if first.Context.Err() == nil {
		t.Error("it outlives its session")
	}
	for _, name := range []string{"", "x", strings.Repeat("b", ident.LabelLength)} {
		_, err := w.find(name)
		checktest.Code(t, err, cay.NotFound)
	}
	w.ForgetSandbox("sbx_1")
	w.rows[w.name] = store.Declared{SandboxID: "sbx_1", Gone: true, Status: sandbox.Running}
	if _, err := w.find(w.name); !errors.Is(err, ErrGone) {
		t.Errorf("a port that was removed: %v", err)
	}
	w.rows[w.name] = store.Declared{SandboxID: "sbx_1"}
	if _, err := w.find(w.name); !errors.Is(err, ErrGone) {
		t.Errorf("a sandbox that was deleted: %v", err)
	}
}

func TestBook_Asleep(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.session = nil
	for range 2 { // nothing is cached
		if l := checktest.Must(w.find(w.name))(t); l.Session != nil || l.Context != nil || l.Port != 80 {
			t.Errorf("got %+v", l)
		}
	}
	w.session = begin(t)
	if l := checktest.Must(w.find(w.name))(t); l.Session != w.session {
		t.Errorf("got %+v", l)
	}
}

// A label that changes between its reading and its caching is read again.
func TestBook_Races(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.then = func() {
		w.then = func() {}
		w.rows[w.name] = store.Declared{SandboxID: "sbx_1", Port: 80, Access: sandbox.Public, Epoch: 2, Status: sandbox.Running}
		w.Forget(map[string]bool{w.name: true})
	}
	l := checktest.Must(w.find(w.name))(t)
	if l.Access != sandbox.Public || w.asked != 2 {
		t.Errorf("got %+v, asked for %d times", l, w.asked)
	}
	w.Forget(nil)
	if l.Context.Err() != nil {
		t.Error("nothing was to be forgotten")
	}
	w.Forget(map[string]bool{w.name: true})
	if !errors.Is(context.Cause(l.Context), ErrGone) {
		t.Errorf("it ends with %v", context.Cause(l.Context))
	}
	w.then = func() { // the session ends, and another one begins
		w.session.cancel()
		w.session = begin(t)
		w.then = func() {}
	}
	if l := checktest.Must(w.find(w.name))(t); l.Session != w.session || l.Context.Err() != nil {
		t.Errorf("got %+v", l)
	}
}

func TestBook_Links(t *testing.T) {
	t.Parallel()
	w := open(t)
	ctx, expires := t.Context(), w.now.Add(time.Hour)
	l := checktest.Must(w.Read(ctx, w.name))(t)
	token := w.Link(l, expires)
	if until, err := w.CheckLink(ctx, w.name, token); err != nil || !until.Equal(expires) {
		t.Errorf("until %v, %v", until, err)
	}
	other := strings.Repeat("c", ident.LabelLength)
	w.rows[other] = store.Declared{SandboxID: "sbx_1", Port: 81, Epoch: 1, Status: sandbox.Running}
	for _, wrong := range []string{"", ".", token + "x", "-1." + token, strings.Replace(token, ".", "", 1), "zzzzzzzzzzzzzzzz.x"} {
		_, err := w.CheckLink(ctx, w.name, wrong)
		checktest.Code(t, err, cay.Unauthenticated)
	}
	_, err := w.CheckLink(ctx, other, token)
	checktest.Code(t, err, cay.Unauthenticated)
	w.now = expires
	_, err = w.CheckLink(ctx, w.name, token)
	checktest.Code(t, err, cay.Unauthenticated)
	w.now = w.now.Add(-time.Minute)
	d := w.rows[w.name]
	d.Epoch++
	w.rows[w.name] = d
	_, err = w.CheckLink(ctx, w.name, token)
	checktest.Code(t, err, cay.Unauthenticated)
}
