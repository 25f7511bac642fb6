// Package shop does everything a workflow must not.
package shop

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/shop/clock"
	"github.com/cayhq/cay/workflow"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

var ErrRejected = errors.New("rejected")

var charge = workflow.Step("charge", func(ctx context.Context, n int) (int, error) {
	fmt.Println(time.Now(), os.Getenv("HOME")) // a step may do all of it
	go func() {}()
	return n, nil
})

func time_(ctx workflow.Context) error {
	_ = ctx.Now()
	_ = time.Now()                                         // want `time.Now in a workflow: a replay sees another time; use ctx.Now\(\)`
	_ = time.Since(ctx.Now())                              // want `time.Since in a workflow`
	time.Sleep(1)                                          // want `time.Sleep in a workflow: .*; use workflow.Sleep`
	<-time.After(1)                                        // want `time.After in a workflow` `channel in a workflow`
	now := time.Now                                        // want `time.Now in a workflow`
	_ = ctx.Now().In(time.Local)                           // want `time.Local in a workflow`
	_ = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(1) // the same each time
	_ = now
	return workflow.Sleep(ctx, time.Hour)
}

func random(ctx workflow.Context) string {
	_ = ctx.Rand().IntN(6)
	_ = rand.IntN(6)                        // want `rand.IntN in a workflow: a replay draws something else; use ctx.Rand\(\)`
	_ = rand.New(rand.NewPCG(1, 2)).IntN(6) // repeats
	_ = crand.Text()                        // want `rand.Text in a workflow`
	_, _ = crand.Int(crand.Reader, nil)     // want `rand.Int in a workflow` `rand.Reader in a workflow`
	rand.Shuffle(2, func(i, j int) {})      // want `rand.Shuffle in a workflow`
	return ctx.NewID()
}

func concurrent(ctx workflow.Context) {
	ch := make(chan int)
	go func() { ch <- 1 }() // want `go statement in a workflow: .*; use workflow.Go` `channel in a workflow`
	<-ch                    // want `channel in a workflow`
	for range ch {          // want `channel in a workflow`
	}
	select { // want `select in a workflow: .*; use workflow.NewSelector`
	case v := <-ch:
		_ = v
	case ch <- 2:
		rand.Int() // want `rand.Int in a workflow`
	}
	close(ch) // want `channel in a workflow`
	var mu sync.Mutex
	mu.Lock()         // want `sync.Mutex.Lock in a workflow: branches`
	defer mu.Unlock() // want `sync.Mutex.Unlock in a workflow`
	var wg sync.WaitGroup
	wg.Wait() // want `sync.WaitGroup.Wait in a workflow: .*; use workflow.Go`
	workflow.Go(ctx, func(ctx workflow.Context) (int, error) {
		return rand.Int(), nil // want `rand.Int in a workflow`
	})
}

func world(ctx workflow.Context) error {
	if _, err := os.ReadFile("x"); errors.Is(err, os.ErrNotExist) { // want `os.ReadFile in a workflow: a replay does it again, with another result; do it in a step`
		return err
	}
	_ = os.Getenv("HOME")       // want `os.Getenv in a workflow`
	_ = os.Args                 // want `os.Args in a workflow`
	fmt.Fprintln(os.Stderr)     // want `os.Stderr in a workflow`
	_, _ = net.Dial("tcp", "x") // want `net.Dial in a workflow`
	_ = net.JoinHostPort("a", "1")
	_, _ = http.Get("x") // want `http.Get in a workflow`
	var c http.Client
	_, _ = c.Do(nil)                        // want `http.Client.Do in a workflow`
	_, _ = new(net.Dialer).Dial("tcp", "x") // want `net.Dialer.Dial in a workflow`
	fmt.Println("hello")                    // want `fmt.Println in a workflow: each replay does it again; use ctx.Logger\(\)`
	log.Print("hello")                      // want `log.Print in a workflow`
	slog.Info("hello")                      // want `slog.Info in a workflow`
	println("hello")                        // want `println in a workflow`
	ctx.Logger().Info(fmt.Sprintf("%d", 1))
	_, err := plain(context.Background()) // want `context.Background in a workflow: it belongs to steps`
	return err
}

func plain(ctx context.Context) (int, error) { return 0, nil }

func fetch(ctx context.Context) (string, error) { // want fetch:"impure: os.ReadFile"
	b, err := os.ReadFile("x")
	return string(b), err
}

// helpers are followed, with and without a Context.
func helpers(ctx workflow.Context) {
	_ = clock.Plain(1)
	_ = clock.Stamp()          // want `a workflow calls clock.Stamp, which calls clock.now, which calls time.Now: a replay sees another time; do it in a step`
	_, _ = clock.File{}.Load() // want `a workflow calls clock.File.Load, which calls os.ReadFile`
	_ = local()                // want `a workflow calls local, which calls clock.Stamp, which calls clock.now, which calls time.Now`
	f := clock.Stamp           // want `a workflow calls clock.Stamp`
	_ = f
	_ = clock.Permitted()
	withContext(ctx)
	_, _ = workflow.Do(ctx, "fetch", fetch) // it is a step
	_, _ = clock.NewStep().Run(ctx, 1)
	time.Now() //cayvet:allow nobody looks at it
	//cayvet:allow nobody looks at it
	time.Now()
}

func local() string { return clock.Stamp() } // want local:"impure: clock.Stamp > clock.now > time.Now"

func withContext(ctx workflow.Context) time.Time {
	return time.Now() // want `time.Now in a workflow`
}

type pipeline struct{ ctx workflow.Context }

func (p *pipeline) run() error {
	_ = time.Now() // want `time.Now in a workflow`
	return workflow.Sleep(p.ctx, 1)
}

var order = workflow.Define("order", func(ctx workflow.Context, n int) (int, error) {
	_ = time.Now() // want `time.Now in a workflow`
	return charge.Run(ctx, n)
})

// Main defines a workflow, and is none.
func Main() { // want Main:"impure: time.Now"
	time.Now()
	workflow.Define("inner", func(ctx workflow.Context, n int) (int, error) {
		time.Now() // want `time.Now in a workflow`
		return workflow.Do(ctx, "step", func(ctx context.Context) (int, error) {
			time.Now()
			return 1, nil
		})
	})
}

var (
	counter int // want counter:"changed"
	limit   = 10
	total   atomic.Int64
	cache   = map[string]int{} // want cache:"changed"
)

func Forget(k string) { delete(cache, k) }

func variables(ctx workflow.Context) error {
	counter++ // want `a workflow changes the package variable counter` `a workflow uses the package variable counter`
	_ = limit
	total.Add(1)   // want `a workflow uses the package variable total`
	_ = cache["x"] // want `a workflow uses the package variable cache`
	_ = clock.Rate // want `a workflow uses the package variable clock.Rate`
	_ = clock.Fixed["a"]
	clock.Fixed["c"] = 3 // want `a workflow changes the package variable clock.Fixed`
	return ErrRejected
}

func iteration(ctx workflow.Context, m map[string]int) []string {
	for _, n := range m { // want `a workflow goes through a map and asks for something durable: the order differs between replays; use slices.Sorted\(maps.Keys\(m\)\)`
		_, _ = charge.Run(ctx, n)
	}
	for k := range maps.Keys(m) { // want `a workflow goes through a map`
		_ = workflow.Sleep(ctx, time.Duration(len(k)))
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		_, _ = charge.Run(ctx, m[k])
	}
	run := func(n int) { _, _ = charge.Run(ctx, n) }
	for _, n := range m { // want `a workflow goes through a map`
		run(n)
	}
	sum := 0
	for k, n := range m {
		sum += n
		ctx.Logger().Info(k)
	}
	var keys, sorted []string
	text := ""
	for k := range m {
		keys = append(keys, k) // want `keys gets the order of a map: .*; sort it`
		sorted = append(sorted, k)
		text += k // want `text gets the order of a map`
		var own []string
		own = append(own, k)
		_ = own
	}
	slices.Sort(sorted)
	list := slices.Collect(maps.Keys(m)) // want `list gets the order of a map`
	other := slices.Collect(maps.Keys(m))
	slices.Sort(other)
	_ = clock.Sorted(m)
	return append(keys, list...)
}

func steps(ctx workflow.Context) (int, error) {
	x, seen := 0, map[string]bool{}
	_, err := workflow.Do(ctx, "bad", func(c context.Context) (int, error) {
		x = 5            // want `a step changes x, a variable of the workflow: a replay does not repeat that; return it from the step`
		x++              // want `a step changes x`
		seen["a"] = true // want `a step changes seen`
		y := x
		y++
		return workflow.Do(ctx, "inner", func(context.Context) (int, error) { return y, nil }) // want `a step uses the workflow's Context ctx`
	})
	return x, err
}

func reasons(ctx workflow.Context) {
	time.Now() /* want `time.Now in a workflow` `//cayvet:allow without a reason` */ //cayvet:allow
}

func others(ctx workflow.Context) error {
	_ = uuid.NewString() // want `uuid.NewString in a workflow: .*; use ctx.NewID`
	_, _ = uuid.Parse("x")
	var g errgroup.Group
	g.Go(func() error { return nil }) // want `errgroup.Group.Go in a workflow`
	return g.Wait()                   // want `errgroup.Group.Wait in a workflow`
}

// inBranch is workflow code through and through: a branch's steps, too.
func inBranch(ctx workflow.Context) *workflow.Future[int] {
	return workflow.Go(ctx, func(ctx workflow.Context) (int, error) {
		n := 0
		_, err := workflow.Do(ctx, "x", func(context.Context) (int, error) {
			n = 1 // want `a step changes n`
			return 1, nil
		})
		return n, err
	})
}

// generic code is followed like other code.
func generic[T any](v T) T { // want generic:"impure: time.Now"
	time.Now()
	return v
}

type box[T any] struct{ v T }

func (b box[T]) get() T { // want get:"impure: time.Now"
	time.Now()
	return b.v
}

func callsGeneric(ctx workflow.Context) {
	_ = generic(1)           // want `a workflow calls generic, which calls time.Now`
	_ = generic[string]("x") // want `a workflow calls generic, which calls time.Now`
	_ = box[int]{}.get()     // want `a workflow calls box.get, which calls time.Now`
}
