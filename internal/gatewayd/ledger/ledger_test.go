package ledger

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/leaktest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		crashChild(dir)
		return
	}
	leaktest.Main(m)
}

// clock is a wall clock that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock(text string) *clock {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	return &clock{now: t}
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (c *clock) set(text string) { c.add(newClock(text).now.Sub(c.Now())) }

// fixture is a Book that can be opened again.
type fixture struct {
	*Book
	t     *testing.T
	db    *db.DB
	path  string
	clock *clock
	opts  Options
}

// setup opens a Book whose clock stands at noon on a Wednesday.
func setup(t *testing.T, change ...func(*Options)) *fixture {
	t.Helper()
	f := &fixture{t: t, path: filepath.Join(t.TempDir(), "gateway.db"), clock: newClock("2026-11-18T12:00:00Z")}
	f.opts = Options{Now: f.clock.Now, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	for _, c := range change {
		c(&f.opts)
	}
	f.open()
	t.Cleanup(f.close)
	return f
}

func (f *fixture) open() {
	f.t.Helper()
	var err error
	f.db, err = db.Open(context.Background(), f.path, db.Options{})
	checktest.OK(f.t, err)
	f.Book, err = Open(context.Background(), f.db, f.opts)
	checktest.OK(f.t, err)
}

func (f *fixture) close() {
	f.t.Helper()
	checktest.OK(f.t, errors.Join(f.Book.Close(), f.db.Close()))
}

func (f *fixture) reopen() {
	f.t.Helper()
	f.close()
	f.open()
}

func (f *fixture) budget(scope gateway.Scope, ref string, p gateway.BudgetParams) {
	f.t.Helper()
	if p.Period == "" {
		p.Period = gateway.Daily
	}
	_, err := f.SetBudget(f.t.Context(), "team", gateway.BudgetID{Scope: scope, Ref: ref}, p)
	checktest.OK(f.t, err)
}

// spent checks a budget.
func (f *fixture) spent(scope gateway.Scope, ref string, spent, held gateway.Money) *gateway.Budget {
	f.t.Helper()
	b, err := f.GetBudget(f.t.Context(), "team", gateway.BudgetID{Scope: scope, Ref: ref})
	checktest.OK(f.t, err)
	if b.Spent != spent || b.Held != held {
		f.t.Errorf("%s %q has spent %s and holds %s; want %s and %s", scope, ref, b.Spent, b.Held, spent, held)
	}
	return b
}

func (f *fixture) admit(c *Caller, n Need) Hold {
	f.t.Helper()
	h, err := f.Admit(f.t.Context(), c, n)
	checktest.OK(f.t, err)
	return h
}

// caller returns a Caller with a token, which has no rate limits.
func caller(tags ...string) *Caller {
	return &Caller{TeamID: "team", ProjectID: "prj", KeyID: "tok", User: "alice", Tags: tags}
}

// cost returns the Need of a call.
func cost(m gateway.Money) Need { return Need{Cost: m} }

// request returns the record of a call that cost m.
func request(c *Caller, m gateway.Money) *gateway.Request {
	return &gateway.Request{
		ID: NewID(), CreatedAt: time.Date(2026, 11, 18, 12, 0, 0, 0, time.UTC), TeamID: c.TeamID, ProjectID: c.ProjectID, KeyID: c.KeyID, User: c.User, Tags: c.Tags,
		Surface: "messages", Model: "a/b", Status: gateway.Succeeded, Cost: &m, MarketCost: &m,
	}
}

func wantKind(t testing.TB, err error, kind hub.ErrorKind) *hub.Error {
	t.Helper()
	var e *hub.Error
	if !errors.As(err, &e) || e.Kind != kind {
		t.Fatalf("error is %v, want one of the kind %s", err, kind)
	}
	return e
}

const cent = gateway.Dollar / 100
