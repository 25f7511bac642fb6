package workflow

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testenv"
)

func TestMain(m *testing.M) {
	code := testenv.Main(m)
	if dir, err := programDir(); err == nil {
		_ = os.RemoveAll(dir) // a directory of temporary files
	}
	os.Exit(code)
}

// lines are the lines of the SDK, by the directories that lock them.
var lines = []string{"v4", "v5"}

// patience bounds each wait, on a busy machine.
const patience = 3 * time.Minute

// need skips a test unless make conformance-workflow runs it, which installs the
// requirements.
func need(t *testing.T, dirs ...string) {
	t.Helper()
	if os.Getenv("CAY_CONFORMANCE") == "" {
		t.Skip("make conformance-workflow runs this")
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "node_modules")); err != nil {
			t.Fatalf("%v; make conformance-workflow-deps installs it", err)
		}
	}
}

// programDir holds the command line, which the first test that needs it builds.
var programDir = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "cay-conformance-") })

var build sync.Once

// program is the command line, built once for all tests.
func program(t *testing.T) string {
	t.Helper()
	dir, err := programDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "cay")
	build.Do(func() {
		cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "../../cmd/cay")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build cay: %v\n%s", err, out)
		}
	})
	return path
}
