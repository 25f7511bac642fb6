package process

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfo is siginfo_t as waitid fills it in on 64-bit Linux.
type siginfo struct {
	signo, errno, code, _ int32
	pid                   int32
	_                     [108]byte
}

// AwaitExit waits until the child with the given id, or any child if pid is 0, is a
// zombie, and leaves it a zombie. It returns the child's id. Errors are of type
// syscall.Errno: ECHILD if there is no child.
func AwaitExit(pid int) (int, error) {
	kind := unix.P_PID
	if pid == 0 {
		kind = unix.P_ALL
	}
	info := new(siginfo)
	for {
		errno := waitid(kind, pid, info, unix.WEXITED|unix.WNOWAIT)
		switch errno {
		case 0:
			return int(info.pid), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

//go:nosplit
func waitid(kind, pid int, info *siginfo, options int) syscall.Errno {
	entersyscallblock()
	_, _, errno := syscall.RawSyscall6(unix.SYS_WAITID, uintptr(kind), uintptr(pid), uintptr(unsafe.Pointer(info)), uintptr(options), 0, 0)
	exitsyscall()
	return errno
}
