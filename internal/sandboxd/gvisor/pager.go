package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	gvlog "gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/state/stateipc"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/pages"
)

// pagerName is argv[0] of a pager.
const pagerName = "cay-pager"

// The modes of a pager.
const (
	loads = "load" // it gives a sentry a checkpoint's files
	paces = "pace" // loads at a bounded rate, until it is told to hurry
	saves = "save" // it writes them for a sentry
)

// How a pager ends, if not well or with 1.
const (
	exitTooLarge = 3 + iota
	exitNoSpace
	exitDamaged
)

// pagerProcess is a pager, which stands between a sentry and the files of a checkpoint.
// The sentry and the pager talk over a socket, in gVisor's protocol. The pager is this
// program, executed again, as nobody, with an empty root and a filter on its system
// calls; it has no access to anything except its files.
//
// Loading: without a pager a sentry loads pages by 128 threads at once, which leave it no
// CPU to start with. A pager copies one piece after another, first the pieces that a
// program waits for, and refuses damaged pieces. It is in the machine's cgroup, because
// the kernel charges the first writer of a page for it. It outlives the daemon, because
// machines do, loaded or not.
//
// Saving: the pager bounds the number of bytes written, and after its end nobody can
// write to the files any more. If the sentry had the files, a compromised sentry could
// still write. A saving pager is not in the machine's cgroup: a machine that has used up
// its memory must be saved, not killed for the memory that saving takes.
//
// A pager ends when no process has the sentry's end of the socket open.
type pagerProcess struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	// stop is closed to make a saving pager refuse further writes, and a pacing pager
	// hurry. A saving pager must not end before it is asked to write: a sentry whose
	// files fail to open crashes. The end of the daemon closes stop too. stop is nil for
	// a pager that only loads.
	stop *os.File
}

// startPager starts a pager and returns the sentry's end of the socket. The base names of
// the files are their names in the protocol. The pager verifies the files that follow a
// State in files, by the sums in that State.
func (r *Runtime) startPager(does string, limit int64, group *group, files openFiles) (*pagerProcess, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create socketpair: %w", err)
	}
	ours, end := os.NewFile(uintptr(fds[0]), "pager"), os.NewFile(uintptr(fds[1]), "checkpoint")
	defer ours.Close()
	root, err := os.Open(filepath.Join(r.cfg.StateDir, emptyDir))
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open empty root: %w", err), end.Close())
	}
	defer root.Close()
	p := &pagerProcess{cmd: exec.Command("/proc/self/exe")}
	p.cmd.Args = []string{pagerName, does, strconv.FormatInt(limit, 10)}
	for _, f := range files {
		p.cmd.Args = append(p.cmd.Args, path.Base(f.Name()))
	}
	if does != loads {
		stop, write, err := os.Pipe()
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("create pipe: %w", err), end.Close())
		}
		defer stop.Close()
		p.cmd.Stdin, p.stop = stop, write
	}
	var serving *os.File
	if does == saves {
		read, ready, err := os.Pipe()
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("create pipe: %w", err), p.refuse(), end.Close())
		}
		defer read.Close()
		defer ready.Close()
		p.cmd.Stdout, serving = ready, read
	}
	// Its threads count against the machine's limit. It makes almost no garbage, except for
	// the maps of a saving pager.
	p.cmd.Env = []string{"GOMAXPROCS=2", "GOGC=off", "GOMEMLIMIT=16MiB"}
	if does == saves {
		p.cmd.Env = []string{"GOMAXPROCS=2"}
	}
	p.cmd.Dir = "/"
	p.cmd.Stderr = &p.stderr
	p.cmd.ExtraFiles = append([]*os.File{ours, root}, files...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	into, err := group.cloneInto()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open cgroup: %w", err), p.refuse(), end.Close())
	}
	if into != nil {
		defer into.Close()
		p.cmd.SysProcAttr.UseCgroupFD, p.cmd.SysProcAttr.CgroupFD = true, int(into.Fd())
	}
	if err := p.cmd.Start(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start pager: %w", err), p.refuse(), end.Close())
	}
	if serving != nil { // a machine need not stand still for that
		p.cmd.Stdout.(*os.File).Close()
		// The pager's end also ends the read: wait returns the reason.
		_, _ = serving.Read(make([]byte, 1))
	}
	if into == nil {
		if err := group.add(p.cmd.Process.Pid); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("move pager into its cgroup: %w", err), end.Close(), p.wait())
		}
	}
	return p, end, nil
}

// loader is a pager that loads a machine.
type loader struct {
	pages *os.File // the sentry's end of the socket
	ended chan struct{}
	err   error // the failure that the pager reported; set before ended is closed
}

// failure returns the error that the pager reported, once the pager has ended, nil if it
// reported none. The sentry has ended, and a pager ends with its sentry, except that a
// compromised sentry may have passed on its end of the socket: so failure waits endTime
// at most.
func (l *loader) failure() error {
	if l == nil {
		return nil
	}
	select {
	case <-l.ended:
		return l.err
	case <-time.After(endTime):
		return nil
	}
}

// explain returns why a machine did not start: damage in the saved state, if the pager
// reported it, or else err. The sentry has ended.
func (l *loader) explain(err error) error {
	if err == nil || l == nil {
		return err
	}
	if failure := l.failure(); cay.CodeOf(failure) == cay.Conflict {
		return failure
	}
	return err
}

// foundDamage reports whether a pager ended because the saved state is damaged.
func (l *loader) foundDamage() bool { return cay.CodeOf(l.failure()) == cay.Conflict }

// endTime bounds the wait for a pager's end.
const endTime = 2 * time.Second

// startLoader starts a pager that loads from. started is closed when the machine has
// started, or has failed to start.
func (r *Runtime) startLoader(from *origin, group *group, started <-chan struct{}) (*loader, error) {
	does := loads
	if r.loading.Add(1) > 1 || from.together != nil {
		does = paces
	}
	p, end, err := r.startPager(does, 0, group, from.files)
	if err != nil {
		r.loading.Add(-1)
		return nil, err
	}
	l := &loader{pages: end, ended: make(chan struct{})}
	go func() { // ends with the sentry
		defer close(l.ended)
		<-started
		if from.together != nil {
			<-from.together
		}
		hurry := time.AfterFunc(startTime, func() { _ = p.refuse() }) // stop is still open, or wait has closed it
		err := p.wait()
		hurry.Stop()
		r.loading.Add(-1)
		if err == nil {
			return
		}
		// The failure ends the machine, which reports it (see instance.watchLoad), or the
		// machine has ended before.
		r.log.Debug("pager failed", "error", err)
		if p.cmd.ProcessState.Exited() { // and was not killed, for lack of memory say
			l.err = err
		}
	}()
	return l, nil
}

// startWriter starts a pager that saves at most maxBytes into files, and returns
// the sentry's end of the socket.
func (r *Runtime) startWriter(files openFiles, maxBytes int64) (*pagerProcess, *os.File, error) {
	return r.startPager(saves, maxBytes, nil, files)
}

// refuse makes a saving pager refuse all further writes, and a pacing pager hurry.
func (p *pagerProcess) refuse() error {
	if p.stop == nil {
		return nil
	}
	if err := p.stop.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// wait waits for the end of the pager, and returns why it failed, if it did.
func (p *pagerProcess) wait() error {
	awaitExit(p.cmd.Process.Pid)
	err := p.cmd.Wait()
	if rerr := p.refuse(); err == nil {
		return rerr
	}
	said, _, _ := strings.Cut(strings.TrimSpace(p.stderr.String()), "\n")
	switch p.cmd.ProcessState.ExitCode() {
	case exitTooLarge:
		return cay.Errorf(cay.TooLarge, "%s", said).WithHint("free memory or disk in the sandbox, or have the limit raised")
	case exitDamaged:
		return cay.Errorf(cay.Conflict, "%s", said)
	case exitNoSpace:
		return fmt.Errorf("%s: %w", said, unix.ENOSPC)
	case 1:
		return errors.New(said)
	default:
		return fmt.Errorf("pager: %w: %s", err, said)
	}
}

// The descriptors a pager has beside standard error.
const (
	pagerSocket = 3 + iota
	pagerRoot
	pagerFiles // the first of its files
)

// pager is the main function of a pager. It returns the exit code.
func pager(args []string) int {
	// gVisor's log would go to the daemon. If the daemon has ended, writing to it would
	// kill the pager.
	gvlog.SetTarget(&gvlog.GoogleEmitter{Writer: &gvlog.Writer{Next: io.Discard}})
	err := servePages(args)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	switch {
	case errors.Is(err, errTooLarge):
		return exitTooLarge
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT):
		return exitNoSpace
	case errors.Is(err, errDamaged):
		return exitDamaged
	}
	return 1
}

func servePages(args []string) error {
	s, err := newCheckpointServer(args)
	if err != nil {
		return fmt.Errorf("serve checkpoint: %w", err)
	}
	sock, err := unet.NewSocket(pagerSocket)
	if err != nil {
		return fmt.Errorf("serve checkpoint: %w", err)
	}
	files, err := stateipc.NewAsyncFileServer(s)
	if err != nil {
		return fmt.Errorf("serve checkpoint: %w", err)
	}
	if err := confine(pagerRoot); err != nil {
		return err
	}
	if s.does != loads {
		go s.awaitStop(os.Stdin)
	}
	if s.does == saves {
		if err := os.Stdout.Close(); err != nil { // it serves
			return err
		}
	}
	server := urpc.NewServer()
	server.Register(files)
	err = server.Handle(sock)
	if failed := s.failed.Load(); failed != nil {
		return *failed
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("serve checkpoint: %w", err)
	}
	return nil
}

// newCheckpointServer makes the server of a pager with these arguments.
func newCheckpointServer(args []string) (*checkpointServer, error) {
	if len(args) < 2 {
		return nil, fmt.Errorf("unexpected arguments %q", args)
	}
	limit, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return nil, err
	}
	s := &checkpointServer{does: args[0], files: map[string][]servedFile{}}
	if limit > 0 {
		s.bounded = true
		s.left.Store(limit)
	}
	var files openFiles
	for i, name := range args[2:] {
		files = append(files, os.NewFile(uintptr(pagerFiles+i), name))
	}
	return s, s.addFiles(files)
}

// addFiles adds the files of a pager. A State precedes the files whose sums it has.
func (s *checkpointServer) addFiles(files openFiles) error {
	var state *machine.State
	for _, f := range files {
		switch name := path.Base(f.Name()); {
		case name == machine.StateName:
			data, err := io.ReadAll(f)
			if err != nil {
				return err
			}
			if state, err = machine.ParseState(data); err != nil {
				return err
			}
		case name == pages.MapName, name == baseName, pages.IsPart(name):
			if err := s.addPages(name, f, state); err != nil {
				return err
			}
		default:
			s.files[name] = append(s.files[name], servedFile{File: f, state: state})
		}
	}
	return nil
}

var _ stateipc.AsyncFileServerImpl = (*checkpointServer)(nil)
