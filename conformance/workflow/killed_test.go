package workflow

import (
	"fmt"
	"testing"

	"github.com/cayhq/cay/internal/testenv"
)

// TestKilled kills the app asleep, in the middle of a step and before it has begun; when it is
// started again, at another address, its runs end as ever, and nobody asks for them.
func TestKilled(t *testing.T) {
	need(t, lines...)
	d := testenv.Start(t)
	for _, line := range lines {
		t.Run(line, func(t *testing.T) {
			a := buildApp(t, line, d)
			a.start(t)
			asleep, cutOff := a.run(t, "asleep", 3000), a.run(t, "cutOff")
			a.waitFor(t, asleep, `"asleep"`)
			a.waitFor(t, cutOff, `"begins"`)
			fresh := a.run(t, "sequential", 3)
			a.kill()
			a.start(t)
			a.sleptFor(t, asleep, 3000)
			attempt, got := 0, a.result(t, cutOff)
			if _, err := fmt.Sscanf(got, `{"result":%d}`, &attempt); err != nil || attempt < 2 {
				t.Errorf("the step that was cut off: %s", got)
			}
			if got := a.result(t, fresh); got != `{"result":6}` {
				t.Errorf("the run that had just been started: %s", got)
			}
		})
	}
}
