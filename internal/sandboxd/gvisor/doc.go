// Package gvisor is the machine.Runtime on gVisor, which it embeds as a
// library: each machine is one sentry process, of a program of its own (see
// UseProgram, and package sentry), holding one container whose init is cay's guest.
//
// How a machine is put together:
//
//   - Root: the image's EROFS file under a writable overlay whose data is one
//     unlinked host file, bounded in size. More EROFS files are mounted
//     read-only. No host directory is visible to the guest, so no gofer process
//     is needed: the sentry is handed open files, and nothing else.
//   - Identity: the sentry runs as nobody, in its own user, mount, network, IPC,
//     UTS and PID namespaces, with an empty root and gVisor's seccomp filter.
//   - Limits: one cgroup, v1 or v2, for CPU, memory and tasks.
//   - Network: one end of a network.Link, given over the control socket before
//     the guest starts.
//
// We call runsc/sandbox directly rather than runsc/container: the latter moves
// the whole calling process into the cgroup while it starts a sandbox (cgroup
// v1), which a daemon starting many at once cannot bear, and it knows a host
// file for the overlay only together with a gofer.
//
// What is on disk, below the state directory, one directory for each machine:
//
//	<id>/config.json   the OCI configuration
//	<id>/state.json    the sentry's process id, control socket and cgroup
//	<id>/pause         whether it is paused; see pause.go
//	<id>/panic.log     what a crashing sentry had to say
//	<id>/*.sock        the control socket
//	.empty             an empty directory, pagers' root
//
// What is saved of a machine (checkpoint.go, and machine.State) passes through a
// pager (pager.go, pages.go, confine.go), this binary once more: one that saves,
// so that a sentry never holds a file of a checkpoint, or one that loads, which
// stays until all is there. A machine that cannot be loaded to its end is ended
// (load.go).
//
// A sentry outlives the daemon. The next daemon over the same directory adopts
// it by a new link, or reaps it.
//
// gVisor needs CGO_ENABLED=0: built with cgo its helper processes fail.
package gvisor
