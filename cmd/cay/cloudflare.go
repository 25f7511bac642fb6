package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/subtree"
)

const cloudflareHelp = `Run projects of Cloudflare Workers with containers on this daemon: "wrangler dev" and
vite's plugin start containers by the Docker Engine API, which cay serves.
docs/cloudflare.md says what works, and what not yet.`

func newCloudflareCommand(a *app) *cobra.Command {
	return newNoun("cloudflare", "Run Workers with containers on this daemon", cloudflareHelp, newCloudflareExec(a), newCloudflareEnv(a))
}

// cloudflareVariables point wrangler and workerd at a socket, and at cay as the docker
// command line, by a link named docker in bin.
func cloudflareVariables(socket, bin string) ([]variable, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, cay.Errorf(cay.ExecutableMissing, "cannot find cay's own program: %w", err)
	}
	link := filepath.Join(bin, "docker")
	if at, err := os.Readlink(link); err != nil || at != self {
		if err := os.MkdirAll(bin, 0o700); err != nil {
			return nil, err
		}
		draft := fmt.Sprintf("%s.%d", link, os.Getpid())
		if err := os.Symlink(self, draft); err != nil {
			return nil, err
		}
		if err := os.Rename(draft, link); err != nil {
			return nil, errors.Join(err, os.Remove(draft))
		}
	}
	return []variable{{"DOCKER_HOST", "unix://" + socket}, {"WRANGLER_DOCKER_HOST", "unix://" + socket}, {"WRANGLER_DOCKER_BIN", link}}, nil
}

const cloudflareEnvHelp = `Print the variables with which wrangler uses the socket of "cay docker serve". eval
takes what is printed.`

func newCloudflareEnv(a *app) *cobra.Command {
	var o dockerOptions
	c := &cobra.Command{
		Use: "env", Short: "Print the variables such a project needs", Long: cloudflareEnvHelp,
		Example: "  cay docker serve &\n  eval \"$(cay cloudflare env)\" && npx wrangler dev",
		Args:    none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&o.socket, "socket", "", "path of the socket (default that of \"cay docker serve\")")
	return a.verb(c, func(context.Context, []string) error {
		path, err := o.path()
		if err != nil {
			return err
		}
		cache, err := os.UserCacheDir()
		if err != nil {
			return cay.Errorf(cay.Invalid, "there is no directory for the link to cay that wrangler runs: %w", err)
		}
		vars, err := cloudflareVariables(path, filepath.Join(cache, "cay", "bin"))
		if err != nil {
			return err
		}
		if a.json {
			object := map[string]string{}
			for _, v := range vars {
				object[v.name] = v.value
			}
			return a.printJSON(object)
		}
		w := &errWriter{w: a.stdout}
		for _, v := range vars {
			shells["sh"](w, v)
		}
		return w.err
	})
}

const cloudflareExecHelp = `Run a program, such as "npx wrangler dev", with a socket of the Docker Engine API for it
alone. The socket, the containers that workerd has made by it, and the processes that the
program has left running end with the program. A signal goes to all of its processes; a
second one kills them.

Exit codes: the program's own; 128 + n when signal n ended it; 125 cay failed before it
ran; 127 there is no such program.`

func newCloudflareExec(a *app) *cobra.Command {
	var o dockerOptions
	c := &cobra.Command{
		Use: "exec [flags] [--] COMMAND [ARG...]", Short: "Run such a project on this daemon", Long: cloudflareExecHelp,
		Example: "  cay cloudflare exec -- npx wrangler dev\n  cay cloudflare exec -- npx vite",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(splitDash(args)) == 0 {
				return usage(cmd, "there is no command to run")
			}
			return nil
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().StringVar(&o.project, "project", "", "project of the containers, by id or name (default the token's, else the team's default one)")
	return a.verb(c, func(ctx context.Context, args []string) error { return a.cloudflareExec(ctx, o, splitDash(args)) })
}

func (a *app) cloudflareExec(ctx context.Context, o dockerOptions, argv []string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return &exitError{exitNotFound, cay.Errorf(cay.ExecutableMissing, "%v", err)}
	}
	dir, err := os.MkdirTemp("", "cay")
	if err != nil {
		return before(ctx, err)
	}
	defer os.RemoveAll(dir) // the remaining files are useless
	socket := filepath.Join(dir, "docker.sock")
	vars, err := cloudflareVariables(socket, filepath.Join(dir, "bin"))
	if err != nil {
		return before(ctx, err)
	}
	// Builds call the daemon's API.
	for name, value := range map[string]string{"CAY_URL": a.url, "CAY_TOKEN": a.token, "CAY_TEAM": a.team} {
		if value != "" {
			vars = append(vars, variable{name, value})
		}
	}
	if o.project != "" {
		if o.project, err = findProject(ctx, a.accounts(), o.project); err != nil {
			return before(ctx, err)
		}
		vars = append(vars, variable{"CAY_DOCKER_PROJECT", o.project})
	}
	server, l, err := o.listen(ctx, a, socket)
	if err != nil {
		return before(ctx, err)
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	served := make(chan error, 1)
	go func() { served <- server.Serve(serving, l) }()
	defer func() {
		stop()
		<-served // its errors have been sent to clients
	}()
	cmd := exec.Command(path, argv[1:]...)
	cmd.Args[0] = argv[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stdout, a.stderr
	cmd.Env = os.Environ()
	for _, v := range vars {
		cmd.Env = append(cmd.Env, v.name+"="+v.value)
	}
	cmd.Env = cmd.Environ() // the last of a name is the only one
	left := &leftovers{}
	defer left.close()
	if err := left.adopt(); err != nil {
		return before(ctx, err)
	}
	if err := cmd.Start(); err != nil {
		return &exitError{exitFailed, cay.Errorf(cay.Invalid, "%s cannot be run: %w", path, err)}
	}
	release := a.signals.take(func(sig syscall.Signal) { left.signal(sig, isTerminal(a.stdin)) })
	defer release()
	err = cmd.Wait()
	if e := left.end(); e != nil {
		a.warn("processes may be left behind: %v", e)
	}
	removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
	defer cancel()
	if e := server.RemoveSessions(removing); e != nil {
		a.warn("containers may be left behind: %v", e)
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &exit):
		return err
	}
	if st, ok := exit.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		return &exitError{exitSignal + int(st.Signal()), nil}
	}
	return &exitError{exit.ExitCode(), nil}
}

const (
	// politeTime is how long a command's remaining processes may take to end after they
	// were asked to.
	politeTime = 10 * time.Second
	// removeTime bounds the removal of containers.
	removeTime = time.Minute
)

// leftovers are the processes that a command has started and left running: npx forwards
// no signals, and ends before wrangler and workerd.
type leftovers struct {
	hurry context.Context // ends when the user has asked twice
	cut   context.CancelFunc

	mu    sync.Mutex // guards what follows
	asked bool       // by a signal, or because the command has ended
	ended bool       // the command has
}

// adopt makes cay the parent of the command's orphans.
func (l *leftovers) adopt() error {
	l.hurry, l.cut = context.WithCancel(context.Background())
	return subtree.Adopt()
}

// signal passes a signal on to every process of the command; the second one kills them.
// Programs that read from a terminal get SIGINT from the terminal itself, and may
// continue.
func (l *leftovers) signal(sig syscall.Signal, terminal bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if sig == syscall.SIGINT && terminal && !l.ended {
		return
	}
	if l.asked {
		l.cut()
		sig = syscall.SIGKILL
	}
	l.asked = true
	_ = subtree.Signal(sig) // end tells what is left
}

// end asks the command's remaining processes to end, and kills them when that takes too
// long.
func (l *leftovers) end() error {
	l.mu.Lock()
	l.ended = true
	if !l.asked {
		_ = subtree.Signal(syscall.SIGTERM) // as above
	}
	l.asked = true
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(l.hurry, politeTime)
	defer cancel()
	return subtree.End(ctx)
}

func (l *leftovers) close() {
	if l.cut != nil {
		l.cut()
	}
}
