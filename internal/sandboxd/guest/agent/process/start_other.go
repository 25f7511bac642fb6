//go:build !amd64

package process

// Start starts a program as the leader of a new session, and returns its id. Errors are
// of type syscall.Errno; a child that could not execute the program is already reaped.
func Start(p Program) (pid int, err error) { return startPortable(p) }
