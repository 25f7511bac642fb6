package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("starts sandboxes")
	}
	env := testenv.Start(t)
	var out bytes.Buffer
	if err := run(t.Context(), env.Client, &out, 3); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + out.String())
	if !strings.Contains(out.String(), "3 sandboxes from it") {
		t.Errorf("it printed:\n%s", &out)
	}
	page, err := env.Client.List(t.Context(), sandbox.ListParams{})
	if err != nil || len(page.Items) > 0 {
		t.Errorf("sandboxes left: %+v, %v", page, err)
	}
	snapshots, err := env.Client.ListSnapshots(t.Context(), sandbox.SnapshotListParams{})
	if err != nil || len(snapshots.Items) > 0 {
		t.Errorf("snapshots left: %+v, %v", snapshots, err)
	}
}
