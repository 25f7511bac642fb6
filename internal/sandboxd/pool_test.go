package sandboxd_test

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

func TestPools(t *testing.T) {
	t.Parallel()
	sandboxtest.RunPools(t, func(t *testing.T, change func(*sandboxd.Config)) *sandboxtest.Harness {
		h, _ := startFake(t, change)
		return h
	})
}

// poolTest is an engine with a pool, on a fake runtime.
type poolTest struct {
	*sandboxtest.Harness
	*sandboxtest.PoolWatch
	rt  *fake.Runtime
	t   testing.TB
	ctx context.Context // the default caller's
}

// startPool starts an engine with a pool of the default kind.
func startPool(t testing.TB, size int, change ...func(*sandboxd.Config)) *poolTest {
	t.Helper()
	w := sandboxtest.NewPoolWatch()
	change = append([]func(*sandboxd.Config){func(c *sandboxd.Config) {
		c.Pools, c.Metrics = []sandboxd.PoolConfig{{Size: size}}, w
	}}, change...)
	h, rt := startFake(t, change...)
	return &poolTest{h, w, rt, t, defaultCaller(t)}
}

// fullPool is startPool, and waits until the pool is full.
func fullPool(t testing.TB, size int, change ...func(*sandboxd.Config)) *poolTest {
	t.Helper()
	p := startPool(t, size, change...)
	p.AwaitReady(t, size)
	return p
}

// machines returns the ids of all machines, sorted.
func (p *poolTest) machines() []string {
	p.t.Helper()
	ids := checktest.Must(p.rt.List(p.ctx))(p.t)
	slices.Sort(ids)
	return ids
}

func (p *poolTest) create(params sandbox.CreateParams) *sandbox.Sandbox {
	p.t.Helper()
	return checktest.Must(p.Create(p.ctx, params))(p.t)
}

// usable checks that a sandbox runs commands.
func (p *poolTest) usable(s *sandbox.Sandbox) {
	p.t.Helper()
	out := checktest.Must(p.Exec(p.ctx, s.ID, sandbox.CommandParams{Argv: []string{"echo", "here"}}))(p.t)
	if text := sandboxtest.ReadText(p.t, out); text != "here\n" {
		p.t.Errorf("a command wrote %q", text)
	}
	if got := checktest.Must(p.Get(p.ctx, s.ID))(p.t); got.Status != sandbox.Running || got.SessionID != s.SessionID {
		p.t.Errorf("the sandbox is %s with session %s, want %s", got.Status, got.SessionID, s.SessionID)
	}
	sessions := checktest.Must(p.Sessions(p.ctx, s.ID, sandbox.SessionParams{}))(p.t)
	if len(sessions.Items) != 1 || sessions.Items[0].ID != s.SessionID {
		p.t.Errorf("its sessions are %+v", sessions.Items)
	}
	if !slices.Contains(p.machines(), s.SessionID) {
		p.t.Errorf("its machine %s is not one of %v", s.SessionID, p.machines())
	}
}

// once calls f when the engine reaches a point for the first time.
func (p *poolTest) once(point string, f func()) {
	var done atomic.Bool
	p.Reached(func(at string) {
		if at == point && !done.Swap(true) {
			f()
		}
	})
}

func TestPool_PolicyFirst(t *testing.T) {
	t.Parallel()
	p := fullPool(t, 1)
	id := p.machines()[0]
	mode := func() sandbox.NetworkMode { return checktest.Must(p.rt.Network(id))(t).Mode }
	if mode() != sandbox.DenyAll {
		t.Errorf("a machine that waits has the policy %s", mode())
	}
	var claimed atomic.Value
	p.once("claimed", func() { claimed.Store(mode()) }) // before the guest gets its identity
	network := sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "example.com"}}}
	s := p.create(sandbox.CreateParams{Network: network})
	if s.SessionID != id || claimed.Load() != sandbox.Custom || mode() != sandbox.Custom {
		t.Errorf("the machine %s has the policy %v, then %s", s.SessionID, claimed.Load(), mode())
	}
}

func TestPool_Limits(t *testing.T) {
	t.Parallel()
	p := fullPool(t, 1)
	s := p.create(sandbox.CreateParams{VCPUs: 0.5, MemoryMB: 256})
	vcpus, memory, err := p.rt.Limits(s.SessionID)
	if err != nil || vcpus != 0.5 || memory != 256 {
		t.Errorf("the machine has %g CPUs and %d MiB, %v", vcpus, memory, err)
	}
}

func TestPool_Trust(t *testing.T) {
	t.Parallel()
	w := sandboxtest.NewPoolWatch()
	h := startTrusting(t, cert("added"), func(c *sandboxd.Config) {
		c.Pools, c.Metrics = []sandboxd.PoolConfig{{Size: 1}}, w
	})
	w.AwaitReady(t, 1)
	h.expect(t, h.create(t, sandbox.CreateParams{}), "added")
	w.AwaitReady(t, 1)
	h.expect(t, h.create(t, sandbox.CreateParams{Network: strict}), "added daemon")
	if pool := w.AwaitReady(t, 1); pool.Claims != 2 {
		t.Errorf("the pool is %+v", pool)
	}
}

// A machine that is not usable causes no error: the next machine of the pool is used, or
// a new one.
func TestPool_Unusable(t *testing.T) {
	t.Parallel()
	crash := machine.Exit{Reason: sandbox.ReasonCrashed, Message: "for the test"}
	for _, c := range []struct {
		name   string
		size   int
		claims int64
	}{{"Next", 2, 1}, {"Cold", 1, 0}} {
		for _, point := range []string{"inserted", "claimed"} {
			t.Run(c.name+"/"+point, func(t *testing.T) {
				t.Parallel()
				hold := make(chan struct{})
				p := startPool(t, c.size, func(c *sandboxd.Config) {
					c.SpareCPU = func(ctx context.Context, anew bool) error {
						if anew {
							select {
							case <-hold:
							case <-ctx.Done():
							}
						}
						return ctx.Err()
					}
				})
				p.AwaitReady(t, c.size)
				oldest := make(chan string, 1)
				p.once(point, func() {
					// The machine whose sandbox is being created; the row names it.
					var id string
					if err := p.Config.DB.QueryRow(p.ctx, `SELECT session_id FROM sandboxes`).Scan(&id); err != nil {
						t.Error(err)
					}
					oldest <- id
					if err := p.rt.Kill(id, crash); err != nil {
						t.Error(err)
					}
				})
				s := p.create(sandbox.CreateParams{Name: "made"})
				if dead := <-oldest; s.SessionID == dead || slices.Contains(p.machines(), dead) {
					t.Errorf("the sandbox has %s, %s is dead, and there are %v", s.SessionID, dead, p.machines())
				}
				p.usable(s)
				close(hold)
				if pool := p.AwaitReady(t, c.size); pool.Claims != c.claims {
					t.Errorf("the pool is %+v, want %d claims", pool, c.claims)
				}
			})
		}
	}
}

// A machine that was given to a caller, or may have been, never goes back to the pool.
func TestPool_CallerLeaves(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"inserted", "claimed", "identified"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			p := fullPool(t, 2)
			before := p.machines()
			ctx, cancel := context.WithCancel(p.ctx)
			p.once(point, cancel)
			if s, err := p.Create(ctx, sandbox.CreateParams{}); err == nil {
				// The caller left too late for the engine to notice.
				if err := p.Delete(p.ctx, s.ID); err != nil {
					t.Fatal(err)
				}
			}
			p.Await(t, func(pool sandbox.Pool) bool { return pool.Ready == 2 && pool.Starting == 0 })
			gone := 0
			after := p.machines()
			for _, id := range before {
				if !slices.Contains(after, id) {
					gone++
				}
			}
			if gone != 1 || len(after) != 2 {
				t.Errorf("there are %v, there were %v", after, before)
			}
		})
	}
}

// A refused request costs no machine.
func TestPool_GiveBack(t *testing.T) {
	t.Parallel()
	p := fullPool(t, 2)
	before := p.machines()
	s := p.create(sandbox.CreateParams{Name: "one"})
	p.AwaitReady(t, 2)
	waiting := slices.DeleteFunc(p.machines(), func(id string) bool { return id == s.SessionID })
	for range 5 {
		_, err := p.Create(p.ctx, sandbox.CreateParams{Name: "one"})
		checktest.Code(t, err, cay.AlreadyExists)
	}
	p.Accounts.Set(account.DefaultTeam, account.Quota{Sandboxes: 1})
	for range 5 {
		_, err := p.Create(p.ctx, sandbox.CreateParams{})
		checktest.Code(t, err, cay.QuotaExceeded)
	}
	pool := p.AwaitReady(t, 2)
	if after := slices.DeleteFunc(p.machines(), func(id string) bool { return id == s.SessionID }); !slices.Equal(after, waiting) || pool.Claims != 1 {
		t.Errorf("%v wait, %v did; there were %v; the pool is %+v", after, waiting, before, pool)
	}
	if !slices.Contains(before, s.SessionID) {
		t.Errorf("the sandbox has %s, which was not there before", s.SessionID)
	}
}

func TestPool_DeadAreReplaced(t *testing.T) {
	t.Parallel()
	p := fullPool(t, 2)
	dead := p.machines()[0]
	if err := p.rt.Kill(dead, machine.Exit{Reason: sandbox.ReasonOOM}); err != nil {
		t.Fatal(err)
	}
	p.Await(t, func(pool sandbox.Pool) bool { return pool.Ready == 1 })
	p.AwaitReady(t, 2)
	if after := p.machines(); len(after) != 2 || slices.Contains(after, dead) {
		t.Errorf("there are %v, and %s is dead", after, dead)
	}
}

func TestPool_RebuiltImage(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{true, false} {
		name := map[bool]string{true: "Told", false: "FoundOut"}[told]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := fullPool(t, 2)
			before := p.machines()
			p.Images.Rebuild()
			if told {
				p.ImagesChanged()
				p.Await(t, func(pool sandbox.Pool) bool { return pool.Ready < 2 })
			} else {
				s := p.create(sandbox.CreateParams{})
				if slices.Contains(before, s.SessionID) {
					t.Errorf("the sandbox has %s, of an old image", s.SessionID)
				}
				if err := p.Delete(p.ctx, s.ID); err != nil {
					t.Fatal(err)
				}
			}
			p.AwaitReady(t, 2)
			p.awaitGone(before)
		})
	}
}

// awaitGone waits for the end of machines that are being destroyed.
func (p *poolTest) awaitGone(ids []string) {
	p.t.Helper()
	for _, id := range ids {
		if inst, err := p.rt.Adopt(p.ctx, id); err == nil {
			select {
			case <-inst.Done():
			case <-time.After(time.Minute):
				p.t.Errorf("machine %s is still there", id)
			}
		}
	}
}

func TestPool_Renewal(t *testing.T) {
	t.Parallel()
	p := fullPool(t, 2)
	before := p.machines()
	p.Clock.AwaitTimer(t, 6*time.Hour)
	p.Clock.Advance(6*time.Hour - time.Second)
	s := p.create(sandbox.CreateParams{})
	if !slices.Contains(before, s.SessionID) {
		t.Errorf("the sandbox has %s, which is new", s.SessionID)
	}
	p.AwaitReady(t, 2)
	p.Clock.AwaitTimer(t, time.Second)
	p.Clock.Advance(time.Second)
	p.Clock.AwaitTimer(t, 6*time.Hour-time.Second) // of the machine that is 1 s old
	p.AwaitReady(t, 2)
	p.awaitGone(slices.DeleteFunc(before, func(id string) bool { return id == s.SessionID }))
}

func TestPool_FailingStarts(t *testing.T) {
	t.Parallel()
	p := startPool(t, 1)
	p.AwaitReady(t, 1)
	var tries atomic.Int32
	p.rt.FailStart(func(machine.Spec) error {
		tries.Add(1)
		return cay.Errorf(cay.NoSpace, "no room for the test")
	})
	s := p.create(sandbox.CreateParams{})
	failed := func(pool sandbox.Pool) bool { return pool.Problem == "no room for the test" && pool.Starting == 0 }
	p.Await(t, failed)
	for i, wait := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
		p.Clock.AwaitTimer(t, wait)
		if n := tries.Load(); n != int32(i+1) {
			t.Fatalf("%d tries, want %d", n, i+1)
		}
		p.Clock.Advance(wait)
	}
	p.Clock.AwaitTimer(t, 16*time.Second)
	p.usable(s) // the sandbox is not affected
	p.rt.FailStart(nil)
	p.Clock.Advance(16 * time.Second)
	if pool := p.AwaitReady(t, 1); pool.Problem != "" {
		t.Errorf("the pool is %+v", pool)
	}
	if left := p.machines(); len(left) != 2 {
		t.Errorf("there are %v, want the sandbox's and one that waits", left)
	}
}

func TestPool_MissingImage(t *testing.T) {
	t.Parallel()
	p := startPool(t, 1, func(c *sandboxd.Config) { c.Pools = []sandboxd.PoolConfig{{Image: "missing", Size: 1}} })
	pool := p.Await(t, func(pool sandbox.Pool) bool { return pool.Problem != "" && pool.Starting == 0 })
	if !strings.Contains(pool.Problem, `"missing" not found`) {
		t.Errorf("the problem is %q", pool.Problem)
	}
	_, err := p.Create(p.ctx, sandbox.CreateParams{Image: "missing"})
	checktest.Code(t, err, cay.NotFound)
}

// Users come first: while their machines start, or are being claimed, no machine is
// started for a pool.
func TestPool_UsersFirst(t *testing.T) {
	t.Parallel()
	p := fullPool(t, 2, func(c *sandboxd.Config) { c.Limits.Boots = 1 })
	starts := make(chan string, 10)
	release := make(chan struct{})
	p.rt.FailStart(func(spec machine.Spec) error {
		starts <- spec.Hostname
		if spec.Hostname == "cold" {
			<-release
		}
		return nil
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := p.Create(p.ctx, sandbox.CreateParams{Name: "cold", DiskMB: 99}); err != nil {
			t.Error(err)
		}
	})
	if first := <-starts; first != "cold" {
		t.Fatalf("%s starts first", first)
	}
	p.create(sandbox.CreateParams{Name: "claimed"}) // wakes keep, which waits
	close(release)
	wg.Wait()
	if next := <-starts; next == "cold" {
		t.Error("the same again")
	}
	p.AwaitReady(t, 2)
}

func TestPool_Close(t *testing.T) {
	t.Parallel()
	p := fullPool(t, 3)
	s := p.create(sandbox.CreateParams{})
	p.AwaitReady(t, 3)
	waiting := slices.DeleteFunc(p.machines(), func(id string) bool { return id == s.SessionID })
	p.Engine.Close()
	if left := p.machines(); !slices.Equal(left, []string{s.SessionID}) {
		t.Errorf("%v are left, want the sandbox's %s", left, s.SessionID)
	}
	p.Restart(t)
	p.usable(s)
	p.AwaitReady(t, 3)
	for _, id := range p.machines() {
		if slices.Contains(waiting, id) {
			t.Errorf("machine %s waits in another daemon's pool", id)
		}
	}
}

// A claimed sandbox survives a restart of the daemon like any other.
func TestPool_TokenIsItsOwn(t *testing.T) {
	t.Parallel()
	p := fullPool(t, 1)
	s := p.create(sandbox.CreateParams{Env: map[string]string{"A": "1"}})
	var token string
	if err := p.Config.DB.QueryRow(p.ctx, `SELECT guest_token FROM sandboxes WHERE id = ?`, s.ID).Scan(&token); err != nil {
		t.Fatal(err)
	}
	sealed := checktest.Must(base64.StdEncoding.DecodeString(strings.TrimPrefix(token, "sealed:")))(t)
	token = string(checktest.Must(p.Config.Secrets.Open(sealed, "the guest token of "+s.ID))(t))
	inst := checktest.Must(p.rt.Adopt(p.ctx, s.SessionID))(t)
	c := guest.NewClient(inst.DialGuest, token)
	defer c.CloseIdleConnections()
	if h := checktest.Must(c.Health(p.ctx))(t); h.Sandbox != s.ID {
		t.Errorf("the guest is of %q", h.Sandbox)
	}
}

// TestPool_Leaks claims 500 machines, and checks that their resources are released.
func TestPool_Leaks(t *testing.T) {
	checktest.Long(t)
	// Not parallel: the test counts resources of the whole process.
	p := fullPool(t, 4)
	seen := make(map[string]bool)
	var mu sync.Mutex
	// Each batch starts with a full pool: on a busy machine the pool may not fill up
	// while a user is active.
	batch := func() {
		t.Helper()
		p.AwaitReady(t, 4)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 5 {
					s, err := p.Create(p.ctx, sandbox.CreateParams{})
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if seen[s.SessionID] {
						t.Errorf("machine %s was given away twice", s.SessionID)
					}
					seen[s.SessionID] = true
					mu.Unlock()
					if err := p.Delete(p.ctx, s.ID); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	batch()
	p.AwaitReady(t, 4)
	files, machines := openFiles(t), len(p.machines())
	const batches = 25
	for range batches {
		batch()
	}
	p.AwaitReady(t, 4)
	if n := openFiles(t); n > files+50 {
		t.Errorf("%d open files, %d before", n, files)
	}
	if n := len(p.machines()); n != machines {
		t.Errorf("%d machines, %d before", n, machines)
	}
	if n, want := p.Images.Leased(), 2*4; n != want {
		t.Errorf("%d leases are held, want %d", n, want)
	}
	if pool := p.AwaitReady(t, 4); pool.Claims < 4*batches {
		t.Errorf("the pool is %+v", pool)
	}
}

// TestPool_Model acts as users, guests, hosts and operators on a pool concurrently. No
// machine may ever belong to two sandboxes.
func TestPool_Model(t *testing.T) {
	checktest.Long(t)
	t.Parallel()
	seedtest.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.SampledFrom([]string{"create", "create", "create", "refused", "left", "kill", "rebuild", "delete"}), 1, 40).Draw(rt, "steps")
		size := rapid.IntRange(1, 4).Draw(rt, "size")
		p := fullPool(t, size)
		defer p.Engine.Close()
		first := p.create(sandbox.CreateParams{Name: "taken", Persistent: new(false)})
		var (
			wg   sync.WaitGroup
			mu   sync.Mutex
			made = map[string]string{first.SessionID: first.ID} // machine id to sandbox id
		)
		for _, step := range steps {
			wg.Go(func() {
				switch step {
				case "create", "delete":
					s, err := p.Create(p.ctx, sandbox.CreateParams{})
					if err != nil {
						t.Errorf("create: %v", err)
						return
					}
					mu.Lock()
					if other, ok := made[s.SessionID]; ok {
						t.Errorf("%s and %s have the same machine", other, s.ID)
					}
					made[s.SessionID] = s.ID
					mu.Unlock()
					if step == "delete" {
						if err := p.Delete(p.ctx, s.ID); err != nil {
							t.Error(err)
						}
					}
				case "refused":
					if _, err := p.Create(p.ctx, sandbox.CreateParams{Name: "taken"}); cay.CodeOf(err) != cay.AlreadyExists {
						t.Errorf("got %v", err)
					}
				case "left":
					ctx, cancel := context.WithCancel(p.ctx)
					go cancel()
					if s, err := p.Create(ctx, sandbox.CreateParams{}); err == nil {
						mu.Lock()
						made[s.SessionID] = s.ID
						mu.Unlock()
					}
				case "kill":
					ids, err := p.rt.List(p.ctx)
					if err != nil {
						t.Error(err)
					}
					for _, id := range ids {
						var n int
						if err := p.Config.DB.QueryRow(p.ctx, `SELECT count(*) FROM sandboxes WHERE session_id = ?`, id).Scan(&n); err != nil {
							t.Error(err)
						}
						if n == 0 { // the machine waits, or has just been taken
							_ = p.rt.Kill(id, machine.Exit{Reason: sandbox.ReasonCrashed}) // fails if the machine has ended
							return
						}
					}
				case "rebuild":
					p.Images.Rebuild()
					p.ImagesChanged()
				}
			})
		}
		wg.Wait()
		// A machine that was killed while it started is retried after a while.
		settled := p.Await(t, func(pool sandbox.Pool) bool { return pool.Starting == 0 && (pool.Ready == size || pool.Problem != "") })
		if settled.Problem != "" {
			p.Clock.AwaitTimer(t, time.Second)
			p.Clock.Advance(time.Second)
		}
		p.AwaitReady(t, size)
	})
}

// Crashes of a daemon with a pool: at whatever point the daemon is killed, the next one
// has the sandboxes whose creation was answered, and no machine of the old pool.
func withPool(c *sandboxd.Config) {
	c.Pools = []sandboxd.PoolConfig{{Size: 2}}
	c.SpareCPU = func(ctx context.Context, _ bool) error { return ctx.Err() }
}

func poolLife(ctx context.Context, dir, point string) error {
	w := sandboxtest.NewPoolWatch()
	e, _, _, err := crashEngine(ctx, dir, withPool, func(c *sandboxd.Config) { c.Metrics = w })
	if err != nil {
		return err
	}
	e.Reached(dying(point))
	if err := e.Open(ctx); err != nil {
		return err
	}
	t := &mainTest{ctx: ctx}
	w.AwaitReady(t, 2)
	if _, err := e.Create(ctx, sandbox.CreateParams{Name: "one"}); err != nil {
		return err
	}
	w.AwaitReady(t, 2)
	return nil
}

// mainTest is a testing.TB for code that runs outside a test.
type mainTest struct {
	testing.TB
	ctx context.Context
}

func (t *mainTest) Helper()                  {}
func (t *mainTest) Context() context.Context { return t.ctx }
func (t *mainTest) Fatalf(string, ...any)    { os.Exit(1) }

func TestPool_Crash(t *testing.T) {
	checktest.Long(t)
	t.Parallel()
	for _, point := range []string{"pool-started", "pooled", "inserted", "claimed", "identified", "running"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			crash(t, "pool", dir, point)
			before := checktest.Must(os.ReadDir(filepath.Join(dir, "machines")))(t)
			w := sandboxtest.NewPoolWatch()
			e, d, rt := recovered(t, dir, withPool, func(c *sandboxd.Config) { c.Metrics = w })
			w.AwaitReady(t, 2)
			ctx := defaultCaller(t)
			for _, m := range before {
				if _, err := os.Stat(filepath.Join(dir, "machines", m.Name())); err == nil {
					t.Errorf("machine %s has survived", m.Name()) // fake machines die with their process
				}
			}
			page := checktest.Must(e.List(ctx, sandbox.ListParams{}))(t)
			for _, s := range page.Items {
				if s.Status != sandbox.Failed {
					t.Errorf("sandbox %s is %s", s.Name, s.Status)
				}
				if err := e.Delete(ctx, s.ID); err != nil {
					t.Error(err)
				}
			}
			if machines := checktest.Must(rt.List(ctx))(t); len(machines) != 2 {
				t.Errorf("there are %v, want two that wait", machines)
			}
			checktest.Must(e.Create(ctx, sandbox.CreateParams{Name: "one"}))(t)
			if pool := w.AwaitReady(t, 2); pool.Claims != 1 {
				t.Errorf("the pool is %+v", pool)
			}
			s := checktest.Must(e.Get(ctx, "one"))(t)
			if err := e.Delete(ctx, s.ID); err != nil {
				t.Error(err)
			}
			if err := d.Check(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
