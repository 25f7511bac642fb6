package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/internal/workflowd"
)

// childEnv makes this test program a process that executes programs and can be killed.
const childEnv = "CAY_FAULT_CHILD"

func TestMain(m *testing.M) {
	if order := os.Getenv(childEnv); order != "" {
		if err := beChild(order); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

// rounds returns the number of rounds: few in every test run, at most most if more are
// asked for.
func rounds(t *testing.T, few, most int) int {
	if testing.Short() {
		return 1
	}
	return min(seedtest.Rounds(t, few), most)
}

// asked reports whether more rounds are asked for.
func asked(t *testing.T) bool { return seedtest.Rounds(t, 0) > 0 }

// stride is the distance between the commits at which a test does something: usually 1;
// if rounds are slow and no more are asked for, an odd number, because events before a
// commit alternate with events after one.
func stride(t *testing.T, database string) int64 {
	if database == "postgres" && !asked(t) {
		return 5
	}
	return 1
}

// order is the job of a child process.
type order struct {
	Site     site      `json:"site"`
	Programs []program `json:"programs"`
	Out      string    `json:"out"` // where the child writes its verdict
	// KillAt is the commit at which the child kills itself, from 1; with KillAfter, after
	// the commit was made.
	KillAt    int64 `json:"kill_at,omitempty"`
	KillAfter bool  `json:"kill_after,omitempty"`
	// Poison makes the child run workflows that kill their process.
	Poison *poison `json:"poison,omitempty"`
	// Served, if set, is the child's only job.
	Served *served `json:"served,omitempty"`
}

// childLife bounds the life of a child process: an unloaded machine needs seconds. A
// child that takes longer prints its state.
const childLife = 3 * time.Minute

func beChild(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), childLife)
	defer cancel()
	switch {
	case o.Poison != nil:
		return o.Poison.be(ctx, o.Site)
	case o.Served != nil:
		return o.Served.be(ctx, o.Site)
	}
	n, err := o.Site.work(ctx, opening{wrap: func(s workflowd.Store) workflowd.Store {
		return &bomb{Store: s, at: o.KillAt, after: o.KillAfter}
	}})
	if err != nil {
		return err
	}
	// A process that was stopped for longer than its lease gets an error, and tries
	// again.
	v, err := n.finishAnyway(ctx, o.Programs, cay.Unavailable)
	if err := errors.Join(err, n.close()); err != nil {
		return err
	}
	out, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(o.Out+".new", out, 0o644); err != nil {
		return err
	}
	return os.Rename(o.Out+".new", o.Out)
}

// bomb is a Store that kills its process at a given commit.
type bomb struct {
	workflowd.Store
	at      int64
	after   bool
	commits atomic.Int64
}

func (b *bomb) write(w func() error) error {
	if b.at == 0 || b.commits.Add(1) != b.at {
		return w()
	}
	if b.after {
		if err := w(); err != nil {
			return err
		}
	}
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way
}

func (b *bomb) Commit(ctx context.Context, g *workflowd.Group) error {
	return b.write(func() error { return b.Store.Commit(ctx, g) })
}

func (b *bomb) Transact(ctx context.Context, g *workflowd.Group, do func(tx workflowd.Tx) error) error {
	return b.write(func() error { return b.Store.Transact(ctx, g, do) })
}

// process is a running or ended child process.
type process struct {
	*exec.Cmd
	exited chan struct{}
	err    error        // how the process ended; valid after exited
	stderr bytes.Buffer // not to be read before exited
}

// child starts a process of this program, which is killed at the end of the test.
func child(t *testing.T, o order) *process {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &process{Cmd: exec.Command(self), exited: make(chan struct{})}
	c.Env = append(os.Environ(), childEnv+"="+string(text))
	c.Stderr = &c.stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		c.err = c.Wait()
		close(c.exited)
	}()
	t.Cleanup(func() {
		c.Process.Kill() // most have ended already
		<-c.exited
	})
	return c
}

// endsWithin waits until a process has ended, and reports false if it lives for
// longer than d.
func (c *process) endsWithin(d time.Duration) bool {
	long := time.NewTimer(d)
	defer long.Stop()
	select {
	case <-c.exited:
		return true
	case <-long.C:
		return false
	}
}

// ended waits for a child and reports whether the child has finished its job without
// being killed.
func ended(t *testing.T, c *process, where string) bool {
	t.Helper()
	if !c.endsWithin(childLife + 10*time.Second) {
		c.Process.Signal(syscall.SIGQUIT) // prints its goroutines
		if !c.endsWithin(10 * time.Second) {
			t.Fatalf("%s: a process hangs", where)
		}
	}
	err := c.err
	if err == nil {
		return true
	}
	if s, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() && s.Signal() == syscall.SIGKILL {
		return false
	}
	t.Fatalf("%s: %v\n%s", where, err, &c.stderr)
	return false
}

// judge checks the results of a child that has finished its job.
func judge(t *testing.T, o order, where string) {
	t.Helper()
	text, err := os.ReadFile(o.Out)
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	var v verdict
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	if err := o.Site.check(o.Programs, v); err != nil {
		t.Fatalf("%s: %v", where, err)
	}
}

func newOrder(t *testing.T, database string, seed uint64, n int) order {
	s := newSite(t, database)
	return order{Site: s, Programs: programsOf(seed, n), Out: filepath.Join(filepath.Dir(s.World), "out")}
}

// TestKill_AtEveryCommit kills the process before and after each of its commits, and lets
// another process go on.
func TestKill_AtEveryCommit(t *testing.T) {
	t.Parallel()
	for _, database := range databases {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(rounds(t, 1, 20)) {
				for at := int64(1); ; at += stride(t, database) {
					o := newOrder(t, database, seed, 2)
					o.KillAt, o.KillAfter = at, at%2 == 0
					where := fmt.Sprintf("seed %d, killed at commit %d", seed, at)
					killed := !ended(t, child(t, o), where)
					if killed {
						o.KillAt = 0
						if !ended(t, child(t, o), where) {
							t.Fatalf("%s: killed by somebody else", where)
						}
					}
					judge(t, o, where)
					if !killed {
						break
					}
				}
			}
		})
	}
}

// TestKill_AtRandom kills processes with many programs again and again, at random
// moments.
func TestKill_AtRandom(t *testing.T) {
	t.Parallel()
	for _, database := range databases {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(rounds(t, 1, 100)) {
				r := rand.New(rand.NewPCG(seed, 2))
				o := newOrder(t, database, 1000+seed, 20)
				kills, where := 0, fmt.Sprintf("seed %d, killed at random", 1000+seed)
				// Lives become longer, so that on any machine some processes die at their
				// start, most during their work, and the last finishes it.
				for mean := 5 * time.Millisecond; ; mean += mean / 4 {
					c := child(t, o)
					if !c.endsWithin(time.Duration(r.ExpFloat64() * float64(mean))) {
						c.Process.Kill()
					}
					if ended(t, c, where) {
						break
					}
					kills++
				}
				judge(t, o, where)
				t.Logf("seed %d: killed %d times", 1000+seed, kills)
			}
		})
	}
}
