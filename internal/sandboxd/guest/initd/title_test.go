package initd

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/checktest"
)

// titledEnv has TestTitle print its own command line.
const titledEnv = "CAY_TEST_TITLED"

func TestTitle(t *testing.T) {
	t.Parallel()
	if os.Getenv(titledEnv) != "" {
		line := newTitle()
		for _, argv := range [][]string{{"sh", "-c", strings.Repeat("long", 100)}, {"a", "b"}} {
			line.set(argv)
			fmt.Printf("%q\n", checktest.Must(os.ReadFile("/proc/self/cmdline"))(t))
		}
		return
	}
	child := exec.Command("/proc/self/exe", "-test.run=^TestTitle$")
	child.Env = []string{titledEnv + "=" + strings.Repeat("x", 50), "A=b"}
	lines := strings.Split(string(checktest.Must(child.Output())(t)), "\n")
	const own = `"/proc/self/exe -test.run=^TestTitle$ -- `
	if len(lines) < 2 || !strings.HasPrefix(lines[0], own+"sh -c longlong") || strings.TrimRight(lines[1], `\x0"`) != own+"a b" {
		t.Errorf("got %q", lines)
	}
}
