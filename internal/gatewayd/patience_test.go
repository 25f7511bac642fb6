package gatewayd_test

import (
	"testing"
	"time"
)

// patiently tests what is to happen before a wait of the gateway is over: that a
// provider is asked before it is given up, say. On a busy machine it may come after. Then
// f returns false, having judged nothing, and is tried again with a longer wait. It fails
// if that does not help.
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
