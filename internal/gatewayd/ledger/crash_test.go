package ledger

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/seedtest"
)

// crashDir is the environment variable that turns the test binary into a process that
// spends money in a directory until it is killed; crashAt names the point at which the
// process kills itself: "<point> <times>".
const (
	crashDir = "CAY_LEDGER_CRASH_DIR"
	crashAt  = "CAY_LEDGER_CRASH_AT"
	crashed  = 3000 * cent // the limit of the child's budget
)

// crashChild admits and settles calls from many goroutines. It prints "A <id>
// <amount>" when a call was admitted, "S <id> <cost>" before it is settled and "T <id>"
// after that.
func crashChild(dir string) {
	must := func(err error) {
		if err != nil {
			fmt.Println("E", err)
			os.Exit(1)
		}
	}
	ctx := context.Background()
	d, err := db.Open(ctx, filepath.Join(dir, "gateway.db"), db.Options{})
	must(err)
	b, err := Open(ctx, d, Options{Tail: filepath.Join(dir, "gateway.tail")})
	must(err)
	var at atomic.Int64
	point, times, ok := strings.Cut(os.Getenv(crashAt), ":")
	if ok {
		n, err := strconv.ParseInt(times, 10, 64)
		must(err)
		at.Store(n)
		b.memory.mu.Lock() // the writer reads it after it has taken the lock
		b.writer.at = func(p string) {
			if p == point && at.Add(-1) == 0 {
				_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
		b.memory.mu.Unlock()
	}
	var out sync.Mutex
	say := func(format string, args ...any) {
		out.Lock()
		defer out.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for {
				c := caller(strconv.Itoa(rand.IntN(3)))
				amount := gateway.Money(rand.Int64N(int64(cent)))
				h, err := b.Admit(ctx, c, cost(amount))
				if err != nil {
					say("R %v", err)
					return
				}
				r := request(c, gateway.Money(rand.Int64N(int64(amount)+1)))
				say("A %s %d", r.ID, amount)
				if rand.IntN(50) == 0 {
					continue // never ends
				}
				say("S %s %d", r.ID, *r.Cost)
				h.Settle(r)
				say("T %s", r.ID)
			}
		})
	}
	wg.Wait()
	say("D") // the budget is used up
	select {}
}

// runCrash lets the child spend in dir until the child dies at a point, or is killed
// after a number of lines, and returns the child's output: the minimum amount spent, and
// the settled calls.
func runCrash(t *testing.T, dir, at string, lines int) (spent gateway.Money, settled map[string]gateway.Money, told map[string]bool, done bool) {
	t.Helper()
	exe, err := os.Executable()
	checktest.OK(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), crashDir+"="+dir, crashAt+"="+at)
	out, err := cmd.StdoutPipe()
	checktest.OK(t, err)
	checktest.OK(t, cmd.Start())
	timeout := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }) // fails once it has ended
	defer timeout.Stop()
	admitted := map[string]gateway.Money{}
	settled = map[string]gateway.Money{}
	told = map[string]bool{}
	s := bufio.NewScanner(out)
	for n := 1; s.Scan(); n++ {
		f := strings.Fields(s.Text())
		switch {
		case f[0] == "E":
			t.Error(s.Text())
		case f[0] == "D":
			done = true
			checktest.OK(t, cmd.Process.Kill())
		case f[0] == "T":
			told[f[1]] = true
		case f[0] == "A" || f[0] == "S":
			m, err := strconv.ParseInt(f[2], 10, 64)
			checktest.OK(t, err)
			if f[0] == "A" {
				admitted[f[1]] = gateway.Money(m)
			} else {
				settled[f[1]] = gateway.Money(m)
			}
		}
		if n == lines {
			checktest.OK(t, cmd.Process.Kill())
		}
	}
	_ = cmd.Wait() // it was killed
	for id, m := range admitted {
		if c, ok := settled[id]; ok {
			m = c
		}
		spent += m
	}
	return spent, settled, told, done
}

func TestCrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "gateway.db")
	budgets := []gateway.BudgetID{{Scope: gateway.ScopeTeam, Ref: "team"}, {Scope: gateway.ScopeUser}}
	reopen := func() (*Book, func()) {
		d, err := db.Open(t.Context(), path, db.Options{})
		checktest.OK(t, err)
		b, err := Open(t.Context(), d, Options{Tail: filepath.Join(dir, "gateway.tail")})
		checktest.OK(t, err)
		return b, func() {
			checktest.OK(t, b.Close())
			checktest.OK(t, d.Check(t.Context()))
			checktest.OK(t, d.Close())
		}
	}
	b, stop := reopen()
	for _, id := range budgets {
		_, err := b.SetBudget(t.Context(), "team", id, gateway.BudgetParams{Limit: crashed, Period: gateway.Never})
		checktest.OK(t, err)
	}
	stop()

	random := seedtest.Rand(t)
	points := []string{
		"before commit:1", "after commit:1", "before commit:2", "after commit:2", "", "before commit:7", "after commit:9", "", "", "before commit:20", "after commit:30", "", "",
	}
	var atLeast gateway.Money // minimum spending, as printed by the children
	known := map[string]gateway.Money{}
	for round, done := 0, false; !done && round < 60; round++ {
		var said gateway.Money
		var settled map[string]gateway.Money
		var told map[string]bool
		said, settled, told, done = runCrash(t, dir, points[round%len(points)], 1+random.IntN(2000))
		atLeast += said
		for id, c := range settled {
			known[id] = c
		}
		b, stop := reopen()
		budget, err := b.GetBudget(t.Context(), "team", budgets[0])
		checktest.OK(t, err)
		var records gateway.Money
		for cursor := ""; ; {
			page, err := b.Requests(t.Context(), "team", "", gateway.RequestFilter{Limit: 1000, Cursor: cursor})
			checktest.OK(t, err)
			for _, r := range page.Items {
				if c, ok := known[r.ID]; !ok || *r.Cost != c {
					t.Fatalf("round %d: record %s has cost %s; it was settled with %s (%v)", round, r.ID, r.Cost, c, ok)
				}
				records += *r.Cost
				delete(told, r.ID)
			}
			if cursor = page.Next; cursor == "" {
				break
			}
		}
		if len(told) > 0 {
			t.Errorf("round %d: %d requests were settled and have no record", round, len(told))
		}
		if budget.Spent > crashed {
			t.Errorf("round %d: %s of %s is spent", round, budget.Spent, crashed)
		}
		if budget.Spent < atLeast {
			t.Errorf("round %d: %s is spent, but at least %s was admitted", round, budget.Spent, atLeast)
		}
		if budget.Spent != records+budget.Unsettled {
			t.Errorf("round %d: %s is spent, records say %s, and %s is unsettled", round, budget.Spent, records, budget.Unsettled)
		}
		user, err := b.GetBudget(t.Context(), "team", gateway.BudgetID{Scope: gateway.ScopeUser, Ref: "alice"})
		checktest.OK(t, err)
		if user.Spent != budget.Spent-budget.Unsettled+user.Unsettled || user.Spent > crashed || user.Spent < atLeast {
			t.Errorf("round %d: the user's budget is %+v, the team's %+v", round, user, budget)
		}
		if budget.Held != 0 {
			t.Errorf("round %d: %s is held by nobody", round, budget.Held)
		}
		if done {
			t.Logf("after %d rounds %s of %s is spent, %s of it unsettled; %d were said to be settled", round+1, budget.Spent, budget.Limit, budget.Unsettled, len(known))
		}
		stop()
		if t.Failed() {
			return
		}
	}
}
