package main

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cayhq/cay/examples/workflow/crashtest"
)

func TestMain(m *testing.M) { os.Exit(crashtest.Main(m, main)) }

// Killed twice, in the middle of scheduled runs, the program completes all runs
// as soon as the limits allow, and no faster.
func TestSchedule_Killed(t *testing.T) {
	crashtest.Databases(t, func(t *testing.T, db string) {
		args := []string{"-db", db, "-every", "1s", "-runs", "2"}
		var all strings.Builder
		p := crashtest.Start(t, args...)
		p.Expect("ask for")
		p.Kill()
		all.WriteString(p.Printed() + "\n")
		p = crashtest.Start(t, args...)
		p.Expect("ask for")
		p.Expect("ask for")
		p.Kill()
		all.WriteString(p.Printed() + "\n")
		printed := crashtest.Start(t, args...).Wait()
		all.WriteString(printed)
		for _, want := range []string{"time 1: 21 records", "time 2: 21 records"} {
			if !strings.Contains(printed, want) {
				t.Errorf("it did not print %q, but\n%s", want, printed)
			}
		}
		checkRate(t, all.String())
	})
}

// checkRate checks the times of requests to the service. Each start of the
// program may send the requests that one second allows at once, and a step that
// was killed is repeated.
func checkRate(t *testing.T, printed string) {
	t.Helper()
	var times []int64
	for line := range strings.Lines(printed) {
		if at, rest, _ := strings.Cut(line, " "); strings.HasPrefix(rest, "ask for ") {
			ms, err := strconv.ParseInt(at, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			times = append(times, ms)
		}
	}
	slices.Sort(times)
	if len(times) < 12 {
		t.Errorf("the service was asked %d times for 12 customers", len(times))
	}
	const most = 2*perSecond + atOnce // two windows meet, and what was killed is done again
	for i := range times {
		n := 0
		for _, at := range times[i:] {
			if at < times[i]+1000 {
				n++
			}
		}
		if n > most {
			t.Errorf("the service was asked %d times within a second; it wants %d", n, perSecond)
		}
	}
}
