package limit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestLimit(t *testing.T) {
	t.Run("TurnsByGroup", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := New(1, 100)
			if err := g.Enter(t.Context(), "first"); err != nil {
				t.Fatal(err)
			}
			var order []string // written by whoever holds the place
			for _, group := range []string{"a", "a", "a", "b", "b", "c"} {
				go func() {
					if err := g.Enter(t.Context(), group); err != nil {
						t.Error(err)
						return
					}
					order = append(order, group)
					g.Leave()
				}()
				synctest.Wait() // queued in this order
			}
			g.Leave()
			synctest.Wait()
			want := []string{"a", "b", "c", "a", "b", "a"}
			for i := range want {
				if i >= len(order) || order[i] != want[i] {
					t.Fatalf("let in %v, want %v", order, want)
				}
			}
			if g.free != 1 || g.waiting != 0 || len(g.queues) != 0 || g.turns.Len() != 0 {
				t.Fatalf("limit is left as %+v", g)
			}
		})
	})
	t.Run("GivenUp", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := New(1, 100)
			if err := g.Enter(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			gone := errors.New("gone")
			ctx, cancel := context.WithCancelCause(t.Context())
			result := make(chan error)
			go func() { result <- g.Enter(ctx, "b") }()
			synctest.Wait()
			cancel(gone)
			if err := <-result; !errors.Is(err, gone) {
				t.Fatalf("got %v, want the cause", err)
			}
			g.Leave()
			if g.free != 1 || g.waiting != 0 || len(g.queues) != 0 || g.turns.Len() != 0 {
				t.Fatalf("limit is left as %+v", g)
			}
		})
	})
	t.Run("Quiet", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := New(1, 100)
			if err := g.Quiet(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := g.Enter(t.Context(), "a"); err != nil { // it took no place
				t.Fatal(err)
			}
			quiet := make(chan error, 1)
			go func() { quiet <- g.Quiet(t.Context()) }()
			second := make(chan struct{})
			go func() {
				if err := g.Enter(t.Context(), "b"); err != nil {
					t.Error(err)
				}
				close(second)
			}()
			synctest.Wait()
			g.Leave()
			<-second
			synctest.Wait()
			select {
			case <-quiet:
				t.Fatal("it did not wait for who came after it")
			default:
			}
			g.Leave()
			if err := <-quiet; err != nil {
				t.Fatal(err)
			}
			if err := g.Enter(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			gone := errors.New("gone")
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(gone)
			if err := g.Quiet(ctx); !errors.Is(err, gone) {
				t.Fatalf("got %v, want the cause", err)
			}
			g.Leave()
		})
	})
	t.Run("Full", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := New(1, 1)
			if err := g.Enter(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			go func() {
				if err := g.Enter(t.Context(), "a"); err != nil {
					t.Error(err)
				}
				g.Leave()
			}()
			synctest.Wait()
			if err := g.Enter(t.Context(), "b"); !errors.Is(err, ErrFull) {
				t.Fatalf("got %v, want ErrFull", err)
			}
			g.Leave()
		})
	})
}
