package gatewayd_test

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite testdata/routes.golden")

// The list of routes is recorded, so that a change is visible in review.
func TestRoutesOfOrigin(t *testing.T) {
	t.Parallel()
	const golden = "testdata/routes.golden"
	got := strings.Join(newWorld(t).engine.Routes(), "\n") + "\n"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the routes are\n%s\nnot\n%s", got, want)
	}
}
