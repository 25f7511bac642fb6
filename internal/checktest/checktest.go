// Package checktest has the checks that the tests of all slices use most often.
package checktest

import (
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay"
)

// OK ends the test if there is an error.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must drops the error of a call, and ends the test if there was an error:
// checktest.Must(f())(t).
func Must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		OK(t, err)
		return v
	}
}

// Code ends the test unless err has a code: "" means no error, Internal also an error
// without a code. A test that makes several such calls in a row names the call.
func Code(t testing.TB, err error, code cay.Code, call ...string) {
	t.Helper()
	if got := cay.CodeOf(err); got != code {
		t.Fatalf("%sgot %v (%q), want %q", strings.Join(append(call, ""), ": "), err, got, code)
	}
}

// Long skips a test with -short, by which make race leaves out the tests that take long
// under the race detector and share little between goroutines. make race-all runs them.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("long, and -short is set")
	}
}

// Log collects the text that is written to it. Text can be read while other
// goroutines write.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
