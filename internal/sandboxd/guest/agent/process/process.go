// Package process starts programs and waits for their ends with the fewest steps.
//
// Package syscall's ForkExec resets the handlers of some 60 signals in each child, by a
// system call each, and makes a pipe by which the child can report an error. Both cost
// little on Linux, and 1 ms in gVisor. Here the kernel resets the handlers
// (CLONE_CLEAR_SIGHAND, Linux 5.5), and the child, which shares the parent's memory while
// the parent is suspended, writes the error there.
//
// Go reserves a CPU (a P of the Go scheduler) for a thread that waits in a system call,
// and checks every 20 µs, for 10 ms, whether to take it away: just when the starting
// program needs the sandbox's CPUs. Here the thread gives up its P at once.
package process

import _ "unsafe" // linkname

//go:linkname entersyscallblock runtime.entersyscallblock
func entersyscallblock()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

// Program is what Start executes.
type Program struct {
	Path string   // as for execve
	Args []string // with the name of the program
	Env  []string
	Dir  string // to begin in, entered with the rights of User
	// Stdio are the descriptors that become 0, 1 and 2. They are above 2, and close on
	// exec, as must all other descriptors of this process.
	Stdio [3]int
	// Terminal says that Stdio[0] becomes the terminal of the session.
	Terminal bool
	// User is the user to run as. Nil: the user of this process.
	User *User
}

// User is a user by numbers.
type User struct {
	UID, GID uint32
	Groups   []uint32
}
