package durable_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/durable"
	"github.com/cayhq/cay/workflow/sqlite"
)

// setup starts a daemon whose machines are directories, and returns its client, which
// sends requests through a wrapped transport.
func setup(t *testing.T, through func(http.RoundTripper) http.RoundTripper) *sandbox.Client {
	t.Helper()
	rt, err := fake.New(filepath.Join(t.TempDir(), "machines"))
	if err != nil {
		t.Fatal(err)
	}
	images, err := sandboxtest.NewImages(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.Data = t.TempDir()
	d, err := daemon.New(t.Context(), cfg, daemon.Options{
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Runtime: rt, Images: images, Listener: ln, DestroyOnStop: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Stop(), rt.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(cfg.AdminTokenFile())
	if err != nil {
		t.Fatal(err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(transport.CloseIdleConnections)
	var rounds http.RoundTripper = transport
	if through != nil {
		rounds = through(rounds)
	}
	return sandbox.NewClient(sandbox.ClientOptions{
		URL: d.URL(), Token: strings.TrimSpace(string(token)), HTTPClient: &http.Client{Transport: rounds},
	})
}

// start runs a workflow whose steps use c.
func start[In, Out any](t *testing.T, c *sandbox.Client, d *workflow.Definition[In, Out], in In) (*workflow.Client, *workflow.Run[Out]) {
	t.Helper()
	client, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "workflows.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	worker := workflow.NewWorker(client, workflow.WorkerConfig{
		Definitions: workflow.Definitions(d), Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err := worker.Start(durable.WithClient(t.Context(), c)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(worker.Stop)
	run, err := d.Start(t.Context(), client, in)
	if err != nil {
		t.Fatal(err)
	}
	return client, run
}

// left returns the existing sandboxes.
func left(t *testing.T, c *sandbox.Client) []sandbox.Sandbox {
	t.Helper()
	page, err := c.List(t.Context(), sandbox.ListParams{})
	if err != nil {
		t.Fatal(err)
	}
	return page.Items
}

const secret = "s3cret-value"

// TestHandle uses the methods of a sandbox as a program does, and checks that the log
// contains no secret.
func TestHandle(t *testing.T) {
	t.Parallel()
	c := setup(t, nil)
	type report struct {
		Text   string
		Copy   []byte // such a string is refused
		Exit   int
		Tags   map[string]string
		Signal int
		Handle *durable.Handle
	}
	d := workflow.Define("handle", func(ctx workflow.Context, _ int) (r report, err error) {
		box, err := durable.Create(ctx, sandbox.CreateParams{Env: map[string]string{"PASSWORD": secret}})
		if err != nil {
			return r, err
		}
		defer func() { err = errors.Join(err, box.Delete(workflow.WithoutCancel(ctx))) }()
		r.Handle = box
		if err := box.WriteFiles(ctx, durable.File{Path: "a/b.sh", Data: []byte("#!/bin/sh\n# " + secret + "\necho out; echo err >&2; exit 3\n"), Mode: 0o755}); err != nil {
			return r, err
		}
		result, err := box.Run(ctx, sandbox.CommandParams{Argv: []string{"a/b.sh"}})
		if err != nil {
			return r, err
		}
		r.Text, r.Exit = string(result.Stdout)+string(result.Stderr), result.Exit.Code
		if _, err := box.Run(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", "printf 'caf\\303\\251 \\377' > text"}}); err != nil {
			return r, err
		}
		text, err := box.ReadFile(ctx, "text")
		if err != nil {
			return r, err
		}
		r.Copy = text
		if _, err := box.ReadFile(ctx, "missing"); !errors.Is(err, &cay.Error{Code: cay.FileNotFound}) {
			return r, errors.Join(errors.New("read of a missing file"), err)
		}
		if err := box.Remove(ctx, "text", false); err != nil {
			return r, err
		}
		info, err := box.Get(ctx)
		if err != nil {
			return r, err
		}
		r.Tags = info.Tags
		sleeper, err := box.Start(ctx, sandbox.CommandParams{Argv: []string{"sleep", "100"}})
		if err != nil {
			return r, err
		}
		for range 2 { // Stop may be repeated
			if err := sleeper.Signal(ctx, 15); err != nil {
				return r, err
			}
			result, err = sleeper.Wait(ctx)
			if err != nil {
				return r, err
			}
		}
		r.Signal = result.Exit.Signal
		for range 2 {
			if _, err := box.Stop(ctx); err != nil {
				return r, err
			}
		}
		return r, box.Delete(ctx) // and again by the defer
	})
	client, run := start(t, c, d, 0)
	got, err := run.Result(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got.Text != "out\nerr\n" || got.Exit != 3 || string(got.Copy) != "café \xff" || got.Signal != 15 {
		t.Errorf("%+v", got)
	}
	if got.Tags["workflow.run"] != run.ID {
		t.Errorf("tags are %v, the run is %s", got.Tags, run.ID)
	}
	if got.Handle == nil || !strings.HasPrefix(got.Handle.ID, "sbx_") || got.Handle.Name == "" {
		t.Errorf("the handle is %+v", got.Handle)
	}
	if boxes := left(t, c); len(boxes) > 0 {
		t.Errorf("left: %+v", boxes)
	}
	for event, err := range client.Follow(t.Context(), run.ID, 1) {
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range [][]byte{event.Payload, event.Input} {
			var v json.RawMessage
			if len(p) == 0 || client.Value(p, &v) != nil {
				continue
			}
			if strings.Contains(string(v), secret) || strings.Contains(string(v), c.Token) {
				t.Errorf("%s of %s says %s", event.Type, event.ID, v)
			}
		}
	}
}

// lossy drops the answers to some requests, after the requests were carried out.
type lossy struct {
	next http.RoundTripper
	lose func(*http.Request) bool
}

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(r)
	if err == nil && l.lose(r) {
		_, err = io.Copy(io.Discard, resp.Body) // the request was carried out
		resp.Body.Close()
		return nil, errors.Join(errors.New("the line went dead"), err)
	}
	return resp, err
}

// Calls that create an object create exactly one, although only the last attempt gets an
// answer.
func TestCreate_AnswersLost(t *testing.T) {
	t.Parallel()
	losses := map[string]*atomic.Int64{"/v1/sandboxes": {}, "/fork": {}, "/snapshots": {}, "/commands": {}}
	for _, n := range losses {
		n.Store(2)
	}
	c := setup(t, func(next http.RoundTripper) http.RoundTripper {
		return &lossy{next: next, lose: func(r *http.Request) bool {
			if r.Method != http.MethodPost {
				return false
			}
			for suffix, n := range losses {
				if strings.HasSuffix(r.URL.Path, suffix) {
					return n.Add(-1) >= 0
				}
			}
			return false
		}}
	})
	d := workflow.Define("lost", func(ctx workflow.Context, _ int) (copies int, err error) {
		box, err := durable.Create(ctx, sandbox.CreateParams{})
		if err != nil {
			return 0, err
		}
		if result, err := box.Run(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo x >> x; cat x"}}); err != nil || string(result.Stdout) != "x\n" {
			return 0, errors.Join(fmt.Errorf("the command has run more than once, or not at all: %+v", result), err)
		}
		if _, err := box.Snapshot(ctx, sandbox.SnapshotParams{}); err != nil {
			return 0, err
		}
		forks, err := box.Fork(ctx, sandbox.ForkParams{Count: 2})
		return len(forks), err
	})
	_, run := start(t, c, d, 0)
	n, err := run.Result(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n != 2 {
		t.Errorf("it got %d forks", n)
	}
	if boxes := left(t, c); len(boxes) != 3 {
		t.Errorf("there are %d sandboxes, want 3: %+v", len(boxes), boxes)
	}
	snaps, err := c.ListSnapshots(t.Context(), sandbox.SnapshotListParams{})
	if err != nil {
		t.Fatal(err)
	}
	made := 0
	for _, s := range snaps.Items {
		if strings.HasPrefix(s.Name, "step-") {
			made++
		}
	}
	if made != 1 {
		t.Errorf("there are %d snapshots of the step: %+v", made, snaps.Items)
	}
	for path, n := range losses {
		if n.Load() == 2 {
			t.Errorf("no answer of %s was lost", path)
		}
	}
}

// A run that is cancelled while its sandbox is being created gets its Handle, and deletes
// the sandbox.
func TestCreate_Cancelled(t *testing.T) {
	t.Parallel()
	making, goOn := make(chan struct{}), make(chan struct{})
	c := setup(t, func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/v1/sandboxes") {
				close(making)
				<-goOn
			}
			return resp, err
		})
	})
	d := workflow.Define("cancelled", func(ctx workflow.Context, _ int) (id string, err error) {
		saga := workflow.NewSaga(ctx)
		defer saga.Guard(&err)
		box, err := durable.Create(ctx, sandbox.CreateParams{})
		if err != nil {
			return "", err
		}
		box.DeleteOn(saga)
		return box.ID, workflow.Sleep(ctx, time.Hour)
	})
	_, run := start(t, c, d, 0)
	<-making
	if err := run.Cancel(t.Context(), workflow.CancelParams{Reason: "test"}); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if _, err := run.Result(t.Context()); !errors.Is(err, workflow.ErrCancelled) {
		t.Errorf("the run ended with %v", err)
	}
	if boxes := left(t, c); len(boxes) > 0 {
		t.Errorf("left: %+v", boxes)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A command is killed when its timeout is over.
func TestRun_Timeout(t *testing.T) {
	t.Parallel()
	c := setup(t, nil)
	d := workflow.Define("timeout", func(ctx workflow.Context, _ int) (code int, err error) {
		box, err := durable.Create(ctx, sandbox.CreateParams{})
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, box.Delete(workflow.WithoutCancel(ctx))) }()
		short, cancel := workflow.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		if _, err := box.Run(short, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo $$ > pid; exec sleep 100"}}); !errors.Is(err, workflow.ErrTimeout) {
			return 0, errors.Join(errors.New("no timeout"), err)
		}
		result, err := box.Run(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", "while kill -0 $(cat pid) 2>/dev/null; do :; done"}, Timeout: sandbox.Duration(time.Minute)})
		if err != nil {
			return 0, err
		}
		return result.Exit.Code, nil
	})
	_, run := start(t, c, d, 0)
	code, err := run.Result(t.Context())
	if err != nil || code != 0 {
		t.Errorf("the command was not killed: %d, %v", code, err)
	}
}
