// Package leaktest fails test binaries that leave goroutines behind.
package leaktest

import (
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines may take to end after the last test. An HTTP
// server keeps a goroutine for half a second for each connection that it closes,
// which is longer than goleak waits by default.
const patience = 10 * time.Second

// Main runs the tests of a binary, and fails it if goroutines are left. Call it
// last in TestMain: it exits.
func Main(m goleak.TestingM) { goleak.VerifyTestMain(settled{m}) }

type settled struct{ goleak.TestingM }

func (s settled) Run() int {
	code := s.TestingM.Run()
	// Each call of Find waits a little itself.
	for end := time.Now().Add(patience); code == 0 && goleak.Find() != nil && time.Now().Before(end); {
	}
	return code
}
