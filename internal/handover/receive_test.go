package handover

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/checktest"
)

// The death of the old process counts as its permission to begin, whenever it comes.
func TestPredecessor_Dies(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]bool{"before the new one waits": false, "while the new one waits": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fds := checktest.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(t)
			old, conn := checktest.Must(connOf(fds[0]))(t), checktest.Must(connOf(fds[1]))(t)
			defer conn.Close()
			p := &Predecessor{conn: conn}
			done := make(chan error, 1)
			if waits {
				go func() { done <- p.Await(t.Context(), "data", "") }()
				checktest.Must(expect(old, stepWaiting))(t)
				checktest.OK(t, old.Close())
			} else {
				checktest.OK(t, old.Close())
				go func() { done <- p.Await(t.Context(), "data", "") }()
			}
			checktest.OK(t, <-done)
			checktest.OK(t, p.Serving())
		})
	}
}
