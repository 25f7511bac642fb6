// Package gvisor is the machine.Runtime on gVisor, which it embeds as a library: each
// machine is one sentry process, of a program of its own (see UseProgram, and package
// sentry), holding one container whose init is cay's guest.
//
// How a machine is put together:
//
//   - Root: the image's EROFS file under a writable overlay whose data is one
//     unlinked host file, bounded in size. More EROFS files are mounted
//     read-only. No host directory is visible to the guest, so no gofer process
//     is needed: the sentry is handed open files, and nothing else.
//   - Identity: the sentry runs as nobody, in its own user, mount, network, IPC,
//     UTS and PID namespaces, with an empty root and gVisor's seccomp filter.
//   - Limits: a cgroup, v1 or v2, for CPU, memory and tasks.
//   - Network: an end of a network.Link, given over the control socket before
//     the guest starts.
//
// We call runsc/sandbox directly rather than runsc/container: the latter moves the whole
// calling process into the cgroup while it starts a sandbox (cgroup v1), which a daemon
// starting many at once cannot bear, and it supports a host file for the overlay only
// together with a gofer.
//
// The state directory has one directory for each machine:
//
//	<id>/config.json   the OCI configuration
//	<id>/state.json    the sentry's process id, control socket and cgroup
//	<id>/pause         whether the machine is paused; see pause.go
//	<id>/panic.log     the panic message of a crashed sentry
//	<id>/*.sock        the control socket
//	.empty             an empty directory, the root of pagers
//
// The state of a machine (checkpoint.go, and machine.State) is saved and loaded through a
// pager (pager.go, pages.go, confine.go), which is this binary executed again. A saving
// pager writes the files, so that a sentry never holds a file of a checkpoint. A loading
// pager stays until the sentry has loaded everything. A machine that cannot be loaded
// completely is ended (load.go).
//
// A sentry outlives the daemon. The next daemon over the same directory adopts the sentry
// by a new link, or reaps it.
//
// gVisor needs CGO_ENABLED=0: built with cgo its helper processes fail.
package gvisor
