package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/sandbox"
)

// app is one invocation of the command line, with the state that all commands share.
type app struct {
	stdin          *os.File
	stdout, stderr *os.File
	signals        *interrupts

	// Flags every command has.
	url, token, team, context string
	json                      bool

	// inContext is the name of the context whose values url, token and team have.
	inContext string

	// ran is set when a command's own code begins: errors before that are usage errors.
	ran bool

	// serve runs a daemon until ctx ends. It calls ready, once the daemon answers, with the
	// daemon's URL and the URL of its AI gateway, if there is one. reload receives
	// functions that read the configuration again.
	serve func(ctx context.Context, cfg config.Config, reload <-chan func() (config.Config, error), ready func(url, gatewayURL string)) error
	// ephemeral starts an engine in this process; stop ends the engine with all its
	// sandboxes.
	ephemeral func(ctx context.Context, cfg config.Config) (c *sandbox.Client, stop func() error, err error)
}

func newApp() *app {
	return &app{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		serve: serveDaemon(os.Stdout, os.Stderr), ephemeral: startEphemeral(os.Stderr),
	}
}

// main runs one command line and returns the exit code.
func (a *app) main(args []string) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	a.signals = watchSignals(cancel)
	defer a.signals.stop()

	root := newRootCommand(a)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !a.ran && !errors.As(err, new(*usageError)) {
		err = &usageError{err.Error(), cmd.CommandPath()}
	}
	var quiet *interruptError
	if errors.As(context.Cause(ctx), &quiet) && cay.CodeOf(err) == cay.Canceled {
		return quiet.exitCode()
	}
	// A wrong flag keeps cobra from reading the flags behind it, such as --json.
	a.json = a.json || slices.Contains(beforeDash(args), "--json")
	return a.report(inFlags(cmd, err))
}

// beforeDash returns cay's own part of a command line: arguments after -- belong to another
// program.
func beforeDash(args []string) []string {
	if i := slices.Index(args, "--"); i >= 0 {
		return args[:i]
	}
	return args
}

const rootHelp = `cay is an agent cloud on your own Linux machine: sandboxes that run untrusted
code, workflows that survive crashes, one gateway to every model, and agents made
of the three.

One command is enough to begin; it needs no daemon:

  cay run --runtime python3.13 -- python3 -c 'print("hello")'

Commands speak to a daemon ("cay serve") at --url or $CAY_URL, by default the one
on this machine, with the token in --token or $CAY_TOKEN, by default the admin
token in the data directory. "cay context" gives daemons names, for --context and
$CAY_CONTEXT.

Exit codes: 0 done, 1 error, 2 wrong usage, 130 interrupted by Ctrl-C. "cay run"
and the commands that run programs in a sandbox pass on the program's own code
and say in their help which others they use. With --json, errors are one line of
JSON on standard error: {"error":{"code":...,"message":...,"hint":...}}.`

func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:           "cay",
		Short:         "An agent cloud on your own machine",
		Long:          rootHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noVerb,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(flagError)
	f := root.PersistentFlags()
	f.StringVar(&a.url, "url", "", "address of the daemon (default $CAY_URL, else http://127.0.0.1:7070)")
	f.StringVar(&a.token, "token", "", "secret to present (default $CAY_TOKEN, else the admin token of this machine)")
	f.StringVar(&a.team, "team", "", "team an admin token speaks for (default $CAY_TEAM, else the default team)")
	f.StringVar(&a.context, "context", "", "daemon to use, by the name \"cay context\" gave it (default $CAY_CONTEXT, else the one in use)")
	f.BoolVar(&a.json, "json", false, "print the result as JSON")
	f.SortFlags = false

	root.AddGroup(
		&cobra.Group{ID: "sandboxes", Title: "Sandboxes:"},
		&cobra.Group{ID: shortForms, Title: "Short forms, mostly of \"cay sandbox\":"},
		&cobra.Group{ID: "workflows", Title: "Workflows:"},
		&cobra.Group{ID: "models", Title: "Models:"},
		&cobra.Group{ID: "daemon", Title: "Daemon:"},
		&cobra.Group{ID: "other", Title: "Other:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("sandboxes", newRunCommand(a), newSandboxCommand(a), newSnapshotCommand(a), newDriveCommand(a), newImageCommand(a), newVercelCommand(a), newCloudflareCommand(a), newDockerCommand(a))
	add(shortForms, newShortForms(a)...)
	add("workflows", newWorkflowCommand(a))
	add("models", newGatewayCommand(a))
	add("daemon", newServeCommand(a), newUpgradeCommand(a), newStatusCommand(a), newContextCommand(a), newTokenCommand(a), newTeamCommand(a), newProjectCommand(a), newUICommand(a), newDoctorCommand(a), newBackupCommand(a), newRestoreCommand(a))
	add("other", newVersionCommand(a))
	root.AddCommand(newGuestCommand(a), newBenchCommand(a), newDescribeCommand(a), newReapCommand(a))
	root.SetHelpCommandGroupID("other")
	root.SetCompletionCommandGroupID("other")
	return root
}

// newNoun returns a command that only groups verbs.
func newNoun(use, short, long string, verbs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Long: long, Args: noVerb,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(verbs...)
	return c
}

// noVerb refuses arguments of a command that only has sub-commands.
func noVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return unknown(cmd, args[0])
}

// verb gives c its run function.
func (a *app) verb(c *cobra.Command, run func(ctx context.Context, args []string) error) *cobra.Command {
	c.RunE = func(cmd *cobra.Command, args []string) error {
		a.ran = true
		if err := a.useContext(); err != nil {
			return err
		}
		return run(cmd.Context(), args)
	}
	c.Flags().SortFlags = false
	return c
}

// usage returns an error of wrong usage; the command's help follows as the hint.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...), cmd.CommandPath()}
}

// options resolves the shared flags against the context and the environment.
func (a *app) options() sandbox.ClientOptions {
	if err := a.useContext(); err != nil { // verb has reported it; completion must reach no other daemon
		return sandbox.ClientOptions{URL: "context:"}
	}
	team := a.team
	if team == "" {
		team = os.Getenv("CAY_TEAM")
	}
	return sandbox.ClientOptions{URL: a.url, Token: a.token, Team: team}
}

// sandboxes returns a client of the daemon.
func (a *app) sandboxes() *sandbox.Client { return sandbox.NewClient(a.options()) }

// accounts returns a client of the daemon.
func (a *app) accounts() *account.Client {
	o := a.options()
	return &account.Client{URL: o.URL, Token: o.Token, Team: o.Team}
}

// isTerminal reports whether f is a terminal.
func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
