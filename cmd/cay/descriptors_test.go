package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A daemon with a low limit on open files raises it as far as allowed.
func TestRaiseDescriptors(t *testing.T) {
	const low = 300
	if os.Getenv("CAY_TEST_DESCRIPTORS") != "" {
		limit, err := raiseDescriptors()
		if err != nil {
			t.Fatal(err)
		}
		var now unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
			t.Fatal(err)
		}
		if now.Cur != limit {
			t.Errorf("the limit is %d, and was said to be %d", now.Cur, limit)
		}
		t.Logf("limit=%d", limit)
		return
	}
	for _, c := range []struct {
		name, ulimit string
		want         uint64
	}{
		{"Soft", "ulimit -Sn 300; ulimit -Hn 4000", raised(t, 4000)},
		{"Hard", "ulimit -n 300", raised(t, low)},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", c.ulimit+`; exec "$0" -test.run '^TestRaiseDescriptors$' -test.v`, os.Args[0])
			cmd.Env = append(os.Environ(), "CAY_TEST_DESCRIPTORS=1")
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "limit="+strconv.FormatUint(c.want, 10)+"\n") {
				t.Errorf("want a limit of %d: %v, %s", c.want, err, out)
			}
		})
	}
	if said := describeDescriptors(low); !strings.Contains(said, "only 300 files") || describeDescriptors(wantedDescriptors) != "" {
		t.Errorf("of %d descriptors it says %q", low, said)
	}
}

// raised returns the limit after raiseDescriptors for a process with the hard limit
// hard: the hard limit, unless this process may raise it.
func raised(t *testing.T, hard uint64) uint64 {
	t.Helper()
	var has [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &has[0]); err != nil {
		t.Fatal(err)
	}
	if has[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		return wantedDescriptors
	}
	return hard
}
