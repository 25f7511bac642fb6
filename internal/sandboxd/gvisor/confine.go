package gvisor

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/seccomp"
)

// nobody is the user and group id of a pager.
const nobody = 65534

// confine drops the rights of this process, in all its threads: it runs as nobody,
// without capabilities, and with the directory root as its root, which confine closes. It
// can only read, write and map its open files, and receive more files over its sockets.
func confine(root int) error {
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("change to the empty root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change to the empty root: %w", err)
	}
	if err := unix.Close(root); err != nil {
		return fmt.Errorf("close the empty root: %w", err)
	}
	// Package syscall applies these calls to all threads, unlike package unix.
	if err := syscall.Setgroups(nil); err != nil {
		return fmt.Errorf("drop groups: %w", err)
	}
	if err := syscall.Setresgid(nobody, nobody, nobody); err != nil {
		return fmt.Errorf("drop group: %w", err)
	}
	if err := syscall.Setresuid(nobody, nobody, nobody); err != nil {
		return fmt.Errorf("drop user: %w", err)
	}
	// Refused calls fail and do not kill the pager: further calls of the Go runtime are
	// optional, and no reason to die in the middle of loading a machine.
	filter := &seccomp.Program{
		RuleSets: []seccomp.RuleSet{
			{Rules: seccomp.DenyNewExecMappings, Action: seccomp.ReturnError.Code(uint16(unix.EPERM))},
			{Rules: pagerCalls(os.Getpid()), Action: seccomp.Allow},
		},
		Options: seccomp.ProgramOptions{
			DefaultAction: seccomp.ReturnError.Code(uint16(unix.EPERM)),
			BadArchAction: seccomp.KillProcess,
			// The filter runs a few thousand times; optimizing it takes longer.
			SkipOptimizations: true,
		},
	}
	if err := filter.Install(nil); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	return nil
}

// pagerCalls are the system calls of a serving pager, and of the Go runtime.
func pagerCalls(pid int) seccomp.SyscallRules {
	const thread = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_SYSVSEM | unix.CLONE_THREAD
	rules := map[uintptr]seccomp.SyscallRule{
		unix.SYS_CLONE: seccomp.Or{ // the latter on amd64
			seccomp.PerArg{seccomp.EqualTo(thread)}, seccomp.PerArg{seccomp.EqualTo(thread | unix.CLONE_SETTLS)},
		},
		unix.SYS_TGKILL: seccomp.PerArg{seccomp.EqualTo(pid)}, // preemption
	}
	for _, call := range []uintptr{
		// The Go runtime's.
		unix.SYS_CLOCK_GETTIME, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2,
		unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_FUTEX, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETRANDOM,
		unix.SYS_MADVISE, unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_NANOSLEEP, unix.SYS_RESTART_SYSCALL,
		unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SCHED_YIELD, unix.SYS_SIGALTSTACK,
		// The protocol's.
		unix.SYS_DUP, unix.SYS_FTRUNCATE, unix.SYS_PPOLL, unix.SYS_RECVMSG, unix.SYS_SENDMSG, unix.SYS_SHUTDOWN,
		// The files'.
		unix.SYS_CLOSE, unix.SYS_FCNTL, unix.SYS_FSTAT, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_READ, unix.SYS_SENDFILE, unix.SYS_WRITE,
	} {
		rules[call] = seccomp.MatchAll{}
	}
	return seccomp.MakeSyscallRules(rules)
}
