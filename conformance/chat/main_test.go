package chat_test

import (
	"os"
	"testing"

	"github.com/cayhq/cay/examples/workflow/crashtest"
)

// In a process that a test has started, the test binary acts as the program that
// serves the page: see program_test.go.
func TestMain(m *testing.M) { os.Exit(crashtest.Main(m, program)) }

// complete skips a test with -short, by which make conformance-short runs a part of this
// suite for every change.
func complete(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("make conformance-chat runs this")
	}
}

// need skips a test unless make conformance-chat runs it, which installs the
// requirements.
func need(t *testing.T) {
	t.Helper()
	if os.Getenv("CAY_CONFORMANCE") == "" {
		t.Skip("make conformance-chat runs this")
	}
	if _, err := os.Stat("node_modules"); err != nil {
		t.Fatalf("node_modules is missing; make conformance-chat-deps installs it")
	}
}
