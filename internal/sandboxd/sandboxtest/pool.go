package sandboxtest

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// Operator is the default caller with an operator's token.
var Operator = api.Principal{TokenID: "tok_operator", TeamID: account.DefaultTeam, Admin: true}

// PoolWatch is a sandboxd.Metrics with which tests wait for states of pools.
type PoolWatch struct {
	mu      sync.Mutex
	pools   map[sandbox.Pool]sandbox.Pool // latest state, by the fields that identify a pool
	changed chan struct{}                 // closed and replaced at every change
}

var _ sandboxd.Metrics = (*PoolWatch)(nil)

// NewPoolWatch returns a PoolWatch without reported pools.
func NewPoolWatch() *PoolWatch {
	return &PoolWatch{pools: make(map[sandbox.Pool]sandbox.Pool), changed: make(chan struct{})}
}

// Pool implements sandboxd.Metrics.
func (w *PoolWatch) Pool(p sandbox.Pool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pools[sandbox.Pool{Image: p.Image, Runtime: p.Runtime, VCPUs: p.VCPUs, MemoryMB: p.MemoryMB, DiskMB: p.DiskMB}] = p
	close(w.changed)
	w.changed = make(chan struct{})
}

// Await waits until a pool is as wanted, and returns its state.
func (w *PoolWatch) Await(t testing.TB, wanted func(sandbox.Pool) bool) sandbox.Pool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		w.mu.Lock()
		for _, p := range w.pools {
			if wanted(p) {
				w.mu.Unlock()
				return p
			}
		}
		changed, pools := w.changed, maps.Clone(w.pools)
		w.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("no pool became as wanted; they are %+v", pools)
		}
	}
}

// AwaitReady waits until n machines wait in a pool and none is starting.
func (w *PoolWatch) AwaitReady(t testing.TB, n int) sandbox.Pool {
	t.Helper()
	return w.Await(t, func(p sandbox.Pool) bool { return p.Ready == n && p.Starting == 0 })
}

// CreatePhase, CreateFailed, Ended, Live and Snapshots implement sandboxd.Metrics.
func (*PoolWatch) CreatePhase(string, time.Duration) {}
func (*PoolWatch) CreateFailed(cay.Code)             {}
func (*PoolWatch) Ended(sandbox.Reason)              {}
func (*PoolWatch) Live(int)                          {}
func (*PoolWatch) Unresponsive(int)                  {}
func (*PoolWatch) Snapshots(int, int64)              {}

// RunPools checks the behavior of services with pools. start starts a service with the
// pools of a config; it ends with the test.
func RunPools(t *testing.T, start func(*testing.T, func(*sandboxd.Config)) *Harness) {
	// setup starts a service with a pool, and returns when the pool is full.
	setup := func(t *testing.T, p sandboxd.PoolConfig) (poolUser, *PoolWatch) {
		t.Helper()
		w := NewPoolWatch()
		h := start(t, func(c *sandboxd.Config) { c.Pools, c.Metrics = []sandboxd.PoolConfig{p}, w })
		w.AwaitReady(t, p.Size)
		return poolUser{h.Env().user(t, Default), h}, w
	}
	t.Run("Claim", func(t *testing.T) {
		t.Parallel()
		u, w := setup(t, sandboxd.PoolConfig{Size: 2})
		if list, err := u.List(u.ctx, sandbox.ListParams{}); err != nil || len(list.Items) != 0 {
			t.Fatalf("machines that wait are listed: %v, %v", list, err)
		}
		before := u.machines()
		if len(before) != 2 {
			t.Fatalf("machines %v are there, want 2", before)
		}
		p := sandbox.CreateParams{
			Name: "mine", Env: map[string]string{"MINE": "yes"}, VCPUs: 1, MemoryMB: 512, WorkDir: "/workspace/deep",
			Network: sandbox.Network{Mode: sandbox.DenyAll}, Ports: []sandbox.PortParams{{Port: 80}}, Tags: map[string]string{"a": "b"},
		}
		s := u.create(p)
		wantStatus(t, s, sandbox.Running, "")
		if !slices.Contains(before, s.SessionID) {
			t.Errorf("its session %s is none of the machines %v that waited", s.SessionID, before)
		}
		got := u.get("mine")
		if got.ID != s.ID || got.VCPUs != 1 || got.MemoryMB != 512 || got.DiskMB != 8192 || got.WorkDir != p.WorkDir || len(got.Ports) != 1 ||
			got.Network.Mode != sandbox.DenyAll || !strings.HasPrefix(got.Digest, "sha256:") || got.ExpiresAt == nil || got.Tags["a"] != "b" {
			t.Errorf("it is %+v, want %+v", got, p)
		}
		if text := u.sh("mine", `echo "$MINE $(pwd | grep -o workspace/deep)"`); text != "yes workspace/deep\n" {
			t.Errorf("a command found %q", text)
		}
		who := u.identity(s.ID)
		if who.Sandbox != s.ID || who.Hostname != "mine" || u.file(s.ID, "/etc/hostname") != "mine\n" || u.file(s.ID, "/etc/machine-id") != who.MachineID+"\n" {
			t.Errorf("the machine is %+v", who)
		}
		if state := w.Await(t, func(p sandbox.Pool) bool { return p.Claims == 1 && p.Ready == 2 }); state.Misses != 0 || state.Target != 2 {
			t.Errorf("the pool is %+v", state)
		}
		// The next sandbox gets another machine.
		second := u.create(sandbox.CreateParams{})
		if other := u.identity(second.ID); other.MachineID == who.MachineID || other.BootID == who.BootID || second.SessionID == s.SessionID {
			t.Errorf("two sandboxes are %+v and %+v", who, other)
		}
		if text := u.sh(second.ID, `echo "<$MINE>"`); text != "<>\n" {
			t.Errorf("another sandbox's variable is %q", text)
		}
	})
	t.Run("Fit", func(t *testing.T) {
		t.Parallel()
		u, w := setup(t, sandboxd.PoolConfig{VCPUs: 1, MemoryMB: 1024, DiskMB: 256, Size: 1})
		count := func(p sandbox.CreateParams) (claims, misses int64) {
			t.Helper()
			before := w.AwaitReady(t, 1)
			s := u.create(p)
			after := w.AwaitReady(t, 1)
			if err := u.Delete(u.ctx, s.ID); err != nil {
				t.Fatal(err)
			}
			return after.Claims - before.Claims, after.Misses - before.Misses
		}
		for _, c := range []struct {
			name           string
			p              sandbox.CreateParams
			claims, misses int64
		}{
			{"Same", sandbox.CreateParams{VCPUs: 1, MemoryMB: 1024, DiskMB: 256}, 1, 0},
			{"Named", sandbox.CreateParams{VCPUs: 1, MemoryMB: 1024, DiskMB: 256, Runtime: "node24", Name: "named"}, 1, 0},
			{"Less", sandbox.CreateParams{VCPUs: 0.5, MemoryMB: 128, DiskMB: 256}, 1, 0},
			{"MoreCPU", sandbox.CreateParams{VCPUs: 2, MemoryMB: 1024, DiskMB: 256}, 0, 0},
			{"MoreMemory", sandbox.CreateParams{VCPUs: 1, MemoryMB: 2048, DiskMB: 256}, 0, 0},
			{"OtherDisk", sandbox.CreateParams{VCPUs: 1, MemoryMB: 1024, DiskMB: 128}, 0, 0},
			{"NoRuntime", sandbox.CreateParams{VCPUs: 1, MemoryMB: 1024, DiskMB: 256, Image: "debian"}, 0, 0},
		} {
			if claims, misses := count(c.p); claims != c.claims || misses != c.misses {
				t.Errorf("%s: %d claims and %d misses, want %d and %d", c.name, claims, misses, c.claims, c.misses)
			}
		}
	})
	t.Run("Empty", func(t *testing.T) {
		t.Parallel()
		w := NewPoolWatch()
		hold := make(chan struct{})
		spare := func(ctx context.Context, _ bool) error {
			select {
			case <-hold:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		h := start(t, func(c *sandboxd.Config) {
			c.Pools, c.Metrics, c.SpareCPU = []sandboxd.PoolConfig{{Size: 1}}, w, spare
		})
		u := h.Env().user(t, Default)
		s := u.create(sandbox.CreateParams{})
		wantStatus(t, s, sandbox.Running, "")
		w.Await(t, func(p sandbox.Pool) bool { return p.Misses == 1 && p.Claims == 0 && p.Ready == 0 })
		close(hold)
		w.AwaitReady(t, 1)
	})
	t.Run("Distinct", func(t *testing.T) {
		t.Parallel()
		const n = 5
		u, w := setup(t, sandboxd.PoolConfig{Size: n})
		var (
			wg   sync.WaitGroup
			made [n + 3]*sandbox.Sandbox // for some no machine is ready
		)
		for i := range made {
			wg.Go(func() {
				s, err := u.Create(u.ctx, sandbox.CreateParams{})
				if err != nil {
					t.Error(err)
				}
				made[i] = s
			})
		}
		wg.Wait()
		seen := make(map[string]string) // machine id to sandbox id
		for _, s := range made {
			if s == nil {
				continue
			}
			if other, ok := seen[s.SessionID]; ok {
				t.Errorf("%s and %s have the same machine", other, s.ID)
			}
			seen[s.SessionID] = s.ID
			if text := u.sh(s.ID, "cat who 2>/dev/null; echo "+s.ID+" > who"); text != "" {
				t.Errorf("%s has the files of %s", s.ID, text)
			}
		}
		if p := w.AwaitReady(t, n); p.Claims+p.Misses != n+3 || p.Claims < n {
			t.Errorf("the pool is %+v after %d sandboxes", p, n+3)
		}
	})
	t.Run("Lives", func(t *testing.T) {
		t.Parallel()
		u, w := setup(t, sandboxd.PoolConfig{Size: 1})
		u.create(sandbox.CreateParams{Name: "kept"})
		w.Await(t, func(p sandbox.Pool) bool { return p.Claims == 1 })
		u.sh("kept", "echo kept > kept.txt")
		if _, err := u.Stop(u.ctx, "kept"); err != nil {
			t.Fatal(err)
		}
		if text := u.sh("kept", "cat kept.txt"); text != "kept\n" {
			t.Errorf("it is %q after a stop", text)
		}
		if p := w.AwaitReady(t, 1); p.Claims != 1 {
			t.Errorf("a session that goes on from files came from the pool: %+v", p)
		}
	})
	t.Run("Told", func(t *testing.T) {
		t.Parallel()
		u, _ := setup(t, sandboxd.PoolConfig{Runtime: "python3.13", VCPUs: 0.5, DiskMB: 64, Size: 1})
		pools, err := u.Service.(sandboxd.Pools).Pools(As(t.Context(), Operator))
		want := sandbox.Pool{Image: "debian", Runtime: "python3.13", VCPUs: 0.5, MemoryMB: 1024, DiskMB: 64, Target: 1, Ready: 1}
		if err != nil || len(pools) != 1 || pools[0] != want {
			t.Errorf("the pools are %+v, %v; want %+v", pools, err, want)
		}
		_, err = u.Service.(sandboxd.Pools).Pools(u.ctx)
		checktest.Code(t, err, cay.PermissionDenied)
	})
}

// poolUser is a user of an engine with pools.
type poolUser struct {
	*user
	h *Harness
}

// machines returns all machines, including those that wait.
func (u poolUser) machines() []string {
	u.t.Helper()
	ids, err := u.h.Config.Runtime.List(u.ctx)
	if err != nil {
		u.t.Fatal(err)
	}
	return ids
}

// file returns the content of a small file.
func (u *user) file(ref, path string) string {
	u.t.Helper()
	r, _, err := u.ReadFile(u.ctx, ref, path, sandbox.ReadParams{})
	if err != nil {
		u.t.Fatalf("read %s: %v", path, err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		u.t.Fatalf("read %s: %v", path, err)
	}
	return string(b)
}

// identity returns the identity that a sandbox's machine has.
func (u *user) identity(ref string) (who guest.Identity) {
	u.t.Helper()
	if err := json.Unmarshal([]byte(u.file(ref, guest.IdentityFile)), &who); err != nil {
		u.t.Fatalf("read who the machine is: %v", err)
	}
	return who
}
