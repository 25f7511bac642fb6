package workflowtest

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/workflow"
)

// makeStored writes testdata/stored. Each release that changes the stored form of runs
// writes it once, under a new name; existing files are never written again.
var makeStored = flag.Bool("make-stored", false, "write testdata/stored")

const (
	storedForm = "testdata/stored/form1"
	// The stored runs: the first has ended, the second waits for a hook, the third
	// sleeps.
	storedDone, storedWaiting, storedAsleep = "wrun_01K00000000000000000000001", "wrun_01K00000000000000000000002", "wrun_01K00000000000000000000003"
)

// tour is a workflow that uses every feature a little, and stops twice on the way. It
// must not change, because runs of it are stored.
type tour struct {
	steps atomic.Int64 // number of executed steps
	all   []workflow.Workflow
	main  *workflow.Definition[string, string]
}

func newTour() *tour {
	d := new(tour)
	twice := workflow.Step("twice", func(_ context.Context, n int) (int, error) {
		d.steps.Add(1)
		return 2 * n, nil
	})
	flaky := workflow.Step("flaky", func(ctx context.Context, what string) (string, error) {
		d.steps.Add(1)
		if workflow.StepInfo(ctx).Attempt == 1 {
			return "", workflow.Retryable(errors.New("not yet"), time.Millisecond)
		}
		return strings.ToUpper(what), workflow.Stream[string](ctx, "log").Send("tried", "done")
	})
	child := workflow.Define("tour-child", func(ctx workflow.Context, n int) (int, error) { return twice.Run(ctx, n+1) })
	d.main = workflow.Define("tour", func(ctx workflow.Context, name string) (result string, err error) {
		saga := workflow.NewSaga(ctx)
		defer saga.Guard(&err)
		if err := workflow.SetAttributes(ctx, map[string]string{"name": name}); err != nil {
			return "", err
		}
		loud, err := flaky.Run(ctx, name)
		if err != nil {
			return "", err
		}
		saga.Add("quiet", func(ctx workflow.Context) error {
			_, err := twice.Run(ctx, 0)
			return err
		})
		sums, err := workflow.All(ctx, twice.Go(ctx, 1), twice.Go(ctx, 2), twice.Go(ctx, 3))
		if err != nil {
			return "", err
		}
		more, err := child.Run(ctx, sums[2])
		if err != nil {
			return "", err
		}
		seen := fmt.Sprint(ctx.NewID(), ctx.Now().UnixMilli(), ctx.Rand().IntN(1000))
		same, err := workflow.Do(ctx, "seen", func(context.Context) (string, error) { return seen, nil })
		if err != nil {
			return "", err
		}
		hook, err := workflow.NewHook[string](ctx, "tour:"+name)
		if err != nil {
			return "", err
		}
		word, err := hook.Receive(ctx)
		if err != nil {
			return "", err
		}
		if workflow.Version(ctx, "longer", 1) == 1 {
			if err := workflow.Sleep(ctx, 1000*time.Hour); err != nil {
				return "", err
			}
		}
		last, err := twice.Run(ctx, more)
		return fmt.Sprint(loud, " ", sums, " ", more, " ", word, " ", last, " ", same == seen), err
	})
	d.all = []workflow.Workflow{d.main, child}
	return d
}

// result returns the result of a run of the tour with that name and word.
func (*tour) result(name, word string) string {
	return fmt.Sprintf("%s [2 4 6] 14 %s 28 true", strings.ToUpper(name), word)
}

// TestStored checks that runs stored by an earlier release go on, and that its ended runs
// can be listed, read and replayed. The databases are those of a release whose tables had
// other indexes than today's, in the state that a killed process leaves.
func TestStored(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "workflows.db")
		if *makeStored {
			k := New(t, Options{Path: path + ".new"}, newTour().all...)
			fill(t, k)
			k.SaveHistory(storedDone, storedForm+".json")
			for _, suffix := range []string{"", "-wal"} {
				zip(t, path+".new"+suffix, storedForm+".db"+suffix+".gz")
			}
		}
		for _, suffix := range []string{"", "-wal"} {
			unzip(t, storedForm+".db"+suffix+".gz", path+suffix)
		}
		d := newTour()
		goesOn(t, d, New(t, Options{Path: path}, d.all...))
		Replay(t, storedForm+".json", d.all...)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		open := func(dsn string) workflowd.Store {
			store, err := sqlstore.OpenPostgres(t.Context(), dsn, sqlstore.PostgresOptions{Name: t.Name()})
			if err != nil {
				t.Fatal(err)
			}
			return store
		}
		if *makeStored {
			dsn := pgtest.DSN(t)
			fill(t, newKit(t, open(dsn), Options{}, newTour().all))
			dump(t, dsn, storedForm+".sql")
		}
		dsn := pgtest.DSN(t)
		restore(t, dsn, storedForm+".sql")
		d := newTour()
		goesOn(t, d, newKit(t, open(dsn), Options{}, d.all))
	})
}

// goesOn checks a database that fill has filled, and ends the runs in it.
func goesOn(t *testing.T, d *tour, k *Kit) {
	ctx := t.Context()
	listed := func(when string, q workflow.Query, want ...string) {
		t.Helper()
		page, err := k.Client.List(ctx, q)
		if err != nil {
			t.Fatalf("%s: list %+v: %v", when, q, err)
		}
		var got []string
		for _, run := range page.Items {
			got = append(got, run.ID)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: list %+v: %v, want %v", when, q, got, want)
		}
		counts, err := k.Client.Count(ctx, q)
		n := int64(0)
		for _, c := range counts {
			n += int64(c.Count)
		}
		if err != nil || n != int64(len(want)) {
			t.Errorf("%s: count %+v: %+v, %v, want %d", when, q, counts, err, len(want))
		}
	}
	all := []string{storedDone, storedWaiting, storedAsleep}
	running, completed := []workflow.Status{workflow.StatusRunning}, []workflow.Status{workflow.StatusCompleted}
	const before = "before they go on"
	listed(before, workflow.Query{}, all...)
	listed(before, workflow.Query{Workflow: "tour", Statuses: running}, storedWaiting, storedAsleep)
	listed(before, workflow.Query{Statuses: completed}, storedDone)
	listed(before, workflow.Query{Workflow: "tour"}, all...)
	listed(before, workflow.Query{Attributes: map[string]string{"name": "bob"}}, storedWaiting)
	listed(before, workflow.Query{HasAttributes: []string{"name"}}, all...)
	hooks, err := k.Client.Hooks(ctx, "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	tokens := make(map[string]string)
	for _, h := range hooks.Items {
		tokens[h.Run] = h.Token
	}
	if want := map[string]string{storedWaiting: "tour:bob", storedAsleep: "tour:cyd"}; !maps.Equal(tokens, want) {
		t.Errorf("hooks: %v, want %v", tokens, want)
	}
	streams, err := k.Client.Streams(ctx, storedAsleep)
	if err != nil || len(streams) != 1 || streams[0].Name != "log" || streams[0].Chunks != 2 {
		t.Errorf("streams: %+v, %v, want one of two items", streams, err)
	}

	if got, err := workflow.GetRun[string](k.Client, storedDone).Result(ctx); err != nil || got != d.result("ada", "go") {
		t.Errorf("the run that has ended: %q, %v", got, err)
	}
	var sent []string
	for item, err := range workflow.ReadStream[string](ctx, k.Client, storedDone, "log", 0) {
		if err != nil {
			t.Fatal(err)
		}
		if sent = append(sent, item.Value); len(sent) == 2 {
			break
		}
	}
	if fmt.Sprint(sent) != "[tried done]" {
		t.Errorf("its stream has %v", sent)
	}
	h, err := k.Client.History(ctx, storedDone)
	if err == nil {
		err = workflow.Replay(h, workflow.ClientOptions{}, d.all...)
	}
	if err != nil {
		t.Errorf("replay of the run that has ended: %v", err)
	}

	k.WaitForHook(storedWaiting, "tour:bob")
	if err := workflow.ResumeHook(ctx, k.Client, "tour:bob", "late"); err != nil {
		t.Fatal(err)
	}
	for _, run := range []string{storedWaiting, storedAsleep} {
		k.WaitForSleep(run)
		k.Wake(run)
	}
	for run, want := range map[string]string{storedWaiting: d.result("bob", "late"), storedAsleep: d.result("cyd", "go")} {
		if got, err := workflow.GetRun[string](k.Client, run).Result(ctx); err != nil || got != want {
			t.Errorf("run %s: %q, %v", run, got, err)
		}
	}
	if n := d.steps.Load(); n != 2 {
		t.Errorf("%d steps were executed, want the last one of each of the two runs", n)
	}
	const after = "when they have ended"
	listed(after, workflow.Query{Workflow: "tour", Statuses: running})
	listed(after, workflow.Query{Workflow: "tour", Statuses: completed}, all...)
	listed(after, workflow.Query{HasAttributes: []string{"name"}, Statuses: completed}, all...)
}

// fill makes the stored runs.
func fill(t *testing.T, k *Kit) {
	ctx := t.Context()
	main := newTour().main
	for run, name := range map[string]string{storedDone: "ada", storedWaiting: "bob", storedAsleep: "cyd"} {
		if _, err := main.Start(ctx, k.Client, name, workflow.RunID(run)); err != nil {
			t.Fatal(err)
		}
		k.WaitForHook(run)
		if run == storedWaiting {
			continue
		}
		if err := workflow.ResumeHook(ctx, k.Client, "tour:"+name, "go"); err != nil {
			t.Fatal(err)
		}
		k.WaitForSleep(run)
	}
	k.Wake(storedDone)
	if _, err := workflow.GetRun[string](k.Client, storedDone).Result(ctx); err != nil {
		t.Fatal(err)
	}
}

// dump writes the contents of a database to a file, as statements for any server.
func dump(t *testing.T, dsn, file string) {
	t.Helper()
	tools, err := filepath.Glob("/usr/lib/postgresql/*/bin/pg_dump")
	if err != nil || len(tools) == 0 {
		t.Fatalf("there is no pg_dump: %v", err)
	}
	out, err := exec.Command(tools[0], "--inserts", "--no-owner", "--no-privileges", "--schema=cay", "--dbname="+dsn).Output()
	if err != nil {
		t.Fatal(err)
	}
	var kept []byte
	for line := range bytes.Lines(out) {
		// Drop comments, settings, and psql's own commands.
		if s := string(line); s != "\n" && !strings.HasPrefix(s, "--") && !strings.HasPrefix(s, "SET ") && !strings.HasPrefix(s, "\\") && !strings.Contains(s, "set_config") {
			kept = append(kept, line...)
		}
	}
	if err := os.WriteFile(file, kept, 0o644); err != nil {
		t.Fatal(err)
	}
}

// restore executes the statements in a file.
func restore(t *testing.T, dsn, file string) {
	t.Helper()
	statements, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.PgConn().Exec(t.Context(), string(statements)).ReadAll()
	if err := errors.Join(err, conn.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
}

func zip(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	w := gzip.NewWriter(f)
	_, err = w.Write(b)
	if err := errors.Join(err, w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func unzip(t *testing.T, from, to string) {
	t.Helper()
	f, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
