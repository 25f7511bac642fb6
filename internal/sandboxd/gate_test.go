package sandboxd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/cayhq/cay"
)

func TestGate(t *testing.T) {
	t.Run("TurnsByGroup", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGate(1, 100)
			if err := g.enter(t.Context(), "first"); err != nil {
				t.Fatal(err)
			}
			var order []string // written by whoever holds the gate
			for _, group := range []string{"a", "a", "a", "b", "b", "c"} {
				go func() {
					if err := g.enter(t.Context(), group); err != nil {
						t.Error(err)
						return
					}
					order = append(order, group)
					g.leave()
				}()
				synctest.Wait() // queued in this order
			}
			g.leave()
			synctest.Wait()
			want := []string{"a", "b", "c", "a", "b", "a"}
			for i := range want {
				if i >= len(order) || order[i] != want[i] {
					t.Fatalf("let in %v, want %v", order, want)
				}
			}
			if g.free != 1 || g.waiting != 0 || len(g.queues) != 0 || g.turns.Len() != 0 {
				t.Fatalf("gate is left as %+v", g)
			}
		})
	})
	t.Run("GivenUp", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGate(1, 100)
			if err := g.enter(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			gone := errors.New("gone")
			ctx, cancel := context.WithCancelCause(t.Context())
			result := make(chan error)
			go func() { result <- g.enter(ctx, "b") }()
			synctest.Wait()
			cancel(gone)
			if err := <-result; !errors.Is(err, gone) {
				t.Fatalf("got %v, want the cause", err)
			}
			g.leave()
			if g.free != 1 || g.waiting != 0 || len(g.queues) != 0 || g.turns.Len() != 0 {
				t.Fatalf("gate is left as %+v", g)
			}
		})
	})
	t.Run("Quiet", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGate(1, 100)
			if err := g.quiet(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := g.enter(t.Context(), "a"); err != nil { // it took no place
				t.Fatal(err)
			}
			quiet := make(chan error, 1)
			go func() { quiet <- g.quiet(t.Context()) }()
			second := make(chan struct{})
			go func() {
				if err := g.enter(t.Context(), "b"); err != nil {
					t.Error(err)
				}
				close(second)
			}()
			synctest.Wait()
			g.leave()
			<-second
			synctest.Wait()
			select {
			case <-quiet:
				t.Fatal("it did not wait for who came after it")
			default:
			}
			g.leave()
			if err := <-quiet; err != nil {
				t.Fatal(err)
			}
			if err := g.enter(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			gone := errors.New("gone")
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(gone)
			if err := g.quiet(ctx); !errors.Is(err, gone) {
				t.Fatalf("got %v, want the cause", err)
			}
			g.leave()
		})
	})
	t.Run("Full", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGate(1, 1)
			if err := g.enter(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			go func() {
				if err := g.enter(t.Context(), "a"); err != nil {
					t.Error(err)
				}
				g.leave()
			}()
			synctest.Wait()
			if err := g.enter(t.Context(), "b"); cay.CodeOf(err) != cay.QuotaExceeded {
				t.Fatalf("got %v, want quota_exceeded", err)
			}
			g.leave()
		})
	})
}
