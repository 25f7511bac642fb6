package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// wantedDescriptors is how many open files the daemon needs at most.
	wantedDescriptors = 1 << 20
	// fewDescriptors: below this limit the user is warned.
	fewDescriptors = 16 << 10
	// sandboxDescriptors is about how many open files a running sandbox takes.
	sandboxDescriptors = 8
)

// raiseDescriptors raises this process's limit on open files as far as allowed, also
// above the hard limit if the kernel permits, and returns the new limit.
func raiseDescriptors() (uint64, error) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return 0, fmt.Errorf("read the limit on open files: %w", err)
	}
	if was.Cur >= wantedDescriptors {
		return was.Cur, nil
	}
	for _, l := range []unix.Rlimit{{Cur: wantedDescriptors, Max: max(was.Max, wantedDescriptors)}, {Cur: was.Max, Max: was.Max}} {
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &l) == nil {
			return l.Cur, nil
		}
	}
	return was.Cur, nil
}

// describeDescriptors returns the warning about a limit on open files, "" if the limit
// is high enough.
func describeDescriptors(limit uint64) string {
	if limit >= fewDescriptors {
		return ""
	}
	return fmt.Sprintf("the daemon may have only %d files open, enough for about %d running sandboxes; raise the limit with LimitNOFILE= of its systemd unit, or with ulimit -n",
		limit, limit/sandboxDescriptors)
}
