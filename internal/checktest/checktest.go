// Package checktest is what tests say most often about errors.
package checktest

import (
	"testing"

	"github.com/cayhq/cay"
)

// Must returns what makes the result of a call its value alone, and ends the test if
// there was an error: checktest.Must[T](t)(f()).
func Must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Code ends the test unless err has a code: "" is no error, Internal also one without
// a code.
func Code(t testing.TB, err error, code cay.Code) {
	t.Helper()
	if got := cay.CodeOf(err); got != code {
		t.Fatalf("got %v (%s), want %s", err, got, code)
	}
}
