package limit

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

func TestLimit(t *testing.T) {
	t.Run("TurnsByGroup", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := New(Bounds{All: 1, Waiting: 100})
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
					g.Leave("a")
				}()
				synctest.Wait() // queued in this order
			}
			g.Leave("a")
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
			g := New(Bounds{All: 1, Waiting: 100})
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
			g.Leave("a")
			if g.free != 1 || g.waiting != 0 || len(g.queues) != 0 || g.turns.Len() != 0 {
				t.Fatalf("limit is left as %+v", g)
			}
		})
	})
	t.Run("Quiet", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := New(Bounds{All: 1, Waiting: 100})
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
			g.Leave("a")
			<-second
			synctest.Wait()
			select {
			case <-quiet:
				t.Fatal("it did not wait for who came after it")
			default:
			}
			g.Leave("a")
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
			g.Leave("a")
		})
	})
	t.Run("Full", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := New(Bounds{All: 1, Waiting: 1})
			if err := g.Enter(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			go func() {
				if err := g.Enter(t.Context(), "a"); err != nil {
					t.Error(err)
				}
				g.Leave("a")
			}()
			synctest.Wait()
			if err := g.Enter(t.Context(), "b"); !errors.Is(err, ErrFull) {
				t.Fatalf("got %v, want ErrFull", err)
			}
			g.Leave("a")
		})
	})
	t.Run("Each", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := New(Bounds{All: 3, Each: 2, Waiting: 100})
			for _, c := range []struct {
				holder string
				want   bool
			}{{"a", true}, {"a", true}, {"a", false}, {"b", true}, {"b", false}, {"c", false}} {
				if got := g.Take(c.holder); got != c.want {
					t.Errorf("a place of %s's: %v, want %v", c.holder, got, c.want)
				}
			}
			var order []string
			var all sync.WaitGroup
			for _, holder := range []string{"a", "b", "a"} {
				all.Go(func() {
					if err := g.Enter(t.Context(), holder); err != nil {
						t.Error(err)
						return
					}
					order = append(order, holder)
				})
				synctest.Wait() // queued in this order
			}
			g.Leave("b") // a has reached its limit
			synctest.Wait()
			if !slices.Equal(order, []string{"b"}) {
				t.Fatalf("let in %v, want b, though a came first", order)
			}
			g.Leave("a")
			synctest.Wait()
			g.Leave("a")
			all.Wait()
			for _, holder := range []string{"a", "a", "b"} {
				g.Leave(holder)
			}
			if g.free != 3 || len(g.held) != 0 || g.waiting != 0 || len(g.queues) != 0 || g.turns.Len() != 0 {
				t.Fatalf("limit is left as %+v", g)
			}
		})
	})
}
