package gvisor

import (
	"fmt"
	"os"

	"github.com/cayhq/cay/internal/sandboxd/gvisor/sentry"
)

// HandleReexec runs a helper if this process was started as one, and then never returns.
// A helper is a pager, or a sentry where no separate program is used (see UseProgram).
// Helpers are this program, executed again, so main must call HandleReexec before
// anything else, and so must TestMain of every test that starts sandboxes.
func HandleReexec() {
	if os.Args[0] == pagerName {
		os.Exit(pager(os.Args[1:]))
	}
	sentry.Main()
}

// DetachStdio points os.Stdin, os.Stdout and os.Stderr at /dev/null. gVisor hands the
// files in these variables to the init process of each sandbox it starts, and a guest
// must not get the daemon's log or the user's terminal. So main copies the variables that
// it needs before it calls DetachStdio. The file descriptors 0 to 2 stay as they are: a
// crash of this process is still reported.
func DetachStdio() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	os.Stdin, os.Stdout, os.Stderr = null, null, null
	return nil
}
