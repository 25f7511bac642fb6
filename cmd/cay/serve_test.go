package main

import (
	"context"
	"os"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
)

// Files named by settings are part of the configuration: errors in them have the exit
// code of a wrong configuration.
func TestServe_ExitCode(t *testing.T) {
	t.Parallel()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	for code, want := range map[cay.Code]int{cay.Invalid: exitUsage, cay.Unavailable: exitGeneral} {
		a := newApp()
		a.stdout, a.stderr = null, null
		a.serve = func(context.Context, config.Config, <-chan func() (config.Config, error), func(string, string)) error {
			return cay.Errorf(code, "no")
		}
		if got := a.main([]string{"serve", "--data", t.TempDir()}); got != want {
			t.Errorf("%s: exit code %d, want %d", code, got, want)
		}
	}
}
