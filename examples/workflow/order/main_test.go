package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/examples/workflow/crashtest"
)

func TestMain(m *testing.M) { os.Exit(crashtest.Main(m, main)) }

// did returns the requests to the world, without the keys, sorted.
func did(t *testing.T, ledger string) []string {
	t.Helper()
	b, err := os.ReadFile(ledger)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(b)) {
		_, what, _ := strings.Cut(strings.TrimSpace(line), "\t")
		lines = append(lines, what)
	}
	slices.Sort(lines)
	return lines
}

func TestOrder_Killed(t *testing.T) {
	crashtest.Databases(t, func(t *testing.T, db string) {
		ledger := filepath.Join(t.TempDir(), "ledger")
		args := []string{"-db", db, "-ledger", ledger, "-slow", "500ms"}
		p := crashtest.Start(t, args...)
		p.Expect("reserve") // the others are under way
		p.Kill()
		p = crashtest.Start(t, args...)
		p.Expect("charge")
		p.Kill()
		printed := crashtest.Start(t, args...).Wait()
		if !strings.Contains(printed, "order 1001: paid 44, tracking number T-1001") {
			t.Errorf("it printed:\n%s", printed)
		}
		want := []string{"charge 44 for 1001", "reserve chair for 1001", "reserve lamp for 1001", "reserve table for 1001", "ship 1001 to Oslo"}
		if got := did(t, ledger); !slices.Equal(got, want) {
			t.Errorf("the world did\n%q, want\n%q", got, want)
		}
		// The order is complete: starting the program again does nothing.
		if printed := crashtest.Start(t, args...).Wait(); strings.Contains(printed, "reserve") || !strings.Contains(printed, "T-1001") {
			t.Errorf("another start printed:\n%s", printed)
		}
	})
}

// The program is killed again and again, at random points.
func TestOrder_KilledAnywhere(t *testing.T) {
	crashtest.Databases(t, func(t *testing.T, db string) {
		ledger := filepath.Join(t.TempDir(), "ledger")
		args := []string{"-db", db, "-ledger", ledger, "-slow", "5ms", "-id", "1003", "-to", "atlantis"}
		last := ""
		for i := range 30 {
			p := crashtest.Start(t, args...)
			if !p.ExpectLines(1 + i%4) {
				last = p.Wait()
				break
			}
			p.Kill()
		}
		if !strings.Contains(last, "order 1003 failed, and nothing of it is left") {
			t.Errorf("in the end it printed:\n%s", last)
		}
		if got := did(t, ledger); len(got) != 8 {
			t.Errorf("the world did %q", got)
		}
	})
}

func TestOrder_KilledWhileUndoing(t *testing.T) {
	crashtest.Databases(t, func(t *testing.T, db string) {
		ledger := filepath.Join(t.TempDir(), "ledger")
		args := []string{"-db", db, "-ledger", ledger, "-slow", "500ms", "-id", "1002", "-to", "atlantis"}
		p := crashtest.Start(t, args...)
		p.Expect("refund")
		p.Kill()
		p = crashtest.Start(t, args...)
		p.Expect("release table")
		p.Kill()
		printed := crashtest.Start(t, args...).Wait()
		if !strings.Contains(printed, "order 1002 failed, and nothing of it is left: ") || !strings.Contains(printed, "nobody ships there") {
			t.Errorf("it printed:\n%s", printed)
		}
		want := []string{
			"charge 44 for 1002", "refund 44 for 1002",
			"release chair for 1002", "release lamp for 1002", "release table for 1002",
			"reserve chair for 1002", "reserve lamp for 1002", "reserve table for 1002",
		}
		if got := did(t, ledger); !slices.Equal(got, want) {
			t.Errorf("the world did\n%q, want\n%q", got, want)
		}
	})
}
