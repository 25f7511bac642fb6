package idle

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/clock"
)

// box is a Sandbox.
type box struct {
	began time.Time

	op sync.Mutex // held between Hold and release

	mu       sync.Mutex // guards the fields below
	paused   bool
	ending   bool
	commands time.Duration // the time until which commands run
	asked    int           // number of AwaitCommands calls
	ended    time.Duration // when the sandbox was ended; 0: not ended
}

func (b *box) Running() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.paused && b.ended == 0
}

func (b *box) AwaitCommands() bool {
	b.mu.Lock()
	b.asked++
	left := b.commands - time.Since(b.began)
	b.mu.Unlock()
	time.Sleep(left)
	return left > 0
}

func (b *box) Hold() (func(), bool) {
	b.op.Lock()
	if b.ending {
		b.op.Unlock()
		return nil, false
	}
	return b.op.Unlock, true
}

func (b *box) Idle(time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = time.Since(b.began)
}

func (b *box) pause(paused bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused = paused
}

func TestWatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		do    func(b *box, w *Watch)
		ended time.Duration
		asked int
	}{
		{"Unused", func(*box, *Watch) {}, time.Minute, 1},
		{"Used", func(_ *box, w *Watch) {
			time.Sleep(30 * time.Second)
			w.Touch()
		}, 90 * time.Second, 1},
		{"InUse", func(_ *box, w *Watch) {
			w.Enter()
			time.Sleep(10*time.Minute + time.Second)
			w.Leave()
		}, 11*time.Minute + time.Second, 1},
		{"Commands", func(b *box, _ *Watch) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.commands = 5 * time.Minute
		}, 6 * time.Minute, 2},
		{"Paused", func(b *box, w *Watch) {
			b.pause(true)
			time.Sleep(time.Hour)
			b.pause(false)
			w.Touch()
			w.Arm(0)
		}, 61 * time.Minute, 1},
		{"NotBefore", func(_ *box, w *Watch) { w.Arm(3 * time.Minute) }, 3 * time.Minute, 1},
		{"Disarmed", func(_ *box, w *Watch) {
			w.Disarm()
			time.Sleep(time.Hour)
			w.Arm(0)
		}, time.Hour, 1},
		{"Longer", func(_ *box, w *Watch) {
			w.Set(2 * time.Minute)
			w.Arm(0)
		}, 2 * time.Minute, 1},
		{"Never", func(_ *box, w *Watch) {
			w.Set(0)
			w.Arm(0)
		}, 0, 0},
		{"Stopped", func(_ *box, w *Watch) {
			w.Stop()
			w.Arm(0)
		}, 0, 0},
		{"Ending", func(b *box, _ *Watch) {
			b.op.Lock()
			defer b.op.Unlock()
			b.ending = true
		}, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				system, err := clock.System()
				if err != nil {
					t.Fatal(err)
				}
				b := &box{began: time.Now()}
				w := New(system, func(f func()) bool { f(); return true }, b)
				w.Touch()
				w.Set(time.Minute)
				w.Arm(0)
				c.do(b, w)
				time.Sleep(24 * time.Hour)
				synctest.Wait()
				w.Stop()
				if b.ended != c.ended || b.asked != c.asked {
					t.Errorf("it was ended after %v, and asked %d times; want %v and %d", b.ended, b.asked, c.ended, c.asked)
				}
			})
		})
	}
}
