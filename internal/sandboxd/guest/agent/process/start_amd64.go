package process

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// call is a system call.
type call struct {
	number uintptr
	args   [3]uintptr
}

// child describes a child process: the system call that creates it, and the system calls
// that it makes before it executes the program. The last call is execve, which does not
// return.
type child struct {
	made  call
	clone cloneArgs
	calls [maxCalls]call
	errno uintptr // of the call that failed

	// Memory that the system calls point to; child keeps it alive and in place.
	path, dir  *byte
	argv, envv []*byte
	groups     []uint32
}

// cloneArgs is struct clone_args of Linux 5.3.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64
}

// maxCalls is the largest number of calls that Start has a child make.
const maxCalls = 10

// vfork makes the child and waits until it has executed the program, or has failed. It
// returns the child's id, or an error number below zero.
func vfork(c *child) int

// block is vfork without a processor.
//
//go:nosplit
func block(c *child) int {
	entersyscallblock()
	pid := vfork(c)
	exitsyscall()
	return pid
}

// Start starts a program as the leader of a new session, and returns its id. Errors are
// of type syscall.Errno; a child that could not execute the program is already reaped.
func Start(p Program) (pid int, err error) {
	c := &child{clone: cloneArgs{
		flags:      unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_CLEAR_SIGHAND,
		exitSignal: uint64(unix.SIGCHLD),
	}}
	if c.path, err = syscall.BytePtrFromString(p.Path); err != nil {
		return 0, err
	}
	if c.dir, err = syscall.BytePtrFromString(p.Dir); err != nil {
		return 0, err
	}
	if c.argv, err = syscall.SlicePtrFromStrings(p.Args); err != nil {
		return 0, err
	}
	if c.envv, err = syscall.SlicePtrFromStrings(p.Env); err != nil {
		return 0, err
	}
	c.made = call{unix.SYS_CLONE3, [3]uintptr{uintptr(unsafe.Pointer(&c.clone)), unsafe.Sizeof(c.clone)}}
	calls := c.calls[:0]
	do := func(number uintptr, args ...uintptr) {
		next := call{number: number}
		copy(next.args[:], args)
		calls = append(calls, next)
	}
	do(unix.SYS_SETSID)
	if u := p.User; u != nil {
		c.groups = u.Groups
		do(unix.SYS_SETGROUPS, uintptr(len(c.groups)), uintptr(unsafe.Pointer(unsafe.SliceData(c.groups))))
		do(unix.SYS_SETGID, uintptr(u.GID))
		do(unix.SYS_SETUID, uintptr(u.UID))
	}
	do(unix.SYS_CHDIR, uintptr(unsafe.Pointer(c.dir)))
	for i, fd := range p.Stdio {
		do(unix.SYS_DUP2, uintptr(fd), uintptr(i))
	}
	if p.Terminal {
		do(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 1)
	}
	do(unix.SYS_EXECVE, uintptr(unsafe.Pointer(c.path)), uintptr(unsafe.Pointer(&c.argv[0])), uintptr(unsafe.Pointer(&c.envv[0])))

	// ForkExec's lock is not needed: it protects descriptors that are open for a moment
	// before they are marked close-on-exec, and on Linux there are none.
	pid = block(c)
	runtime.KeepAlive(c)
	if pid < 0 {
		return 0, syscall.Errno(-pid)
	}
	if c.errno != 0 {
		for {
			if _, err := syscall.Wait4(pid, nil, 0, nil); err != syscall.EINTR {
				return 0, syscall.Errno(c.errno)
			}
		}
	}
	return pid, nil
}
