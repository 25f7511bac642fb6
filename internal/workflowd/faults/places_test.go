package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/workflow"
)

// clock is a wall clock that can be set.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }

func (c *clock) jump(d time.Duration) { c.offset.Add(int64(d)) }

// TestClock sets the clock while runs sleep and work: setting it forward ends sleeps that
// are due, setting it back leaves logs in order, and no run hangs.
func TestClock(t *testing.T) {
	t.Parallel()
	for i, database := range databases {
		if i >= rounds(t, 1, len(databases)) {
			continue // an engine checks the clock every ten seconds, on both databases
		}
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var now clock
			s := newSite(t, database)
			c, err := s.open(ctx, opening{now: now.now, log: logTo(t)})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			noop := workflow.Step("noop", func(context.Context, int) (int, error) { return 1, nil })
			def := workflow.Define("sleeps", func(ctx workflow.Context, d time.Duration) (int, error) {
				if _, err := noop.Run(ctx, 0); err != nil {
					return 0, err
				}
				if err := workflow.Sleep(ctx, d); err != nil {
					return 0, err
				}
				return noop.Run(ctx, 1)
			})
			serve(t, c, def)

			hour, err := def.Start(ctx, c, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			waitFor(t, c, hour.ID, 5) // created, started, step, wait: then the run is asleep
			now.jump(2 * time.Hour)
			begun := time.Now()
			if _, err := hour.Result(ctx); err != nil {
				t.Fatal(err)
			}
			t.Logf("a sleep ended %v after its time had come by a jump", time.Since(begun))

			now.jump(-2 * time.Hour)
			short, err := def.Start(ctx, c, 50*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := short.Result(ctx); err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{hour.ID, short.ID} {
				if _, err := wellFormed(ctx, c, id); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// waitFor waits until a run's log has nearly slot events.
func waitFor(t *testing.T, c *workflow.Client, run string, slot int64) {
	t.Helper()
	for e, err := range c.Follow(t.Context(), run, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Slot >= slot-1 {
			return
		}
	}
}

// TestDiskFull runs programs on a disk that becomes full; they go on in the same process
// when the disk has room again.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small disk")
	}
	for _, database := range databases {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "TestDiskFull-") // the PostgreSQL server has no access below a test's own directory; the name shows that a test made it
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Remove(dir) })
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
				t.Skipf("cannot mount a small disk: %v", err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			s := site{Database: database, At: filepath.Join(dir, "workflows.db"), World: filepath.Join(t.TempDir(), "world")}
			if database == "postgres" {
				s.At, s.Lease = pgtest.Start(t, pgtest.Options{}).DSNAt(t, dir), 10*time.Second
			}
			fullDisk(t, s, dir)
		})
	}
}

// fullDisk fills the disk at dir, where a site has its database.
func fullDisk(t *testing.T, s site, dir string) {
	ctx, cancel := context.WithTimeout(t.Context(), childLife)
	defer cancel()
	programs := programsOf(5000, 40)
	commits := newTally()
	n, err := s.work(ctx, opening{log: logTo(t), wrap: commits.wrap})
	if err != nil {
		t.Fatal(err)
	}
	// Programs start while the disk has room.
	filler := filepath.Join(dir, "filler")
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := commits.made(ctx, 10); err != nil {
			t.Error(err)
			return
		}
		if err := fill(filler); err != nil {
			t.Error(err)
		}
		// Wait until the engine has retried without success.
		if err := commits.until(ctx, func(c counts) bool { return c.refused >= 3 }); err != nil {
			t.Errorf("a full disk was not noticed: %v", err)
		}
		if err := os.Remove(filler); err != nil {
			t.Error(err)
		}
	})
	v, err := n.finishAnyway(ctx, programs, cay.NoSpace)
	wg.Wait()
	if e := n.close(); err == nil {
		err = e
	}
	if err == nil {
		err = s.check(programs, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// finishAnyway is finish, but tries again after errors of the code now. Work that was
// started before such an error is not lost.
func (n *session) finishAnyway(ctx context.Context, programs []program, now cay.Code) (verdict, error) {
	for {
		v, err := n.finish(ctx, programs, true)
		switch code := cay.CodeOf(err); {
		case err == nil:
			return v, nil
		case code != now && ctx.Err() == nil:
			return v, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return v, fmt.Errorf("%w; last: %w\n%s", ctx.Err(), err, n.unfinished())
		}
	}
}

// fill writes a file until the disk is full.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 4096)
	for {
		if _, err := f.Write(block); err != nil {
			if errno, ok := err.(*os.PathError); ok && errno.Err == syscall.ENOSPC {
				return nil
			}
			return err
		}
	}
}
