package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/examples/workflow/crashtest"
)

func TestMain(m *testing.M) { os.Exit(crashtest.Main(m, main)) }

func TestApproval_Killed(t *testing.T) {
	crashtest.Databases(t, func(t *testing.T, db string) {
		p := crashtest.Start(t, "-db", db)
		p.Expect("please approve expense 7 of 120") // which may not be recorded yet
		p.Kill()
		p = crashtest.Start(t, "-db", db)
		p.Expect("type yes or no")
		p.Type("yes alice")
		printed := p.Wait()
		if !strings.HasSuffix(printed, "paid 120\nexpense 7: approved by alice") {
			t.Errorf("it printed:\n%s", printed)
		}
		// The hook has gone with its run, and the run is kept.
		if printed := crashtest.Start(t, "-db", db).Wait(); strings.Contains(printed, "paid") || !strings.Contains(printed, "approved by alice") {
			t.Errorf("another start printed:\n%s", printed)
		}
	})
}

// The timeout passes while the program is not running.
func TestApproval_KilledUntilTimeout(t *testing.T) {
	crashtest.Databases(t, func(t *testing.T, db string) {
		const wait = 20 * time.Second // longer than two starts of the program take on a busy machine
		p := crashtest.Start(t, "-db", db, "-wait", wait.String())
		until := p.Expect("type yes or no")
		begun := time.Now()
		p.Kill()
		p = crashtest.Start(t, "-db", db, "-wait", wait.String())
		if again := p.Expect("type yes or no"); again != until {
			t.Errorf("it said %q, and after a restart %q", until, again)
		}
		p.Kill()
		<-time.After(wait - time.Since(begun))
		p = crashtest.Start(t, "-db", db, "-wait", wait.String())
		begun = time.Now()
		if printed := p.Wait(); !strings.Contains(printed, "expense 7: rejected: nobody answered in time") {
			t.Errorf("it printed:\n%s", printed)
		}
		if took := time.Since(begun); took >= wait { // the time that a restarted timer would take
			t.Errorf("a timer that was due took %v after the start", took)
		}
	})
}
