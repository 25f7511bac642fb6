package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cayhq/cay/examples/workflow/crashtest"
)

func TestMain(m *testing.M) { os.Exit(crashtest.Main(m, main)) }

// The program is killed in the middle of an answer, several times, and in the
// end the reader sees the same as without the kills.
func TestAgent_Killed(t *testing.T) {
	crashtest.Databases(t, func(t *testing.T, db string) {
		args := []string{"-db", db, "-turns", "6", "-slow", "50ms"}
		for _, turn := range []int{1, 2, 4, 5} {
			p := crashtest.Start(t, args...)
			p.Expect(fmt.Sprintf("turn %d:", turn)) // it says the next one
			p.Kill()
		}
		got := crashtest.Start(t, args...).Wait()
		var want strings.Builder
		last := "cays"
		for turn := 1; turn <= 6; turn++ {
			fmt.Fprintf(&want, "turn %d: I was told %q, and want to look up part %d of it.\n", turn, last, turn)
			last = fmt.Sprintf("found what lookup %d was for", turn)
			if turn == 2 {
				last = "error: step call-tool failed: there is nothing of that name"
			}
		}
		answer := "After 13 messages I know enough about cays."
		fmt.Fprintf(&want, "turn 7: %s\nthe answer: %s", answer, answer)
		if got != want.String() {
			t.Errorf("it printed\n%s\nwant\n%s", got, &want)
		}
	})
}
