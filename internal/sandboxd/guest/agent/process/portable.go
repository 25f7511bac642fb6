package process

import "syscall"

// startPortable is Start by package syscall alone. It serves where Start has no assembly,
// and where a version of Go takes away what that relies on.
func startPortable(p Program) (pid int, err error) {
	attr := &syscall.ProcAttr{Dir: p.Dir, Env: p.Env, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: p.Terminal}}
	for _, fd := range p.Stdio {
		attr.Files = append(attr.Files, uintptr(fd))
	}
	if u := p.User; u != nil {
		attr.Sys.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
	}
	return syscall.ForkExec(p.Path, p.Args, attr)
}
