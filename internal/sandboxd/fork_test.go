package sandboxd_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// forkNames are the names of copies in these tests.
var forkNames = []string{"copy-a", "copy-b", "copy-c"}

// copiesOf returns the sandboxes named as copies.
func copiesOf(t *testing.T, ctx context.Context, e *sandboxd.Engine) []sandbox.Sandbox {
	t.Helper()
	page, err := e.List(ctx, sandbox.ListParams{NamePrefix: "copy-"})
	if err != nil {
		t.Fatal(err)
	}
	return page.Items
}

// sameMachines checks that there is a machine for each running sandbox, and no other.
func sameMachines(t *testing.T, ctx context.Context, e *sandboxd.Engine, rt machine.Runtime) {
	t.Helper()
	page, err := e.List(ctx, sandbox.ListParams{Limit: 200})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{}
	for _, s := range page.Items {
		switch s.Status {
		case sandbox.Running, sandbox.Paused:
			want = append(want, s.SessionID)
		case sandbox.Stopped, sandbox.Failed, sandbox.Hibernated:
		default:
			t.Errorf("sandbox %s is %s", s.Name, s.Status)
		}
	}
	got, err := rt.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("there are machines %q, and sessions %q", got, want)
	}
}

// forkable starts an engine with a saved sandbox.
func forkable(t *testing.T) (h *sandboxtest.Harness, rt machine.Runtime, ctx context.Context, points func(f func(string))) {
	h, fake := startFake(t)
	ctx = defaultCaller(t)
	checktest.Must(h.Create(ctx, sandbox.CreateParams{Name: "src", Network: crashNetwork, Ports: []sandbox.PortParams{{Port: 80}}}))(t)
	checktest.Must(h.CreateSnapshot(ctx, "src", sandbox.SnapshotParams{}))(t)
	return h, fake, ctx, h.Reached
}

// forkOf copies the files of the source.
var forkOf = sandbox.ForkParams{Names: forkNames, Kind: sandbox.FilesystemSnapshot}

// A fork that is interrupted at any point leaves all copies or none.
func TestFork_AllOrNone(t *testing.T) {
	none := func(t *testing.T, h *sandboxtest.Harness, rt machine.Runtime, ctx context.Context) {
		t.Helper()
		if left := copiesOf(t, ctx, h.Engine); len(left) != 0 {
			t.Errorf("left: %+v", left)
		}
		sameMachines(t, ctx, h.Engine, rt)
		if n := h.Images.Leased(); n != 2 {
			t.Errorf("%d leases are held, want the 2 of the source", n)
		}
		h.Reached(func(string) {})
		checktest.Must(h.Fork(ctx, "src", forkOf))(t) // succeeds only if the names are free
	}
	t.Run("OneFails", func(t *testing.T) {
		t.Parallel()
		h, rt := startFake(t)
		ctx := defaultCaller(t)
		checktest.Must(h.Create(ctx, sandbox.CreateParams{Name: "src"}))(t)
		rt.FailStart(func(s machine.Spec) error {
			if s.Hostname == "copy-b" {
				return cay.Errorf(cay.NoSpace, "there is no room for copy-b")
			}
			return nil
		})
		_, err := h.Fork(ctx, "src", forkOf)
		checktest.Code(t, err, cay.NoSpace)
		if !strings.Contains(err.Error(), "no room for copy-b") {
			t.Errorf("the error is %q", err)
		}
		rt.FailStart(nil)
		none(t, h, rt, ctx)
	})
	for _, point := range []string{"fork-inserted", "fork-identified"} {
		t.Run("CallerLeaves/"+point, func(t *testing.T) {
			t.Parallel()
			h, rt, ctx, points := forkable(t)
			leaving, leave := context.WithCancel(ctx)
			points(func(p string) {
				if p == point {
					leave()
				}
			})
			f, err := h.Fork(leaving, "src", forkOf)
			if point == "fork-identified" && err == nil { // the fork committed before the interruption was noticed
				for _, s := range f.Sandboxes {
					wantStatus(t, checktest.Must(h.Get(ctx, s.ID))(t), sandbox.Running, "")
				}
				return
			}
			checktest.Code(t, err, cay.Canceled)
			none(t, h, rt, ctx)
		})
		for name, end := range map[string]func(context.Context, *sandboxd.Engine) error{
			"Stop":   func(ctx context.Context, e *sandboxd.Engine) error { _, err := e.Stop(ctx, "copy-b"); return err },
			"Delete": func(ctx context.Context, e *sandboxd.Engine) error { return e.Delete(ctx, "copy-b") },
		} {
			t.Run(name+"/"+point, func(t *testing.T) {
				t.Parallel()
				h, rt, ctx, points := forkable(t)
				var wg sync.WaitGroup
				points(func(p string) {
					if p == point {
						ended := make(chan struct{})
						h.Reached(func(p string) {
							if p == "stopping" {
								close(ended)
							}
						})
						wg.Go(func() {
							if err := end(ctx, h.Engine); err != nil && cay.CodeOf(err) != cay.NotFound {
								t.Errorf("%s: %v", name, err)
							}
						})
						<-ended // the row is committed; the creating call has not returned yet
					}
				})
				_, err := h.Fork(ctx, "src", forkOf)
				checktest.Code(t, err, cay.Stopped)
				wg.Wait()
				none(t, h, rt, ctx)
			})
		}
	}
	t.Run("Closing", func(t *testing.T) {
		t.Parallel()
		h, rt, ctx, points := forkable(t)
		closed := make(chan struct{})
		points(func(p string) {
			if p == "fork-inserted" {
				go func() {
					defer close(closed)
					h.Restart(t)
				}()
			}
		})
		unblock := h.Images.Block()
		defer unblock()
		_, err := h.Fork(ctx, "src", forkOf)
		checktest.Code(t, err, cay.Unavailable)
		unblock()
		<-closed
		none(t, h, rt, ctx)
	})
	t.Run("SnapshotDeleted", func(t *testing.T) {
		t.Parallel()
		h, rt, ctx, points := forkable(t)
		snap := checktest.Must(h.CreateSnapshot(ctx, "src", sandbox.SnapshotParams{}))(t)
		checktest.Must(h.CreateSnapshot(ctx, "src", sandbox.SnapshotParams{}))(t) // src needs this snapshot from now on
		points(func(p string) {
			if p == "fork-identified" {
				checktest.Must(h.DeleteSnapshot(ctx, snap.ID, sandbox.DeleteSnapshotParams{}))(t)
			}
		})
		_, err := h.Fork(ctx, snap.ID, sandbox.ForkParams{Names: forkNames})
		checktest.Code(t, err, cay.NotFound)
		none(t, h, rt, ctx)
	})
}

// Row S2: a copy gets its own copy of the source's current policy, not of the policy at
// the time when the files were saved.
func TestFork_TodaysPolicy(t *testing.T) {
	t.Parallel()
	h, rt := startFake(t)
	ctx := defaultCaller(t)
	secret := func(value string) sandbox.Network {
		n := crashNetwork
		n.Allow = []sandbox.Domain{{Name: "x.example.com", Rules: []sandbox.Rule{{SetHeaders: map[string]string{"x-key": value}}}}}
		return n.WithDefaults()
	}
	checktest.Must(h.Create(ctx, sandbox.CreateParams{Name: "src", Network: secret("old"), Env: map[string]string{"KEY": "old"}}))(t)
	checktest.Must(h.CreateSnapshot(ctx, "src", sandbox.SnapshotParams{}))(t)
	rotated := secret("rotated")
	checktest.Must(h.Update(ctx, "src", sandbox.UpdateParams{Network: &rotated}))(t)
	check := func(name string, want sandbox.Network) {
		t.Helper()
		s := checktest.Must(h.Get(ctx, name))(t)
		got, err := rt.Network(s.SessionID)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the machine of %s has %v, %v, want %v", name, got, err, want)
		}
		if text := fmt.Sprint(s.Network); strings.Contains(text, "rotated") || strings.Contains(text, "old") {
			t.Errorf("%s shows %s", name, text)
		}
	}
	checktest.Must(h.Fork(ctx, "src", forkOf))(t)
	check("copy-a", rotated)
	own := secret("own")
	checktest.Must(h.Fork(ctx, "src", sandbox.ForkParams{Names: []string{"other"}, Kind: sandbox.FilesystemSnapshot, Network: &own}))(t)
	check("other", own)
	// Each copy keeps its policy, also when the others are gone.
	if err := h.Delete(ctx, "src"); err != nil {
		t.Fatal(err)
	}
	h.Restart(t)
	check("copy-b", rotated)
	check("other", own)
}

// forkLife forks a sandbox, and dies at a point of the fork.
func forkLife(ctx context.Context, dir, point string) error {
	e, _, _, err := crashEngine(ctx, dir)
	if err != nil {
		return err
	}
	if err := e.Open(ctx); err != nil {
		return err
	}
	if _, err := e.Create(ctx, sandbox.CreateParams{Name: "src", Network: crashNetwork, Ports: []sandbox.PortParams{{Port: 80}}}); err != nil {
		return err
	}
	if _, err := e.WriteFile(ctx, "src", "file", strings.NewReader("saved"), sandbox.WriteParams{Size: 5}); err != nil {
		return err
	}
	if _, err := e.CreateSnapshot(ctx, "src", sandbox.SnapshotParams{}); err != nil {
		return err
	}
	e.Reached(dying(point))
	if _, err := e.Fork(ctx, "src", forkOf); err != nil {
		return err
	}
	fmt.Println("forked")
	return e.Delete(ctx, "copy-a")
}

// TestCrash_Fork checks that at whatever point the daemon is killed, there are all copies
// or none, and that each copy, and the source, can be resumed from saved files.
func TestCrash_Fork(t *testing.T) {
	checktest.Long(t)
	for _, c := range []struct {
		point  string
		times  int // how often the daemon reaches the point
		copies int
	}{
		{"fork-inserted", 1, 0}, {"images", 3, 0}, {"started", 3, 0}, {"healthy", 3, 0}, {"fork-identified", 1, 0},
		{"fork-running", 1, 3}, {"stopping", 1, 2}, {"destroyed", 1, 2}, {"ended", 1, 2},
	} {
		for n := 1; n <= c.times; n++ {
			t.Run(fmt.Sprint(c.point, "-", n), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				forked := slices.Contains(crash(t, "forks", dir, fmt.Sprint(c.point, " ", n)), "forked")
				if forked != (c.copies == 2) {
					t.Errorf("that it was forked was said: %v", forked)
				}
				checkForks(t, dir, c.copies)
			})
		}
	}
}

func checkForks(t *testing.T, dir string, want int) {
	e, d, rt := recovered(t, dir)
	ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
	sameMachines(t, ctx, e, rt)
	copies := copiesOf(t, ctx, e)
	if len(copies) != want {
		t.Errorf("there are %d copies, want %d: %+v", len(copies), want, copies)
	}
	for _, s := range append(copies, *checktest.Must(e.Get(ctx, "src"))(t)) {
		// Machines of the fake runtime end with their daemon; saved files remain.
		wantStatus(t, &s, sandbox.Failed, sandbox.ReasonLost)
		if text := sandboxtest.ReadText(t, checktest.Must(e.Exec(ctx, s.ID, sandbox.CommandParams{Argv: []string{"cat", "file"}}))(t)); text != "saved" {
			t.Errorf("%s has %q", s.Name, text)
		}
		s = *checktest.Must(e.Get(ctx, s.ID))(t)
		n, err := rt.Network(s.SessionID)
		if err != nil || !reflect.DeepEqual(n, crashNetwork) {
			t.Errorf("the machine of %s has the policy %v, %v", s.Name, n, err)
		}
		if target, err := e.Preview(ctx, s.Ports[0].Label); err != nil || target.Port != 80 {
			t.Errorf("the preview of %s is %+v, %v", s.Name, target, err)
		}
	}
	for _, s := range copies {
		if err := e.Delete(ctx, s.ID); err != nil {
			t.Error(err)
		}
	}
	checktest.Must(e.Fork(ctx, "src", forkOf))(t) // succeeds only if the names are free
	for _, name := range append(slices.Clone(forkNames), "src") {
		if err := e.Delete(ctx, name); err != nil {
			t.Error(err)
		}
	}
	sameMachines(t, ctx, e, rt)
	if err := d.Check(ctx); err != nil {
		t.Error(err)
	}
}
