package sqlstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/workflowd"
)

const childDSN = "CAY_TEST_POSTGRES_OWNER"

func TestMain(m *testing.M) {
	if dsn := os.Getenv(childDSN); dsn != "" {
		ownRuns(dsn)
	}
	leaktest.Main(m)
}

var serveW = []workflowd.Served{{Workflow: "w"}}

// briefLease is for tests that wait for the end of a lease; it is long enough for a busy
// machine to work within it.
const briefLease = 3 * time.Second

// pair opens two stores on one database, of which the second has workers and renews
// its lease.
func pair(t *testing.T, lease time.Duration) (a, b *Postgres) {
	t.Helper()
	dsn := pgtest.DSN(t)
	a = openPostgres(t, dsn, PostgresOptions{Lease: lease})
	b = openPostgres(t, dsn, PostgresOptions{Lease: lease})
	b.Serve(serveW)
	ctx, stop := context.WithCancel(context.Background())
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for wait(ctx, lease/4) == nil {
			if err := b.Renew(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("renew: %v", err)
			}
		}
	})
	t.Cleanup(func() { stop(); renewing.Wait() })
	return a, b
}

// anyRun makes await accept a notice about any run, or about all.
const anyRun = "any"

// await waits for a notice.
func await(t *testing.T, p *Postgres, kind workflowd.NoticeKind, run string) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case n := <-p.Notices():
			if n.Kind == kind && (n.Run == run || run == anyRun) {
				return
			}
		case <-late:
			t.Fatalf("no notice %s %s", kind, run)
		}
	}
}

// claimAll claims runs, whenever it gets a notice, until it has n.
func claimAll(t *testing.T, p *Postgres, n int) []string {
	t.Helper()
	var ids []string
	for {
		runs, err := p.Claim(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range runs {
			ids = append(ids, r.ID)
		}
		if len(ids) >= n {
			slices.Sort(ids)
			return ids
		}
		await(t, p, workflowd.NoticeClaim, "")
	}
}

func tryStep(p *Postgres, r *history.Run) error {
	return p.Commit(context.Background(), &workflowd.Group{Settle: func() workflowd.Records {
		return workflowd.Records{Logs: []workflowd.Log{appendStep(r)}}
	}})
}

// freeze stops the background work of a process, without the process knowing.
func freeze(p *Postgres) {
	p.closing()
	p.running.Wait()
}

func TestPostgres_TakeOverOfTheFrozen(t *testing.T) {
	t.Parallel()
	a, b := pair(t, briefLease)
	r, asleep := startRun(t, a, "wrun_1"), startRun(t, a, "wrun_2")
	commitGroup(t, a, workflowd.Records{
		Logs: []workflowd.Log{{Run: asleep, Events: []history.Event{
			{Slot: 3, Type: history.WaitCreated, ID: "wait_a.1", At: 1, Until: 7},
		}}},
		Asleep: []string{asleep.ID},
	})
	freeze(a)
	if got := claimAll(t, b, 1); !slices.Equal(got, []string{"wrun_1"}) {
		t.Fatalf("claimed %v, want the one that is awake", got)
	}
	due, err := b.Due(t.Context(), time.UnixMilli(10), 10)
	if err != nil || len(due) != 1 || due[0].Run != "wrun_2" {
		t.Fatalf("timers %v, %v; want that of the sleeping run", due, err)
	}
	// The process continues.
	late := *r
	checktest.Code(t, tryStep(a, &late), cay.Conflict)
	checktest.Code(t, a.Renew(t.Context()), cay.Conflict)
	_, err = a.Claim(t.Context(), 1)
	checktest.Code(t, errors.Join(err, a.Disown(t.Context(), []string{r.ID})), cay.Conflict)
	if err := tryStep(b, r); err != nil {
		t.Fatal(err)
	}
	events, err := b.Events(t.Context(), r.ID, 1, 0)
	if err != nil || len(events) != 3 {
		t.Fatalf("%d events, %v; want 3", len(events), err)
	}
	if err := a.Register(t.Context()); err != nil {
		t.Fatal(err)
	}
	if owned, err := a.Owned(t.Context(), "", 10); err != nil || len(owned) > 0 {
		t.Fatalf("registered anew it owns %v, %v", owned, err)
	}
	startRun(t, a, "wrun_3")
}

// A step's transaction is running while its process is declared dead.
func TestPostgres_TakeOverDuringTransact(t *testing.T) {
	t.Parallel()
	a, b := pair(t, briefLease)
	r := startRun(t, a, "wrun_1")
	if _, err := a.db.Exec("CREATE TABLE mine (n int)"); err != nil {
		t.Fatal(err)
	}
	freeze(a)
	log := appendStep(r)
	err := a.Transact(t.Context(), &workflowd.Group{Settle: func() workflowd.Records {
		return workflowd.Records{Logs: []workflowd.Log{log}}
	}}, func(tx workflowd.Tx) error {
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO mine VALUES (1)"); err != nil {
			return err
		}
		claimAll(t, b, 1)
		return nil
	})
	checktest.Code(t, err, cay.Conflict)
	var n int
	if err := b.db.QueryRow("SELECT count(*) FROM mine").Scan(&n); err != nil || n != 0 {
		t.Fatalf("%d rows of a transaction that was refused, %v", n, err)
	}
}

// A transaction that has passed the fence, and whose process hangs, does not block other
// processes from taking over, and is not stored.
func TestPostgres_TakeOverOfTheStuck(t *testing.T) {
	t.Parallel()
	a, b := pair(t, briefLease)
	r := startRun(t, a, "wrun_1")
	freeze(a)
	tx, err := a.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), a.sql("SELECT cay.fence($1)"), a.epoch.Load()); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), a.sql("INSERT INTO cay.events VALUES ($1, 3, 0, '')"), r.ID); err != nil {
		t.Fatal(err)
	}
	claimAll(t, b, 1)
	if err := tx.Commit(t.Context()); err == nil {
		t.Fatal("it was stored after the take-over")
	}
	if events, err := b.Events(t.Context(), r.ID, 1, 0); err != nil || len(events) != 2 {
		t.Fatalf("%d events, %v", len(events), err)
	}
}

// ownRuns is a process that owns runs until it is killed.
func ownRuns(dsn string) {
	p, err := OpenPostgres(context.Background(), dsn, PostgresOptions{Lease: time.Hour})
	if err != nil {
		panic(err)
	}
	t := &failing{}
	for i := range 3 {
		startRun(t, p, fmt.Sprint("wrun_", i))
	}
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadByte() // which has no end
}

// failing is a testing.TB outside of a test.
type failing struct{ testing.TB }

func (failing) Helper()           {}
func (failing) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// Other processes on the same machine see at once that a process was killed.
func TestPostgres_TakeOverOfTheKilled(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childDSN+"="+dsn)
	c.Stderr = os.Stderr
	if _, err := c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	b := openPostgres(t, dsn, PostgresOptions{Lease: time.Hour})
	b.Serve(serveW)
	if runs, err := b.Claim(t.Context(), 10); err != nil || len(runs) > 0 {
		t.Fatalf("claimed %v of one that lives, %v", runs, err)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	c.Wait()
	killed := time.Now()
	b.awaitPeer(t, b.epoch.Load()-1, false)
	// A process that opens the store now need not wait.
	n := openPostgres(t, dsn, PostgresOptions{Lease: time.Hour})
	n.Serve(serveW)
	if runs, err := n.Claim(t.Context(), 10); err != nil || len(runs) != 3 {
		t.Fatalf("claimed %v of one that is dead, %v", runs, err)
	}
	t.Logf("taken over after %v", time.Since(killed))
}

// A connected process that has stopped renewing its lease loses its runs.
func TestPostgres_TakeOverOfTheExpired(t *testing.T) {
	t.Parallel()
	a, b := pair(t, 2*briefLease)
	startRun(t, a, "wrun_1")
	b.awaitPeer(t, a.epoch.Load(), true)
	if runs, err := b.Claim(t.Context(), 10); err != nil || len(runs) > 0 {
		t.Fatalf("claimed %v of one that has a lease, %v", runs, err)
	}
	claimAll(t, b, 1)
	checktest.Code(t, a.Renew(t.Context()), cay.Conflict)
}

// A process that was stopped in order releases its runs at once.
func TestPostgres_TakeOverOfTheClosed(t *testing.T) {
	t.Parallel()
	a, b := pair(t, time.Hour)
	startRun(t, a, "wrun_1")
	if runs, err := b.Claim(t.Context(), 10); err != nil || len(runs) > 0 {
		t.Fatalf("claimed %v of one that lives, %v", runs, err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	claimAll(t, b, 1)
}

// The claim of a closing process may be committed after the process has given up: other
// processes then get the run.
func TestPostgres_CloseDuringClaim(t *testing.T) {
	t.Parallel()
	a, b := pair(t, time.Hour)
	run := startRun(t, a, "wrun_1")
	if err := a.Disown(t.Context(), []string{run.ID}); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(t.Context(), a.pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	epoch := a.epoch.Load()
	for _, s := range []string{"SELECT cay.fence($1)", "UPDATE cay.runs SET owner = $1"} {
		if _, err := tx.Exec(t.Context(), a.sql(s), epoch); err != nil {
			t.Fatal(err)
		}
	}
	closed := make(chan error, 1)
	go func() { closed <- a.Close() }()
	for waits := false; !waits; { // until it waits for the claim, or forgets it
		if err := b.pool.QueryRow(t.Context(), b.sql(`SELECT NOT EXISTS (SELECT FROM cay.owners WHERE epoch = $1)
			OR EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = $1::bigint AND NOT granted)`), epoch).Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if got := claimAll(t, b, 1); !slices.Equal(got, []string{run.ID}) {
		t.Errorf("others get %v", got)
	}
}

func TestPostgres_ClaimWhatIsServed(t *testing.T) {
	t.Parallel()
	a, b := pair(t, time.Hour)
	var all []string
	for id, change := range map[string]func(*history.Run){
		"wrun_plain":    func(r *history.Run) {},
		"wrun_pinned":   func(r *history.Run) { r.Build = "b1" },
		"wrun_old":      func(r *history.Run) { r.Build = "b0" },
		"wrun_refund":   func(r *history.Run) { r.Workflow = "refund" },
		"wrun_project":  func(r *history.Run) { r.Project = "q" },
		"wrun_priority": func(r *history.Run) { r.Priority = 5 },
	} {
		r := *startRun(t, a, id)
		change(&r)
		// Columns such as workflow and project never change in practice; the test sets
		// them as if the run had been created with them.
		if _, err := a.db.Exec(a.sql("UPDATE cay.runs SET build = $2, workflow = $3, project = $4, priority = $5 WHERE id = $1"),
			id, r.Build, r.Workflow, r.Project, r.Priority); err != nil {
			t.Fatal(err)
		}
		all = append(all, id)
	}
	if err := a.Disown(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	await(t, b, workflowd.NoticeClaim, "")
	claim := func(limit int, want ...string) {
		t.Helper()
		runs, err := b.Claim(t.Context(), limit)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range runs {
			got = append(got, r.ID)
		}
		if !slices.Equal(got, want) {
			t.Errorf("claimed %v, want %v", got, want)
		}
	}
	b.Serve(nil)
	claim(10)
	b.Serve(serveW)
	claim(1, "wrun_priority")
	claim(10, "wrun_plain")
	b.Serve([]workflowd.Served{{Workflow: "w", Build: "b1"}})
	claim(10, "wrun_pinned")
	b.Serve([]workflowd.Served{{Workflow: "refund"}, {Workflow: "w", Project: "q"}})
	claim(10, "wrun_project", "wrun_refund")
	if n, err := a.Running(t.Context(), "", "w", ""); err != nil || n != 4 {
		t.Errorf("%d running, %v; want 4", n, err)
	}
}

// Sleeping runs are claimed many at a time, and are not returned.
func TestPostgres_ClaimSleeping(t *testing.T) {
	t.Parallel()
	a, b := pair(t, time.Hour)
	var rec workflowd.Records
	for i := range 50 {
		r := startRun(t, a, fmt.Sprintf("wrun_%02d", i))
		if i > 0 {
			rec.Asleep = append(rec.Asleep, r.ID)
		}
	}
	commitGroup(t, a, rec)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if got := claimAll(t, b, 1); !slices.Equal(got, []string{"wrun_00"}) {
		t.Errorf("claimed %v", got)
	}
	owned, err := b.Take(t.Context(), append(rec.Asleep, "wrun_00", "wrun_none"))
	if err != nil || len(owned) != 50 {
		t.Errorf("owns %d runs, %v; want 50", len(owned), err)
	}
	if awake, err := b.Owned(t.Context(), "", 100); err != nil || len(awake) != 1 {
		t.Errorf("%d are awake, %v; want 1", len(awake), err)
	}
}

func TestPostgres_Take(t *testing.T) {
	t.Parallel()
	a, b := pair(t, time.Hour)
	startRun(t, a, "wrun_1")
	startRun(t, a, "wrun_2")
	startRun(t, b, "wrun_3")
	b.Serve(nil) // whatever b has workers for
	take := func(want ...string) {
		t.Helper()
		got, err := b.Take(t.Context(), []string{"wrun_1", "wrun_2", "wrun_3", "wrun_none"})
		if slices.Sort(got); err != nil || !slices.Equal(got, want) {
			t.Errorf("owns %v, %v; want %v", got, err, want)
		}
	}
	take("wrun_3")
	if err := a.Disown(t.Context(), []string{"wrun_2"}); err != nil {
		t.Fatal(err)
	}
	take("wrun_2", "wrun_3")
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	take("wrun_1", "wrun_2", "wrun_3")
}

func TestPostgres_ClaimTogether(t *testing.T) {
	t.Parallel()
	a, b := pair(t, time.Hour)
	const n = 300
	var ids []string
	for i := range n {
		ids = append(ids, startRun(t, a, fmt.Sprintf("wrun_%03d", i)).ID)
	}
	c := openPostgres(t, b.DSN(), PostgresOptions{Lease: time.Hour})
	c.Serve(serveW)
	if err := a.Disown(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var got []string
	var wg sync.WaitGroup
	for _, p := range []*Postgres{b, c, b, c} {
		wg.Go(func() {
			for range n / 10 {
				runs, err := p.Claim(t.Context(), 10)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, r := range runs {
					got = append(got, r.ID)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(got)
	if !slices.Equal(got, ids) {
		t.Errorf("%d claims of %d runs, some missing or twice", len(got), n)
	}
}

func TestPostgres_Inbox(t *testing.T) {
	t.Parallel()
	a, b := pair(t, time.Hour)
	r := startRun(t, a, "wrun_1")
	own := startRun(t, b, "wrun_2")
	received := func(key string) history.Event {
		return history.Event{Type: history.HookReceived, ID: "hook_a.1", Key: key, Payload: []byte("json1")}
	}
	inbox := func(p *Postgres, want ...string) []int64 {
		t.Helper()
		messages, err := p.Inbox(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		var ids []int64
		var got []string
		for _, m := range messages {
			ids, got = append(ids, m.ID), append(got, m.Run+" "+m.Event.Key)
		}
		if !slices.Equal(got, want) {
			t.Errorf("inbox %v, want %v", got, want)
		}
		return ids
	}
	for _, key := range []string{"x", "y"} {
		if _, err := b.Post(t.Context(), workflowd.Message{Run: r.ID, Event: received(key)}); err != nil {
			t.Fatal(err)
		}
	}
	await(t, a, workflowd.NoticeInbox, "")
	inbox(b)
	ids := inbox(a, "wrun_1 x", "wrun_1 y")
	_, err := b.Post(t.Context(), workflowd.Message{Run: "wrun_none"})
	checktest.Code(t, err, cay.NotFound)
	log := appendStep(r)
	commitGroup(t, a, workflowd.Records{Logs: []workflowd.Log{log}, Inbox: ids[:1]})
	inbox(a, "wrun_1 y")
	// A sender reads the verdict on a message, once.
	id, err := b.Post(t.Context(), workflowd.Message{Run: r.ID, Event: received("v")})
	if err != nil {
		t.Fatal(err)
	}
	if v, err := b.Verdict(t.Context(), id); v != nil || err != nil {
		t.Errorf("before it was decided: %+v, %v", v, err)
	}
	commitGroup(t, a, workflowd.Records{Verdicts: []workflowd.Verdict{{ID: id, Code: cay.QuotaExceeded, Why: "full"}}})
	inbox(a, "wrun_1 y")
	if v, err := b.Verdict(t.Context(), id); err != nil || v == nil || v.Code != cay.QuotaExceeded || v.Why != "full" {
		t.Errorf("a message that was refused: %+v, %v", v, err)
	}
	_, err = b.Verdict(t.Context(), id)
	checktest.Code(t, err, cay.NotFound)
	// The group posts messages for an existing run and for a missing run.
	commitGroup(t, b, workflowd.Records{Logs: []workflowd.Log{appendStep(own)}, Post: []workflowd.Message{
		{Run: r.ID, Event: received("z")}, {Run: "wrun_none", Event: received("z")}, {Run: own.ID, Event: received("self")},
	}})
	await(t, a, workflowd.NoticeInbox, "")
	inbox(a, "wrun_1 y", "wrun_1 z")
	inbox(b, "wrun_2 self")
	// Messages follow the run to its next owner, who gets a notice.
	if err := a.Disown(t.Context(), []string{r.ID}); err != nil {
		t.Fatal(err)
	}
	inbox(a)
	claimAll(t, b, 1)
	await(t, b, workflowd.NoticeInbox, "")
	inbox(b, "wrun_1 y", "wrun_1 z", "wrun_2 self")
	r.Status = history.Completed
	r.Events++
	commitGroup(t, b, workflowd.Records{Logs: []workflowd.Log{{Run: r, Events: []history.Event{{Slot: r.Events, Type: history.RunCompleted}}}}})
	inbox(b, "wrun_2 self")
}

// A message for a continued run whose owner died before it read the message is moved to
// the last run of the chain, for that run's owner.
func TestPostgres_InboxOfChain(t *testing.T) {
	t.Parallel()
	a, b := pair(t, time.Hour)
	first := startRun(t, a, "wrun_1")
	alone := startRun(t, a, "wrun_9")
	second, third := *first, *first
	second.ID, second.First, second.Previous = "wrun_2", first.ID, first.ID
	third.ID, third.First, third.Previous = "wrun_3", first.ID, second.ID
	post := func(run string) {
		t.Helper()
		if _, err := b.Post(t.Context(), workflowd.Message{Run: run, Event: history.Event{Type: history.CancelRequested, Reason: "of " + run}}); err != nil {
			t.Fatal(err)
		}
	}
	begun := func(r history.Run) {
		commitGroup(t, a, workflowd.Records{Runs: []history.Run{r}, Logs: []workflowd.Log{{Run: &r, Events: []history.Event{
			{Slot: 1, Type: history.RunCreated, Name: "w"}, {Slot: 2, Type: history.RunStarted},
		}}}})
	}
	ends := func(r history.Run, next string) {
		r.Status, r.Next, r.Events = history.Completed, next, r.Events+1
		commitGroup(t, a, workflowd.Records{Logs: []workflowd.Log{{Run: &r, Events: []history.Event{{Slot: r.Events, Type: history.RunCompleted, Token: next}}}}})
	}
	begun(second)
	begun(third)
	post(first.ID)
	post(second.ID)
	post(alone.ID)
	ends(*first, second.ID)
	ends(second, third.ID)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	post(first.ID) // from a sender that believed the run to be live
	claimAll(t, b, 2)
	for {
		await(t, b, workflowd.NoticeInbox, "")
		messages, err := b.Inbox(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range messages {
			got = append(got, m.Run+" "+m.Event.Reason)
		}
		slices.Sort(got)
		if slices.Equal(got, []string{"wrun_3 of wrun_1", "wrun_3 of wrun_1", "wrun_3 of wrun_2", "wrun_9 of wrun_9"}) {
			break
		}
		t.Logf("the inbox is %v", got)
	}
}

func TestPostgres_Changed(t *testing.T) {
	t.Parallel()
	a, b := pair(t, time.Hour)
	// When process a learns of process b, it reports that any run may have changed.
	for !a.listener.isOther(b.epoch.Load()) {
		if err := wait(t.Context(), time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	r := startRun(t, a, "wrun_1")
	for range 3 { // the report about all runs includes it at first
		if err := tryStep(a, r); err != nil {
			t.Fatal(err)
		}
		await(t, b, workflowd.NoticeChanged, anyRun)
	}
	if err := tryStep(a, r); err != nil {
		t.Fatal(err)
	}
	await(t, b, workflowd.NoticeChanged, r.ID)
	commitGroup(t, a, workflowd.Records{Chunks: []workflowd.StreamChunks{{Run: "wrun_2", Stream: "s", Chunks: []history.Chunk{{Data: []byte("x")}}}}})
	await(t, b, workflowd.NoticeChanged, "wrun_2")
	// More runs than fit in one notification, and too many to be named.
	for n, want := range map[int]string{900: "wrun_899", 2000: ""} {
		var rec workflowd.Records
		for i := range n {
			rec.Chunks = append(rec.Chunks, workflowd.StreamChunks{Run: fmt.Sprint("wrun_", i)})
		}
		a.notifier.changed(&rec)
		await(t, b, workflowd.NoticeChanged, want)
	}
	// If a process dies before it has reported its changes, watchers in other processes
	// read the store again.
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, b, workflowd.NoticeChanged, "")
	for len(a.Notices()) > 0 {
		if n := <-a.Notices(); n.Kind == workflowd.NoticeChanged && n.Run != "" {
			t.Errorf("a process is told what it did itself: %v", n)
		}
	}
}

// If no engine takes notices for a while, a single NoticeAll replaces them.
func TestPostgres_NoticesOverflow(t *testing.T) {
	t.Parallel()
	p := openPostgres(t, pgtest.DSN(t), PostgresOptions{})
	for range 2 * maxNotices {
		p.listener.report(workflowd.Notice{Kind: workflowd.NoticeChanged, Run: "wrun_1"})
	}
	for len(p.Notices()) > 0 {
		<-p.Notices()
	}
	p.listener.report(workflowd.Notice{Kind: workflowd.NoticeChanged, Run: "wrun_2"})
	if n := <-p.Notices(); n.Kind != workflowd.NoticeAll {
		t.Errorf("after some were lost: %v", n)
	}
}

// The listening connection is lost: the store reconnects before others take the process
// for dead, and reports NoticeAll.
func TestPostgres_ListenerReconnects(t *testing.T) {
	t.Parallel()
	a, b := pair(t, 20*time.Second)
	r := startRun(t, a, "wrun_1")
	await(t, a, workflowd.NoticeAll, "")
	b.awaitPeer(t, a.epoch.Load(), true)
	if _, err := b.db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1::bigint::oid
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, a.epoch.Load()); err != nil {
		t.Fatal(err)
	}
	await(t, a, workflowd.NoticeAll, "")
	if _, err := b.Post(t.Context(), workflowd.Message{Run: r.ID}); err != nil {
		t.Fatal(err)
	}
	await(t, a, workflowd.NoticeInbox, "")
	if err := tryStep(a, r); err != nil {
		t.Fatal(err)
	}
}

// awaitPeer waits until a process is seen as connected, or as not connected.
func (p *Postgres) awaitPeer(t *testing.T, epoch int32, connected bool) {
	t.Helper()
	for {
		peers, err := collect(t.Context(), p, scanPeer, pgPeers, p.epoch.Load(), int64(uint32(p.sessionClass)))
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(peers, func(o peer) bool { return o.epoch == epoch && o.connected == connected }) {
			return
		}
	}
}

func TestIsGone(t *testing.T) {
	t.Parallel()
	me := thisProcess()
	f := strings.Fields(me)
	if len(f) != 4 {
		t.Fatalf("this process is %q", me)
	}
	c := exec.Command("true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	dead := fmt.Sprintf("%s %s %d 1", f[0], f[1], c.Process.Pid)
	for process, want := range map[string]bool{
		me: false, dead: true, "": false, "x y z": false,
		strings.Join([]string{f[0], f[1], f[2], "1"}, " "): true,  // another process had the pid
		strings.Replace(dead, f[0], "other-boot", 1):       false, // on another machine
		strings.Replace(dead, f[1], "pid:[1]", 1):          false, // in a container
	} {
		if got := isGone(process); got != want {
			t.Errorf("%q is gone: %t", process, got)
		}
	}
}
