// Snapshot shows what snapshots are for: it prepares one sandbox, which takes a
// while, takes a snapshot of it, starts twenty sandboxes from the snapshot, which
// are ready to work at once, and prints the durations.
//
//	cay serve &
//	go run ./examples/snapshot
//
// It finds the daemon as the command line does: by CAY_URL and CAY_TOKEN, else on
// this machine.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay/sandbox"
)

// prepare makes a virtual environment and a database in it, without a network.
//
//go:embed prepare.sh
var prepare string

// question is the query that every sandbox runs on that database.
const question = `import sqlite3, sys
db = sqlite3.connect("index.db")
print(db.execute("select count(*), sum(words) from page where words > ?", (int(sys.argv[1]),)).fetchone())`

func main() {
	n := flag.Int("n", 20, "how many sandboxes to start from the snapshot")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, sandbox.NewClient(sandbox.ClientOptions{}), os.Stdout, *n); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c *sandbox.Client, out io.Writer, n int) (err error) {
	size := sandbox.CreateParams{VCPUs: 1, MemoryMB: 256, DiskMB: 256, Network: sandbox.Network{Mode: sandbox.DenyAll}}

	// Once: a prepared sandbox.
	begun := time.Now()
	p := size
	p.Runtime = "python3.13"
	box, err := c.Create(ctx, p)
	if err != nil {
		return err
	}
	defer remove(ctx, c, box.ID)
	created := time.Since(begun)

	begun = time.Now()
	if _, err := sh(ctx, c, box.ID, prepare); err != nil {
		return err
	}
	prepared := time.Since(begun)

	begun = time.Now()
	life := sandbox.Duration(time.Hour) // should this program not get to delete it
	snapshot, err := c.CreateSnapshot(ctx, box.ID, sandbox.SnapshotParams{Expiration: &life})
	if err != nil {
		return err
	}
	defer func() {
		// Also when interrupted.
		if _, derr := c.DeleteSnapshot(context.WithoutCancel(ctx), snapshot.ID, sandbox.DeleteSnapshotParams{}); err == nil {
			err = derr
		}
	}()
	saved := time.Since(begun)
	fmt.Fprintf(out, "created a sandbox   %8v\n", round(created))
	fmt.Fprintf(out, "prepared it         %8v\n", round(prepared))
	fmt.Fprintf(out, "took a snapshot     %8v   %d KiB\n", round(saved), snapshot.SizeBytes>>10)

	// And then as often as needed.
	var mu sync.Mutex // guards took
	var took []time.Duration
	begun = time.Now()
	g, gctx := errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() error {
			begun := time.Now()
			p := size
			p.Snapshot = snapshot.ID
			box, err := c.Create(gctx, p)
			if err != nil {
				return err
			}
			defer remove(gctx, c, box.ID)
			answer, err := sh(gctx, c, box.ID, fmt.Sprintf(". venv/bin/activate && python3 -c '%s' %d", question, 10*i))
			if err != nil {
				return err
			}
			if !strings.HasPrefix(answer, "(") {
				return fmt.Errorf("sandbox %d answered %q", i, answer)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(begun))
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	all := time.Since(begun)
	slices.Sort(took)
	fmt.Fprintf(out, "%d sandboxes from it %7v   until all have answered; each: fastest %v, median %v, slowest %v\n",
		n, round(all), round(took[0]), round(took[n/2]), round(took[n-1]))
	fmt.Fprintf(out, "preparing each would have taken %v, one after the other\n", round(time.Duration(n)*(created+prepared)))
	return nil
}

// sh runs a script in a sandbox and returns its output.
func sh(ctx context.Context, c *sandbox.Client, ref, script string) (string, error) {
	b, err := c.Sandbox(ref).Command(ctx, "/bin/sh", "-ec", script).Output()
	var exit *sandbox.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return string(b), err
}

// remove deletes a sandbox, also when ctx has ended.
func remove(ctx context.Context, c *sandbox.Client, ref string) {
	if err := c.Delete(context.WithoutCancel(ctx), ref); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
