package sandboxd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

func defaultCaller(t testing.TB) context.Context {
	return sandboxtest.As(t.Context(), sandboxtest.Default)
}

func wantStatus(t testing.TB, s *sandbox.Sandbox, status sandbox.Status, reason sandbox.Reason) {
	t.Helper()
	if s.Status != status || s.Reason != reason {
		t.Fatalf("sandbox is %s (%s, %s), want %s (%s)", s.Status, s.Reason, s.Message, status, reason)
	}
}

// awaitEnd waits until a sandbox ends by itself.
func awaitEnd(t testing.TB, h *sandboxtest.Harness, id string, cause func()) *sandbox.Sandbox {
	t.Helper()
	ctx := defaultCaller(t)
	w := checktest.Must(h.Watch(ctx, id, ".", sandbox.WatchParams{}))(t)
	defer w.Close()
	cause()
	for err := error(nil); err != io.EOF; { // the end of a machine changes files, which the watch may tell first
		if _, err = w.Next(); err != nil && err != io.EOF {
			t.Fatalf("the watch ended with %v", err)
		}
	}
	return checktest.Must(h.Engine.Stop(ctx, id))(t)
}

func minutes(n int) sandbox.Duration { return sandbox.Duration(n) * sandbox.Duration(time.Minute) }

func TestRestart(t *testing.T) {
	t.Run("Adopts", func(t *testing.T) {
		t.Parallel()
		h, _ := startFake(t)
		ctx := defaultCaller(t)
		s := checktest.Must(h.Create(ctx, sandbox.CreateParams{
			Name: "one", Env: map[string]string{"X": "kept"}, Timeout: minutes(10), IdempotencyKey: "k",
		}))(t)
		cmd := checktest.Must(h.Engine.Start(ctx, s.ID, sandbox.CommandParams{
			Argv: []string{"sh", "-c", "echo before; read x; echo $x"}, Stdin: true,
		}))(t)
		h.Clock.Advance(4 * time.Minute)
		h.Restart(t)
		got := checktest.Must(h.Get(ctx, "one"))(t)
		wantStatus(t, got, sandbox.Running, "")
		if left := got.ExpiresAt.Sub(h.Clock.Now()); left != 6*time.Minute {
			t.Errorf("%v are left, want 6m", left)
		}
		if again := checktest.Must(h.Create(ctx, sandbox.CreateParams{
			Name: "one", Env: map[string]string{"X": "kept"}, Timeout: minutes(10), IdempotencyKey: "k",
		}))(t); again.ID != s.ID {
			t.Error("the idempotency key was forgotten")
		}
		// The command goes on, and its output is there from the start.
		if err := h.WriteStdin(ctx, s.ID, cmd.ID, strings.NewReader("after\n"), true); err != nil {
			t.Fatal(err)
		}
		out := checktest.Must(h.Output(ctx, s.ID, cmd.ID, sandbox.OutputParams{Follow: true}))(t)
		if text := sandboxtest.ReadText(t, out); text != "before\nafter\n" {
			t.Errorf("output is %q", text)
		}
		out = checktest.Must(h.Exec(ctx, s.ID, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo $X $FROM_IMAGE"}}))(t)
		if text := sandboxtest.ReadText(t, out); text != "kept yes\n" {
			t.Errorf("environment is %q", text)
		}
		if n := h.Images.Leased(); n != 2 {
			t.Errorf("%d leases are held, want 2", n)
		}
		ended := awaitEnd(t, h, s.ID, func() { h.Clock.Advance(6 * time.Minute) })
		wantStatus(t, ended, sandbox.Stopped, sandbox.ReasonTimeout)
	})
	t.Run("CallsDuringClose", func(t *testing.T) {
		t.Parallel()
		h, _ := startFake(t)
		ctx := defaultCaller(t)
		for name, rest := range map[string]func(context.Context, string) (*sandbox.Sandbox, error){"stopped": h.Engine.Stop, "paused": h.Pause} {
			checktest.Must(h.Create(ctx, sandbox.CreateParams{Name: name}))(t)
			checktest.Must(rest(ctx, name))(t)
		}
		h.Engine.Close()
		// Calls of clients come until the last moment. Each ends.
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		_, err := h.Exec(ctx, "stopped", sandbox.CommandParams{Argv: []string{"true"}})
		checktest.Code(t, err, cay.Unavailable)
		for _, name := range []string{"stopped", "paused"} {
			_, err := h.Resume(ctx, name, sandbox.ResumeParams{})
			checktest.Code(t, err, cay.Unavailable)
		}
	})
	t.Run("TimeoutWhileDown", func(t *testing.T) {
		t.Parallel()
		h, rt := startFake(t)
		ctx := defaultCaller(t)
		s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Timeout: minutes(1)}))(t)
		h.Engine.Close()
		h.Clock.Advance(2 * time.Minute)
		h.Restart(t)
		// The timer is due at once. Stop waits for the expiry, or finds it done.
		w, err := h.Watch(ctx, s.ID, ".", sandbox.WatchParams{})
		if err == nil {
			if _, err := w.Next(); err != io.EOF {
				t.Fatal(err)
			}
			w.Close()
		}
		wantStatus(t, checktest.Must(h.Engine.Stop(ctx, s.ID))(t), sandbox.Stopped, sandbox.ReasonTimeout)
		if left := checktest.Must(rt.List(ctx))(t); len(left) != 0 {
			t.Errorf("machines %v are left", left)
		}
	})
	t.Run("Reboot", func(t *testing.T) {
		// Another boot's clock means nothing: the remaining time is computed from
		// recorded usage.
		t.Parallel()
		h, _ := startFake(t)
		ctx := defaultCaller(t)
		s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Timeout: minutes(10)}))(t)
		h.Clock.Advance(3 * time.Minute)
		h.Engine.Close()
		h.Clock.Reboot()
		h.Restart(t)
		got := checktest.Must(h.Get(ctx, s.ID))(t)
		if left := got.ExpiresAt.Sub(h.Clock.Now()); left != 7*time.Minute {
			t.Errorf("%v are left, want 7m", left)
		}
	})
	t.Run("Paused", func(t *testing.T) {
		t.Parallel()
		h, _ := startFake(t)
		ctx := defaultCaller(t)
		s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
		checktest.Must(h.Pause(ctx, s.ID))(t)
		h.Restart(t)
		wantStatus(t, checktest.Must(h.Get(ctx, s.ID))(t), sandbox.Paused, "")
		_, err := h.Stat(ctx, s.ID, ".", false)
		checktest.Code(t, err, cay.Conflict)
		checktest.Must(h.Resume(ctx, s.ID, sandbox.ResumeParams{}))(t)
		checktest.Must(h.Stat(ctx, s.ID, ".", false))(t)
	})
	t.Run("Lost", func(t *testing.T) {
		t.Parallel()
		h, rt := startFake(t)
		ctx := defaultCaller(t)
		s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
		h.Engine.Close()
		if err := rt.Kill(s.SessionID, machine.Exit{Reason: sandbox.ReasonCrashed}); err != nil {
			t.Fatal(err)
		}
		h.Restart(t)
		got := checktest.Must(h.Get(ctx, s.ID))(t)
		wantStatus(t, got, sandbox.Failed, sandbox.ReasonLost)
		if got.StoppedAt == nil || got.Message == "" {
			t.Errorf("got %+v", got)
		}
		if left := checktest.Must(rt.List(ctx))(t); len(left) != 0 {
			t.Errorf("machines %v are left", left)
		}
	})
	t.Run("Orphan", func(t *testing.T) {
		t.Parallel()
		h, rt := startFake(t)
		ctx := defaultCaller(t)
		// A machine whose row was removed behind the engine's back.
		s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
		h.Engine.Close()
		checktest.Must(h.Config.DB.Exec(ctx, `DELETE FROM sandboxes WHERE id = ?`, s.ID))(t)
		h.Restart(t)
		if left := checktest.Must(rt.List(ctx))(t); len(left) != 0 {
			t.Errorf("machines %v are left", left)
		}
	})
	t.Run("DestroyOnStop", func(t *testing.T) {
		t.Parallel()
		h, rt := startFake(t)
		ctx := defaultCaller(t)
		h.Config.DestroyOnStop = true
		h.Restart(t)
		s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
		h.Engine.Close()
		if left := checktest.Must(rt.List(ctx))(t); len(left) != 0 {
			t.Errorf("machines %v are left", left)
		}
		_, err := h.Create(ctx, sandbox.CreateParams{})
		checktest.Code(t, err, cay.Unavailable)
		h.Restart(t)
		wantStatus(t, checktest.Must(h.Get(ctx, s.ID))(t), sandbox.Stopped, sandbox.ReasonRequested)
	})
	t.Run("BrokenLink", func(t *testing.T) {
		t.Parallel()
		h, rt := startFake(t)
		ctx := defaultCaller(t)
		s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
		if err := rt.Break(s.SessionID); err != nil {
			t.Fatal(err)
		}
		checktest.Must(h.Stat(ctx, s.ID, ".", false))(t)
	})
}

func TestPending(t *testing.T) {
	// begin starts a creation that waits for its image, and returns its result.
	begin := func(h *sandboxtest.Harness, ctx context.Context, p sandbox.CreateParams) <-chan error {
		result := make(chan error, 1)
		go func() {
			_, err := h.Create(ctx, p)
			result <- err
		}()
		return result
	}
	setup := func(t *testing.T) (*sandboxtest.Harness, func(), <-chan string) {
		h, _ := startFake(t)
		points := make(chan string, 100)
		h.Engine.Reached(func(p string) { points <- p })
		unblock := h.Images.Block()
		t.Cleanup(unblock)
		return h, unblock, points
	}
	t.Run("CallerLeaves", func(t *testing.T) {
		t.Parallel()
		h, _, points := setup(t)
		ctx, cancel := context.WithCancel(defaultCaller(t))
		result := begin(h, ctx, sandbox.CreateParams{Name: "one"})
		await(t, points, "inserted")
		cancel()
		checktest.Code(t, <-result, cay.Canceled)
		wantStatus(t, checktest.Must(h.Get(defaultCaller(t), "one"))(t), sandbox.Failed, sandbox.ReasonStartFailed)
	})
	t.Run("FirstLeavesSecondGoesOn", func(t *testing.T) {
		t.Parallel()
		h, unblock, points := setup(t)
		p := sandbox.CreateParams{Name: "one", IdempotencyKey: "k"}
		ctx, cancel := context.WithCancel(defaultCaller(t))
		first := begin(h, ctx, p)
		await(t, points, "inserted")
		second := begin(h, defaultCaller(t), p)
		cancel()
		checktest.Code(t, <-first, cay.Canceled)
		await(t, points, "inserted") // it is the second request's turn
		unblock()
		if err := <-second; err != nil {
			t.Fatal(err)
		}
		wantStatus(t, checktest.Must(h.Get(defaultCaller(t), "one"))(t), sandbox.Running, "")
	})
	t.Run("CallerLeavesResumerGoesOn", func(t *testing.T) {
		t.Parallel()
		h, unblock, points := setup(t)
		ctx, cancel := context.WithCancel(defaultCaller(t))
		creation := begin(h, ctx, sandbox.CreateParams{Name: "one", Persistent: new(true)})
		await(t, points, "inserted")
		resumed := make(chan error, 1)
		go func() {
			_, err := h.Resume(defaultCaller(t), "one", sandbox.ResumeParams{})
			resumed <- err
		}()
		cancel()
		checktest.Code(t, <-creation, cay.Canceled)
		unblock()
		if err := <-resumed; err != nil {
			t.Fatal(err)
		}
		wantStatus(t, checktest.Must(h.Get(defaultCaller(t), "one"))(t), sandbox.Running, "")
	})
	t.Run("Stop", func(t *testing.T) {
		t.Parallel()
		h, _, points := setup(t)
		ctx := defaultCaller(t)
		result := begin(h, ctx, sandbox.CreateParams{Name: "one"})
		await(t, points, "inserted")
		_, err := h.Stat(ctx, "one", ".", false)
		checktest.Code(t, err, cay.Conflict)
		wantStatus(t, checktest.Must(h.Engine.Stop(ctx, "one"))(t), sandbox.Stopped, sandbox.ReasonRequested)
		checktest.Code(t, <-result, cay.Stopped)
	})
	t.Run("Delete", func(t *testing.T) {
		t.Parallel()
		h, _, points := setup(t)
		ctx := defaultCaller(t)
		result := begin(h, ctx, sandbox.CreateParams{Name: "one"})
		await(t, points, "inserted")
		if err := h.Delete(ctx, "one"); err != nil {
			t.Fatal(err)
		}
		checktest.Code(t, <-result, cay.Stopped)
		_, err := h.Get(ctx, "one")
		checktest.Code(t, err, cay.NotFound)
	})
	t.Run("Close", func(t *testing.T) {
		t.Parallel()
		h, _, points := setup(t)
		ctx := defaultCaller(t)
		result := begin(h, ctx, sandbox.CreateParams{Name: "one"})
		await(t, points, "inserted")
		h.Engine.Close()
		checktest.Code(t, <-result, cay.Unavailable)
		h.Restart(t)
		wantStatus(t, checktest.Must(h.Get(ctx, "one"))(t), sandbox.Failed, sandbox.ReasonStartFailed)
	})
}

// await waits until the engine reaches a point.
func await(t testing.TB, points <-chan string, point string) {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		select {
		case p := <-points:
			if p == point {
				return
			}
		case <-timeout:
			t.Fatalf("the engine did not come to %q", point)
		}
	}
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	h, rt := startFake(t)
	ctx := defaultCaller(t)
	rt.FailStart(func(machine.Spec) error { return cay.Errorf(cay.NoSpace, "the disk is full") })
	_, err := h.Create(ctx, sandbox.CreateParams{Name: "one"})
	checktest.Code(t, err, cay.NoSpace)
	rt.FailStart(func(machine.Spec) error { return errors.New("secret detail") })
	_, err = h.Create(ctx, sandbox.CreateParams{Name: "two"})
	checktest.Code(t, err, cay.Internal)
	for name, message := range map[string]string{"one": "the disk is full", "two": "internal error; see the daemon's log"} {
		s := checktest.Must(h.Get(ctx, name))(t)
		wantStatus(t, s, sandbox.Failed, sandbox.ReasonStartFailed)
		if s.Message != message {
			t.Errorf("message is %q, want %q", s.Message, message)
		}
	}
	if left := checktest.Must(rt.List(ctx))(t); len(left) != 0 || h.Images.Leased() != 0 {
		t.Errorf("machines %v and %d leases are left", left, h.Images.Leased())
	}
	// The failed creations do not count against a quota.
	rt.FailStart(nil)
	checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
}

// stubborn is a Runtime whose machines refuse to be destroyed while set to.
type stubborn struct {
	machine.Runtime
	refuse atomic.Bool
}

type stubbornInstance struct {
	machine.Instance
	rt *stubborn
}

func (s *stubborn) Start(ctx context.Context, spec machine.Spec) (machine.Instance, error) {
	i, err := s.Runtime.Start(ctx, spec)
	return stubbornInstance{i, s}, err
}

func (i stubbornInstance) Destroy(ctx context.Context) error {
	if i.rt.refuse.Load() {
		return errors.New("device or resource busy")
	}
	return i.Instance.Destroy(ctx)
}

func TestDestroyFails(t *testing.T) {
	t.Parallel()
	var rt *stubborn
	h, _ := startFake(t, func(c *sandboxd.Config) {
		rt = &stubborn{Runtime: c.Runtime}
		c.Runtime = rt
	})
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
	rt.refuse.Store(true)
	_, err := h.Engine.Stop(ctx, s.ID)
	checktest.Code(t, err, cay.Internal)
	wantStatus(t, checktest.Must(h.Get(ctx, s.ID))(t), sandbox.Stopping, sandbox.ReasonRequested)
	_, err = h.Stat(ctx, s.ID, ".", false)
	checktest.Code(t, err, cay.Stopped)
	// The sampler retries.
	points := make(chan string, 10)
	h.Engine.Reached(func(p string) { points <- p })
	rt.refuse.Store(false)
	h.Clock.Advance(30 * time.Second)
	await(t, points, "ended")
	wantStatus(t, checktest.Must(h.Get(ctx, s.ID))(t), sandbox.Stopped, sandbox.ReasonRequested)
}

func TestDatabaseFull(t *testing.T) {
	// R20: creations fail cleanly, running sandboxes keep answering and can be stopped,
	// and nothing is left over or damaged.
	t.Parallel()
	h, rt := startFake(t)
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
	var pages int
	if err := h.Config.DB.QueryRow(ctx, `PRAGMA page_count`).Scan(&pages); err != nil {
		t.Fatal(err)
	}
	limit := func(n int) {
		t.Helper()
		// The pragma holds for the single writing connection; its value cannot be a bound
		// parameter.
		if err := h.Config.DB.Write(ctx, func(tx *db.Tx) error {
			return tx.QueryRow(ctx, "PRAGMA max_page_count = "+strconv.Itoa(n)).Scan(&n)
		}); err != nil {
			t.Fatal(err)
		}
	}
	limit(pages)
	var err error
	for range 100 {
		if _, err = h.Create(ctx, sandbox.CreateParams{Tags: map[string]string{"x": strings.Repeat("x", 256)}}); err != nil {
			break
		}
	}
	checktest.Code(t, err, cay.NoSpace)
	checktest.Must(h.Stat(ctx, s.ID, ".", false))(t)
	machines := len(checktest.Must(rt.List(ctx))(t))
	page := checktest.Must(h.List(ctx, sandbox.ListParams{Status: []sandbox.Status{sandbox.Running}, Limit: 200}))(t)
	if machines != len(page.Items) {
		t.Errorf("%d machines for %d sandboxes", machines, len(page.Items))
	}
	limit(pages + 1000)
	wantStatus(t, checktest.Must(h.Engine.Stop(ctx, s.ID))(t), sandbox.Stopped, sandbox.ReasonRequested)
	if err := h.Config.DB.Check(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestCallLimit(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t, func(c *sandboxd.Config) { c.Limits.CallsPerSandbox = 2 })
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
	var watches []sandbox.Watch
	for range 2 {
		watches = append(watches, checktest.Must(h.Watch(ctx, s.ID, ".", sandbox.WatchParams{}))(t))
	}
	_, err := h.Stat(ctx, s.ID, ".", false)
	checktest.Code(t, err, cay.QuotaExceeded)
	// Another sandbox has its own limit.
	other := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
	checktest.Must(h.Stat(ctx, other.ID, ".", false))(t)
	for _, w := range watches {
		if err := errors.Join(w.Close(), w.Close()); err != nil { // closing twice is allowed
			t.Fatal(err)
		}
	}
	checktest.Must(h.Stat(ctx, s.ID, ".", false))(t)
}

// A team whose sandboxes have many calls waiting for guests leaves room for other teams.
func TestCallLimit_Team(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t, func(c *sandboxd.Config) { c.Limits.Calls = 4 })
	ctx := defaultCaller(t)
	for range 2 {
		s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
		w := checktest.Must(h.Watch(ctx, s.ID, ".", sandbox.WatchParams{}))(t)
		t.Cleanup(func() { w.Close() })
	}
	another := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
	_, err := h.Stat(ctx, another.ID, ".", false)
	checktest.Code(t, err, cay.QuotaExceeded)
	theirs := sandboxtest.As(t.Context(), sandboxtest.ProjectB)
	s := checktest.Must(h.Create(theirs, sandbox.CreateParams{}))(t)
	checktest.Must(h.Stat(theirs, s.ID, ".", false))(t)
}

func TestStopOfTheDead(t *testing.T) {
	// A stop that comes before the machine's death is recorded does not hide the reason
	// of the death.
	t.Parallel()
	h, rt := startFake(t)
	ctx := defaultCaller(t)
	seen, release := make(chan struct{}), make(chan struct{})
	h.Engine.Reached(func(p string) {
		if p == "seen dead" {
			close(seen)
			<-release
		}
	})
	defer close(release)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
	if err := rt.Kill(s.SessionID, machine.Exit{Reason: sandbox.ReasonOOM, Message: "too much"}); err != nil {
		t.Fatal(err)
	}
	<-seen
	wantStatus(t, checktest.Must(h.Engine.Stop(ctx, s.ID))(t), sandbox.Failed, sandbox.ReasonOOM)
}

// unreapable is a Runtime that cannot remove the machines of an earlier one.
type unreapable struct {
	machine.Runtime
	refuse atomic.Bool
}

func (u *unreapable) Adopt(context.Context, string) (machine.Instance, error) {
	return nil, cay.Errorf(cay.NotFound, "it does not run")
}

func (u *unreapable) Reap(ctx context.Context, id string) error {
	if u.refuse.Load() {
		return errors.New("device or resource busy")
	}
	return u.Runtime.Reap(ctx, id)
}

func TestReapFails(t *testing.T) {
	// A machine that cannot be removed does not keep the daemon from working.
	t.Parallel()
	rt := &unreapable{}
	h, under := startFake(t, func(c *sandboxd.Config) {
		rt.Runtime = c.Runtime
		c.Runtime = rt
	})
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
	rt.refuse.Store(true)
	h.Restart(t)
	_, err := h.Engine.Stop(ctx, s.ID)
	checktest.Code(t, err, cay.Unavailable)
	checktest.Code(t, h.Delete(ctx, s.ID), cay.Unavailable)
	checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)

	points := make(chan string, 10)
	h.Engine.Reached(func(p string) { points <- p })
	rt.refuse.Store(false)
	h.Clock.Advance(30 * time.Second)
	await(t, points, "recovered")
	wantStatus(t, checktest.Must(h.Get(ctx, s.ID))(t), sandbox.Failed, sandbox.ReasonLost)
	if left := checktest.Must(under.List(ctx))(t); len(left) != 1 {
		t.Errorf("machines %v, want the new one only", left)
	}
}

// recording is a Runtime that reports calls on machines it adopts.
type recording struct {
	machine.Runtime
	done chan string
}

type recordingInstance struct {
	machine.Instance
	rt *recording
}

func (r *recording) Adopt(ctx context.Context, id string) (machine.Instance, error) {
	i, err := r.Runtime.Adopt(ctx, id)
	return recordingInstance{i, r}, err
}

func (i recordingInstance) Pause(ctx context.Context) error {
	i.rt.done <- "pause"
	return i.Instance.Pause(ctx)
}

func (i recordingInstance) SetNetwork(n sandbox.Network) error {
	i.rt.done <- "network " + string(n.Mode)
	return i.Instance.SetNetwork(n)
}

// TestRecoverEffects simulates a death between a row's change and its effect: recovery
// must apply the effect.
func TestRecoverEffects(t *testing.T) {
	t.Parallel()
	rt := &recording{done: make(chan string, 10)}
	h, _ := startFake(t, func(c *sandboxd.Config) {
		rt.Runtime = c.Runtime
		c.Runtime = rt
	})
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
	h.Engine.Close()
	checktest.Must(h.Config.DB.Exec(ctx, `UPDATE sandboxes SET status = 'paused', network = '{"mode":"deny-all"}' WHERE id = ?`, s.ID))(t)
	h.Restart(t)
	got := checktest.Must(h.Get(ctx, s.ID))(t)
	wantStatus(t, got, sandbox.Paused, "")
	if first, second := <-rt.done, <-rt.done; first != "network deny-all" || second != "pause" {
		t.Errorf("recovery did %q, %q; want the network, then the pause", first, second)
	}
	// A machine that is paused already is not paused again.
	h.Restart(t)
	if only := <-rt.done; only != "network deny-all" || len(rt.done) != 0 {
		t.Errorf("recovery did %q and %d more, want the network alone", only, len(rt.done))
	}
	checktest.Must(h.Resume(ctx, s.ID, sandbox.ResumeParams{}))(t)
	checktest.Must(h.Stat(ctx, s.ID, ".", false))(t)
}

// adopting is a Runtime that reports the machine it adopted last.
type adopting struct {
	machine.Runtime
	last machine.Instance
}

func (a *adopting) Adopt(ctx context.Context, id string) (_ machine.Instance, err error) {
	a.last, err = a.Runtime.Adopt(ctx, id)
	return a.last, err
}

// Recovery knows whether a machine is paused, and does not guess it from the guest's
// response time: a slow machine is paused if its row says so, and a paused one is resumed
// if its row says so.
func TestRecoverPause_slow(t *testing.T) {
	t.Parallel()
	adopting := &adopting{}
	h, rt := startFake(t, func(c *sandboxd.Config) {
		adopting.Runtime = c.Runtime
		c.Runtime = adopting
	})
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
	paused := func() bool {
		t.Helper()
		paused, sure := adopting.last.Paused()
		if !sure {
			t.Error("nobody knows whether it is paused")
		}
		return paused
	}
	h.Engine.Close()
	checktest.Must(h.Config.DB.Exec(ctx, `UPDATE sandboxes SET status = 'paused' WHERE id = ?`, s.ID))(t)
	if err := rt.Freeze(s.SessionID, true); err != nil {
		t.Fatal(err)
	}
	h.Restart(t)
	if !paused() {
		t.Error("a machine that did not answer was taken for a paused one")
	}
	h.Engine.Close()
	checktest.Must(h.Config.DB.Exec(ctx, `UPDATE sandboxes SET status = 'running', frozen = 1 WHERE id = ?`, s.ID))(t)
	h.Restart(t)
	if paused() {
		t.Error("a machine that was paused for a save was left so")
	}
	checktest.Must(h.Stat(ctx, s.ID, ".", false))(t)
}

// passing is a Runtime whose machines cannot be adopted for a while: Adopt fails, or the
// first call on an adopted machine.
type passing struct {
	machine.Runtime
	adopt, network atomic.Pointer[error]
	tries          atomic.Int32 // calls of Adopt
}

type passingInstance struct {
	machine.Instance
	rt *passing
}

func (p *passing) Adopt(ctx context.Context, id string) (machine.Instance, error) {
	p.tries.Add(1)
	if err := p.adopt.Load(); err != nil {
		return nil, *err
	}
	in, err := p.Runtime.Adopt(ctx, id)
	return passingInstance{in, p}, err
}

func (i passingInstance) SetNetwork(n sandbox.Network) error {
	if err := i.rt.network.Load(); err != nil {
		return *err
	}
	return i.Instance.SetNetwork(n)
}

// passingErrors are failures that do not mean that the machine is gone.
var passingErrors = map[string]error{
	"NoSpace": fmt.Errorf("write state.json: %w", unix.ENOSPC), "NoSpaceCode": cay.Errorf(cay.NoSpace, "the host's disk is full"),
	"DescriptorsOfProcess": fmt.Errorf("open: %w", unix.EMFILE), "DescriptorsOfHost": fmt.Errorf("open: %w", unix.ENFILE),
	"Memory": fmt.Errorf("socketpair: %w", unix.ENOMEM), "Disk": fmt.Errorf("read state.json: %w", unix.EIO),
	"Buffers": fmt.Errorf("socketpair: %w", unix.ENOBUFS), "Permission": fmt.Errorf("open: %w", unix.EACCES),
	"Deadline": context.DeadlineExceeded, "NoAnswer": cay.Errorf(cay.Unavailable, "the machine's kernel did not answer within 10s"),
	"Unknown": errors.New("who knows"),
}

// A machine that cannot be adopted because of a temporary failure keeps its files and its
// processes, and is adopted after the failure.
func TestRecover_PassingErrors(t *testing.T) {
	t.Parallel()
	rt := &passing{}
	h, _ := startFake(t, func(c *sandboxd.Config) {
		rt.Runtime = c.Runtime
		c.Runtime = rt
	})
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Name: "kept", Timeout: minutes(600)}))(t)
	cmd := checktest.Must(h.Engine.Start(ctx, s.ID, sandbox.CommandParams{Argv: []string{"cat"}, Stdin: true}))(t)
	for name, cause := range passingErrors {
		for step, failing := range map[string]*atomic.Pointer[error]{"Adopt": &rt.adopt, "SetNetwork": &rt.network} {
			failing.Store(&cause)
			h.Restart(t)
			wantStatus(t, checktest.Must(h.Get(ctx, s.ID))(t), sandbox.Running, "")
			_, err := h.Stat(ctx, s.ID, ".", false)
			checktest.Code(t, err, cay.Unavailable)

			points := make(chan string, 10)
			h.Engine.Reached(func(p string) { points <- p })
			failing.Store(nil)
			h.Clock.Advance(30 * time.Second)
			await(t, points, "recovered")
			if _, err := h.Stat(ctx, s.ID, ".", false); err != nil {
				t.Fatalf("%s in %s: %v", name, step, err)
			}
		}
	}
	if err := h.WriteStdin(ctx, s.ID, cmd.ID, strings.NewReader("alive"), true); err != nil {
		t.Fatal(err)
	}
	if text := sandboxtest.ReadText(t, checktest.Must(h.Output(ctx, s.ID, cmd.ID, sandbox.OutputParams{Follow: true}))(t)); text != "alive" {
		t.Errorf("the command wrote %q", text)
	}
}

// The stop of a persistent sandbox that an earlier daemon began waits for the adoption,
// too, and no caller waits for it. A deletion ends the sandbox without adoption.
func TestRecover_PassingErrors_stopping(t *testing.T) {
	t.Parallel()
	rt := &passing{}
	h, under := startFake(t, func(c *sandboxd.Config) {
		rt.Runtime = c.Runtime
		c.Runtime = rt
	})
	ctx := defaultCaller(t)
	yes := true
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Name: "kept", Persistent: &yes}))(t)
	if _, err := h.WriteFile(ctx, s.ID, "f", strings.NewReader("saved"), sandbox.WriteParams{}); err != nil {
		t.Fatal(err)
	}
	h.Engine.Close()
	checktest.Must(h.Config.DB.Exec(ctx, `UPDATE sandboxes SET status = 'stopping', reason = 'requested' WHERE id = ?`, s.ID))(t)
	var full error = cay.Errorf(cay.NoSpace, "the host's disk is full")
	rt.adopt.Store(&full)
	h.Restart(t)
	wantStatus(t, checktest.Must(h.Get(ctx, s.ID))(t), sandbox.Stopping, sandbox.ReasonRequested)
	_, err := h.Engine.Stop(ctx, s.ID)
	checktest.Code(t, err, cay.Unavailable)

	points := make(chan string, 100)
	h.Engine.Reached(func(p string) { points <- p })
	rt.adopt.Store(nil)
	h.Clock.Advance(30 * time.Second)
	await(t, points, "ended")
	wantStatus(t, checktest.Must(h.Engine.Stop(ctx, s.ID))(t), sandbox.Stopped, sandbox.ReasonRequested)
	body, _, err := h.ReadFile(ctx, s.ID, "f", sandbox.ReadParams{}) // resumes the sandbox
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if text := checktest.Must(io.ReadAll(body))(t); string(text) != "saved" {
		t.Errorf("the file has %q", text)
	}

	rt.adopt.Store(&full)
	h.Restart(t)
	if err := h.Delete(ctx, s.ID); err != nil {
		t.Errorf("delete: %v", err)
	}
	if left := checktest.Must(under.List(ctx))(t); len(left) != 0 {
		t.Errorf("machines %v are left", left)
	}
}

// Calls to a sandbox that could not be adopted yet return unavailable: the sandbox has
// not ended, and must not be resumed first.
func TestRecover_PassingErrors_calls(t *testing.T) {
	t.Parallel()
	rt := &passing{}
	h, _ := startFake(t, func(c *sandboxd.Config) {
		rt.Runtime = c.Runtime
		c.Runtime = rt
	})
	ctx := defaultCaller(t)
	long := minutes(600)
	running := checktest.Must(h.Create(ctx, sandbox.CreateParams{Timeout: long}))(t)
	paused := checktest.Must(h.Create(ctx, sandbox.CreateParams{Timeout: long, Ports: []sandbox.PortParams{{Port: 3000}}}))(t)
	paused = checktest.Must(h.Pause(ctx, paused.ID))(t)
	var few error = fmt.Errorf("socketpair: %w", unix.EMFILE)
	rt.adopt.Store(&few)
	h.Restart(t)
	for _, s := range []*sandbox.Sandbox{running, paused} {
		for name, call := range map[string]func() error{
			"read":      func() error { _, err := h.Stat(ctx, s.ID, ".", false); return err },
			"pause":     func() error { _, err := h.Pause(ctx, s.ID); return err },
			"hibernate": func() error { _, err := h.Hibernate(ctx, s.ID); return err },
			"extend":    func() error { _, err := h.Extend(ctx, s.ID, minutes(1)); return err },
			"snapshot":  func() error { _, err := h.CreateSnapshot(ctx, s.ID, sandbox.SnapshotParams{}); return err },
			"stats":     func() error { _, err := h.Stats(ctx, s.ID); return err },
			"policy": func() error {
				_, err := h.Update(ctx, s.ID, sandbox.UpdateParams{Network: &sandbox.Network{Mode: sandbox.DenyAll}})
				return err
			},
			"fork": func() error { _, err := h.Fork(ctx, s.ID, sandbox.ForkParams{}); return err },
			"resume": func() error {
				_, err := h.Resume(ctx, s.ID, sandbox.ResumeParams{})
				return err
			},
		} {
			if err := call(); cay.CodeOf(err) != cay.Unavailable {
				t.Errorf("%s of one that is %s: %v, want unavailable", name, s.Status, err)
			}
		}
	}
	_, err := h.Preview(ctx, paused.Ports[0].Label)
	checktest.Code(t, err, cay.Unavailable)
	points := make(chan string, 10)
	h.Engine.Reached(func(p string) { points <- p })
	rt.adopt.Store(nil)
	h.Clock.Advance(30 * time.Second)
	await(t, points, "recovered")
	await(t, points, "recovered")
	checktest.Must(h.Resume(ctx, paused.ID, sandbox.ResumeParams{}))(t)
	checktest.Must(h.Stat(ctx, running.ID, ".", false))(t)
}

// Adoption is retried soon after a restart, and then at growing intervals.
func TestRecover_PassingErrors_retries(t *testing.T) {
	t.Parallel()
	rt := &passing{}
	h, _ := startFake(t, func(c *sandboxd.Config) {
		rt.Runtime = c.Runtime
		c.Runtime = rt
	})
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Timeout: minutes(600)}))(t)
	var few error = fmt.Errorf("socketpair: %w", unix.EMFILE)
	rt.adopt.Store(&few)
	h.Restart(t)
	for n, wait := range []time.Duration{1, 2, 4, 8} {
		h.Clock.AwaitTimer(t, wait*time.Second)
		if tries := int(rt.tries.Load()); tries != n+1 {
			t.Fatalf("%d tries before a wait of %d s, want %d", tries, wait, n+1)
		}
		h.Clock.Advance(wait * time.Second)
	}
	h.Clock.AwaitTimer(t, 16*time.Second)
	points := make(chan string, 10)
	h.Engine.Reached(func(p string) { points <- p })
	rt.adopt.Store(nil)
	h.Clock.Advance(15 * time.Second) // the sampler's interval
	await(t, points, "recovered")
	checktest.Must(h.Stat(ctx, s.ID, ".", false))(t)
	h.Clock.Advance(time.Second)
	if tries := rt.tries.Load(); tries != 6 {
		t.Errorf("%d tries, want 6", tries)
	}
}
