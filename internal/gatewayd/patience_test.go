package gatewayd_test

import (
	"testing"
	"time"
)

// patiently runs f with longer and longer waits, for tests in which an event must happen
// before a timeout of the gateway, for example the call of a provider before its timeout.
// On a busy machine the event may come too late. Then f returns false without a verdict,
// and runs again with a longer wait. The test fails if no wait is long enough.
func patiently(t *testing.T, wait time.Duration, f func(wait time.Duration) bool) {
	t.Helper()
	for ; wait < 2*time.Minute; wait *= 4 {
		if f(wait) || t.Failed() {
			return
		}
		t.Logf("what was to come within %v did not", wait)
	}
	t.Error("it does not come, however long it is waited for")
}
