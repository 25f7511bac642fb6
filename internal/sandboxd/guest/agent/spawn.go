package agent

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/guest/agent/process"
	"github.com/cayhq/cay/sandbox"
)

const (
	maxArgsBytes = 2 << 20 // of arguments and environment, each string with argOverhead: as Linux has it
	argOverhead  = 9       // bytes of a NUL and a pointer
	maxEnv       = 4096
	minTimeout   = 100 // ms
	maxWindow    = 10000

	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	defaultTerm = "xterm-256color"
)

// plan is a checked command that can be started.
type plan struct {
	params  sandbox.CommandParams
	hidden  bool     // one of the agent's own programs; see Server.help
	user    *account // nil: the user of this process
	program string   // as for execve
	dir     string   // as for chdir
	workDir string   // as shown
	env     []string
}

// prepare checks params and looks up the user, directory and program in them. Errors:
// invalid, executable_not_found, not_supported.
func (s *Server) prepare(p sandbox.CommandParams) (*plan, error) {
	if err := checkParams(p); err != nil {
		return nil, err
	}
	pl := &plan{params: p}
	by, err := s.account(p.User)
	if err != nil {
		return nil, err
	}
	pl.user = by
	if p.Sudo {
		if pl.user, err = s.account("root"); err != nil {
			return nil, err
		}
	}
	if pl.dir, pl.workDir, err = s.workDir(p.WorkDir); err != nil {
		return nil, err
	}
	env := s.loginEnv(pl, by)
	for _, kv := range s.cfg.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	maps.Copy(env, p.Env)
	for _, k := range slices.Sorted(maps.Keys(env)) {
		pl.env = append(pl.env, k+"="+env[k])
	}
	// gVisor's own bound is higher, and its error would say that memory is short.
	if argv, all := argsBytes(p.Argv), argsBytes(p.Argv)+argsBytes(pl.env); all > maxArgsBytes {
		return nil, cay.Errorf(cay.Invalid, "argv (%d bytes) and the environment (%d bytes) are longer together than %d bytes", argv, all-argv, maxArgsBytes).
			WithHint("write long input to a file, or to stdin")
	}
	pl.program, err = lookPath(p.Argv[0], env["PATH"], pl.dir)
	return pl, err
}

func checkParams(p sandbox.CommandParams) error {
	if len(p.Argv) == 0 || p.Argv[0] == "" {
		return cay.Errorf(cay.Invalid, "argv is empty").WithHint("name a program to run")
	}
	for i, a := range p.Argv {
		if strings.ContainsRune(a, 0) {
			return cay.Errorf(cay.Invalid, "argv[%d] contains a NUL byte", i)
		}
	}
	for k, v := range p.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return cay.Errorf(cay.Invalid, "environment variable %q has no valid name or value", k)
		}
	}
	if len(p.Env) > maxEnv {
		return cay.Errorf(cay.Invalid, "the environment has %d variables, more than %d", len(p.Env), maxEnv)
	}
	if p.Timeout != 0 && p.Timeout < minTimeout*1e6 {
		return cay.Errorf(cay.Invalid, "timeout %v is less than %d ms", p.Timeout, minTimeout)
	}
	if sig := p.TimeoutSignal; sig < 0 || sig > 64 {
		return cay.Errorf(cay.Invalid, "timeout signal %d is not within 1 to 64", sig)
	}
	if p.PTY != nil {
		return checkWindow(*p.PTY)
	}
	return nil
}

// argsBytes returns the bytes that the kernel counts for strings of argv or of an
// environment.
func argsBytes(list []string) (n int) {
	for _, s := range list {
		n += len(s) + argOverhead
	}
	return n
}

func checkWindow(w sandbox.WindowSize) error {
	if w.Cols < 1 || w.Cols > maxWindow || w.Rows < 1 || w.Rows > maxWindow {
		return cay.Errorf(cay.Invalid, "window size %dx%d is not within 1 to %d", w.Cols, w.Rows, maxWindow)
	}
	return nil
}

// account resolves a user in a request; empty means the default user. It returns nil if
// this server cannot switch users and need not.
func (s *Server) account(user string) (*account, error) {
	if s.cfg.SwitchUsers {
		if user == "" {
			user = s.self().user
		}
		return s.users.lookup(user)
	}
	if own := s.self().user; user != "" && user != own {
		return nil, cay.Errorf(cay.NotSupported, "user %q: this sandbox runs everything as %q", user, own)
	}
	return nil, nil
}

// workDir resolves a working directory. It refuses the kernel's magic links below /proc,
// which lead to the open files of a process. Between fork and exec, such a link would
// resolve to the agent's files.
func (s *Server) workDir(dir string) (real, shown string, err error) {
	real, shown, err = s.resolve(dir)
	if err != nil {
		return "", "", err
	}
	if real, err = followLinks(real); err != nil {
		return "", "", cay.Errorf(cay.Invalid, "working directory %q: %s", shown, reasonOf(err)).
			WithHint("make it first, or name another")
	}
	info, err := os.Stat(real)
	if err != nil {
		return "", "", cay.Errorf(cay.Invalid, "working directory %q: %s", shown, reasonOf(err)).
			WithHint("make it first, or name another")
	}
	if !info.IsDir() {
		return "", "", cay.Errorf(cay.Invalid, "working directory %q is not a directory", shown)
	}
	return real, shown, nil
}

var errMagicLink = errors.New("leads through a link of the kernel's")

// followLinks resolves all symbolic links of an absolute path by their text. It refuses
// links of /proc/<pid>.
func followLinks(p string) (string, error) {
	done, rest := "/", strings.Split(p, "/")
	for links := 0; len(rest) > 0; {
		elem := rest[0]
		rest = rest[1:]
		switch elem {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, elem)
		target, err := os.Readlink(next)
		if errors.Is(err, syscall.EINVAL) {
			done = next // no link
			continue
		}
		if err != nil {
			return "", err
		}
		// /proc/self and /proc/thread-self are ordinary links, but their targets are the
		// agent's directories.
		if onProc(done) {
			return "", errMagicLink
		}
		if links++; links > 40 {
			return "", syscall.ELOOP
		}
		if path.IsAbs(target) {
			done = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return done, nil
}

func onProc(dir string) bool {
	const procMagic = 0x9fa0
	var fs syscall.Statfs_t
	return syscall.Statfs(dir, &fs) == nil && fs.Type == procMagic
}

// loginEnv returns the environment that a login of the user would have. by is the user
// who asked for the command, if it runs as another user.
func (s *Server) loginEnv(pl *plan, by *account) map[string]string {
	env := map[string]string{"PATH": defaultPath, "LANG": "C.UTF-8", "PWD": pl.dir}
	if pl.params.PTY != nil {
		env["TERM"] = defaultTerm
	}
	u := pl.user
	if u == nil {
		u = &account{name: s.self().user, home: os.Getenv("HOME"), shell: "/bin/sh"}
		set(&u.home, "/")
		env["PATH"] = os.Getenv("PATH")
	}
	env["HOME"], env["USER"], env["LOGNAME"], env["SHELL"] = u.home, u.name, u.name, u.shell
	if pl.params.Sudo && by != nil {
		env["SUDO_USER"] = by.name
		env["SUDO_UID"] = strconv.FormatUint(uint64(by.uid), 10)
		env["SUDO_GID"] = strconv.FormatUint(uint64(by.gid), 10)
		env["SUDO_COMMAND"] = strings.Join(shownArgv(pl.params.Argv), " ")
	}
	return env
}

// lookPath finds the program as a shell would, with the given PATH and directory. The
// kernel decides whether the command's user may execute it.
func lookPath(name, list, dir string) (string, error) {
	if strings.Contains(name, "/") {
		p := name
		if !path.IsAbs(p) {
			p = dir + "/" + p
		}
		if err := executable(p); err != nil {
			return "", execError(name, err)
		}
		return p, nil
	}
	denied := false
	for d := range strings.SplitSeq(list, ":") {
		if !path.IsAbs(d) {
			d = dir + "/" + d
		}
		switch err := executable(d + "/" + name); {
		case err == nil:
			return d + "/" + name, nil
		case errors.Is(err, fs.ErrPermission):
			denied = true
		}
	}
	if denied {
		return "", execError(name, syscall.EACCES)
	}
	return "", cay.Errorf(cay.ExecutableMissing, "executable %q not found in PATH", clip(name)).
		WithHint("install it, or check the PATH %q", clip(list))
}

func executable(p string) error {
	info, err := os.Stat(p)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return syscall.EISDIR
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return syscall.EACCES
	}
	return nil
}

// execError explains why a program cannot be run.
func execError(name string, err error) error {
	name = clip(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return cay.Errorf(cay.ExecutableMissing, "executable %q not found", name)
	case errors.Is(err, syscall.EISDIR):
		return cay.Errorf(cay.Invalid, "%q is a directory, not a program", name)
	case errors.Is(err, fs.ErrPermission):
		return cay.Errorf(cay.Invalid, "%q is not executable", name).WithHint("chmod +x it, or run it by its interpreter")
	case errors.Is(err, syscall.ENOEXEC):
		return cay.Errorf(cay.Invalid, "%q is no program: wrong format, or a script without #!", name)
	case errors.Is(err, syscall.E2BIG):
		return cay.Errorf(cay.Invalid, "arguments and environment of %q are too long", name)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return cay.Errorf(cay.QuotaExceeded, "cannot start %q: the sandbox has no room for another process", name).
			WithHint("end some processes, or give the sandbox more memory")
	}
	return fileError("start", name, err)
}

// spawn starts the planned command on the given stdio.
func (pl *plan) spawn(stdio [3]int) (pid int, err error) {
	p := process.Program{
		Path: pl.program, Args: pl.params.Argv, Env: pl.env, Dir: pl.dir, Stdio: stdio, Terminal: pl.params.PTY != nil,
	}
	if u := pl.user; u != nil {
		p.User = &process.User{UID: u.uid, GID: u.gid, Groups: u.groups}
	}
	pid, err = process.Start(p)
	if err == nil {
		return pid, nil
	}
	// The child reports only an errno. The program was there a moment ago, so the missing
	// file is its interpreter.
	if errors.Is(err, fs.ErrNotExist) && executable(pl.program) == nil {
		return 0, cay.Errorf(cay.ExecutableMissing, "the interpreter of %q not found", clip(pl.params.Argv[0])).
			WithHint("look at its first line, or at the loader it is linked to")
	}
	if errors.Is(err, fs.ErrPermission) && pl.user != nil && pl.user.uid != 0 {
		return 0, cay.Errorf(cay.Invalid, "user %q may not run %q in %q", pl.user.name, clip(pl.params.Argv[0]), pl.workDir).
			WithHint("check the permissions of the program and of the working directory, or use sudo")
	}
	return 0, execError(pl.params.Argv[0], err)
}

// clip shortens text that is quoted in a message.
func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}
	return s
}

// shownArgv is argv within guest.MaxArgvShown.
func shownArgv(argv []string) []string {
	var out []string
	left := guest.MaxArgvShown
	for _, a := range argv {
		if left -= len(a) + 4; left < 0 {
			cut := max(left+len(a), 0)
			return append(out, strings.ToValidUTF8(a[:min(cut, len(a))], "")+"…")
		}
		out = append(out, a)
	}
	return out
}
