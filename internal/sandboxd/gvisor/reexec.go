package gvisor

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli/maincli"
)

// HandleReexec turns this process into a gVisor helper if it was started as
// one, and then never returns. gVisor starts its sentry (and a short-lived
// umounter) by executing /proc/self/exe again, so main must call this before
// anything else, and so must TestMain of every test that starts sandboxes.
func HandleReexec() {
	switch os.Args[0] {
	case "runsc-sandbox":
		// The sentry executes itself once more, inside its empty root and
		// without --setup-root; what it holds then is its own.
		if !slices.Contains(os.Args, "--setup-root") {
			break
		}
		if err := dropStrayFiles(os.Args); err != nil {
			fmt.Fprintln(os.Stderr, "cay:", err)
			os.Exit(128)
		}
	case "runsc-gofer", "/proc/self/exe":
	default:
		return
	}
	maincli.Main()
	os.Exit(0)
}

// fileFlags matches the flags by which gVisor tells a helper which open files
// are for it: --controller-fd=5, --io-fds=7, --pass-fd=9:3.
var fileFlags = regexp.MustCompile(`^--[a-z-]+-fds?=([0-9]+)(:[0-9]+)?$`)

// dropStrayFiles closes what this process has inherited beyond the files named
// on its command line. Parts of gVisor open files without close-on-exec, and a
// daemon starts many sandboxes at once: without this a sentry would hold
// descriptors that belong to others. Files the Go runtime has opened in this
// process are close-on-exec and stay.
func dropStrayFiles(args []string) error {
	keep := map[string]bool{"0": true, "1": true, "2": true}
	for _, arg := range args {
		if m := fileFlags.FindStringSubmatch(arg); m != nil {
			keep[m[1]] = true
		}
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list open files: %w", err)
	}
	for _, e := range open {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || keep[e.Name()] {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue // gone meanwhile (the listing's own), or ours
		}
		if err := unix.Close(fd); err != nil {
			return fmt.Errorf("close stray file %d: %w", fd, err)
		}
	}
	return nil
}

// DetachStdio points os.Stdin, os.Stdout and os.Stderr at /dev/null. gVisor
// hands whatever these variables hold to the init process of each sandbox it
// starts, and a guest must not get the daemon's log or the user's terminal. So
// main takes what it needs of them first and then calls this. The file
// descriptors 0 to 2 stay as they are: a crash of this process is still reported.
func DetachStdio() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	os.Stdin, os.Stdout, os.Stderr = null, null, null
	return nil
}
