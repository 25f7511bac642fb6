package main

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

const runHelp = `Run a program in a new sandbox, pass on its output and exit code, and remove the
sandbox whatever happens.

It takes the daemon at --url or $CAY_URL, else the one on this machine. If none
answers there, sandboxes are made by this process itself.

Standard input is forwarded unless it is a terminal; -it makes the program use
this terminal. The first Ctrl-C goes to the program, the second kills it.

` + execCodes

// copySlack is how long a sandbox outlives the program's own timeout, so that
// results can still be copied out.
const copySlack = time.Minute

const removeTimeout = 30 * time.Second

type runOptions struct {
	sandbox  sandboxFlags
	exec     execFlags
	timeout  time.Duration
	copyIn   []string
	copyOut  []string
	name     string
	keep     bool
	quiet    bool
	argv     []string
	limitSet bool
}

func newRunCommand(a *app) *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG...]",
		Short: "Run a program in a new sandbox",
		Long:  runHelp,
		Example: `  cay run --runtime python3.13 -- python3 -c 'print(2**100)'
  cay run --image alpine:3.22 -it -- sh
  cay run --copy ./src:src --copy-out out.txt:. --network deny-all -- make -C src
  cay run --allow api.example.com -- node agent.js
  cay run --snapshot ready --drive data:/data -- ./train.sh
  echo '{"a":1}' | cay run -- node -e 'process.stdin.pipe(process.stdout)'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(splitDash(args)) == 0 {
				return usage(cmd, "there is no command to run")
			}
			return nil
		},
	}
	c.Flags().SetInterspersed(false)
	o.sandbox.register(c)
	c.Flags().DurationVar(&o.timeout, "timeout", 5*time.Minute, "end the program after that time; its sandbox has a minute more")
	o.exec.register(c)
	c.Flags().StringArrayVar(&o.copyIn, "copy", nil, "copy a file or directory in before it runs, as SRC:DST")
	c.Flags().StringArrayVar(&o.copyOut, "copy-out", nil, "copy a file or directory out after it ran, as SRC:DST")
	c.Flags().StringVar(&o.name, "name", "", "name of the sandbox")
	c.Flags().BoolVar(&o.keep, "keep", false, "do not remove the sandbox")
	c.Flags().BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
	return a.verb(c, func(ctx context.Context, args []string) error {
		o.argv = splitDash(args)
		o.limitSet = c.Flags().Changed("timeout")
		return o.run(ctx, a)
	})
}

func (o *runOptions) run(ctx context.Context, a *app) error {
	if o.sandbox.policy.file == "-" {
		return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--policy - does not go with run: standard input is the program's")}
	}
	create, err := o.sandbox.params(a.stdin)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	command, err := o.exec.params(a, o.argv)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	if command.Timeout, err = durationValue("--timeout", o.timeout, o.limitSet); err != nil {
		return &exitError{exitUsage, err}
	}
	command.Main = true
	copyIn, err := parseCopies("--copy", o.copyIn)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	copyOut, err := parseCopies("--copy-out", o.copyOut)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	create.Timeout = command.Timeout + sandbox.Duration(copySlack)
	persistent := o.name != "" && o.keep // whether it was named here does not say
	create.Persistent = &persistent
	if create.Name = o.name; create.Name == "" {
		// The name is chosen here, so that a sandbox whose creation was cut short can be found
		// and removed.
		create.Name = "run-" + strings.ToLower(rand.Text()[:12])
	}

	c, stop, err := a.open(ctx)
	if err != nil {
		return before(ctx, err)
	}
	err = o.inSandbox(ctx, a, c, create, command, copyIn, copyOut)
	if serr := stop(); serr != nil {
		a.warn("cleaning up failed: %v", serr)
	}
	return err
}

// inSandbox creates the sandbox, copies files, runs the command, and deletes the sandbox.
func (o *runOptions) inSandbox(ctx context.Context, a *app, c *sandbox.Client, create sandbox.CreateParams, command sandbox.CommandParams, copyIn, copyOut []copySpec) error {
	quiet := o.quiet || a.json
	if err := a.ensureImages(ctx, c, create, quiet); err != nil {
		return before(ctx, err)
	}
	sb, err := c.Create(ctx, create)
	if err != nil {
		if ctx.Err() != nil && o.name == "" {
			a.remove(ctx, c, create.Name)
		}
		return before(ctx, err)
	}
	if o.keep {
		defer a.note(quiet, "sandbox %s is kept; it ends %s", sb.Name, agoPtr(sb.ExpiresAt))
	} else {
		defer a.remove(ctx, c, sb.ID)
	}
	for _, spec := range copyIn {
		if err := a.copyIn(ctx, c, quiet, spec.src, place{sb.ID, spec.dst}); err != nil {
			return before(ctx, err)
		}
	}
	err = a.runAttached(ctx, c, sb.ID, command, o.exec.tty)
	if !programEnded(err) {
		return err
	}
	for _, spec := range copyOut {
		if cerr := a.copyOut(ctx, c, quiet, place{sb.ID, spec.src}, spec.dst); cerr != nil {
			if err == nil {
				return cerr
			}
			a.warn("copying out failed: %v", cerr) // the program's exit code matters more
			return err
		}
	}
	return err
}

// programEnded reports whether err is the exit of a program, and not a failure to observe it.
func programEnded(err error) bool {
	var exit *exitError
	if err == nil {
		return true
	}
	return errors.As(err, &exit) && exit != errBrokenPipe && (exit.err == nil || exit.code == exitTimedOut)
}

// remove deletes a sandbox even if ctx has ended.
func (a *app) remove(ctx context.Context, c *sandbox.Client, ref string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	if err := c.Delete(ctx, ref); err != nil && cay.CodeOf(err) != cay.NotFound {
		a.warn("sandbox %s could not be removed: %v", ref, err)
	}
}

// before returns the error of a step before the program.
func before(ctx context.Context, err error) error {
	var i *interruptError
	if errors.As(context.Cause(ctx), &i) {
		return &exitError{code: i.exitCode()}
	}
	return &exitError{exitFailed, err}
}

// open returns a client of the daemon that the user has named, else of this machine's daemon if
// it accepts our token, else of an engine in this process. stop ends that engine; stop may be
// called after ctx has ended.
func (a *app) open(ctx context.Context) (c *sandbox.Client, stop func() error, err error) {
	remote := func() (*sandbox.Client, func() error, error) {
		return a.sandboxes(), func() error { return nil }, nil
	}
	if a.url != "" || os.Getenv("CAY_URL") != "" {
		return remote()
	}
	if listening(ctx, wire.DefaultURL) {
		_, err := a.accounts().WhoAmI(ctx)
		if err == nil {
			return remote()
		}
		if ctx.Err() != nil || a.token != "" || os.Getenv("CAY_TOKEN") != "" {
			return nil, nil, err // this very daemon was meant
		}
	}
	cfg, err := config.Load(config.Sources{File: os.Getenv("CAY_CONFIG"), Env: os.Getenv})
	if err != nil {
		return nil, nil, err
	}
	return a.ephemeral(ctx, cfg)
}

// listening reports whether anything listens at a URL on this machine.
func listening(ctx context.Context, rawURL string) bool {
	u, err := url.Parse(rawURL)
	if err != nil {
		return false
	}
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
