//go:build !amd64

package process

import "syscall"

// Start starts a program as the leader of a new session, and returns its id. Errors are
// of type syscall.Errno; a child that could not execute the program is already reaped.
func Start(p Program) (pid int, err error) {
	attr := &syscall.ProcAttr{Dir: p.Dir, Env: p.Env, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: p.Terminal}}
	for _, fd := range p.Stdio {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	if u := p.User; u != nil {
		attr.Sys.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
	}
	return syscall.ForkExec(p.Path, p.Args, attr)
}
