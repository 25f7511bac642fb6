package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const sandboxHelp = `Work with the sandboxes of a daemon. SANDBOX is a name or an id.`

func newSandboxCommand(a *app) *cobra.Command {
	c := newNoun("sandbox", "Work with sandboxes", sandboxHelp,
		newSandboxCreate(a), newSandboxList(a), newSandboxGet(a),
		newSandboxExec(a), newSandboxShell(a), newSandboxPS(a), newSandboxLogs(a), newSandboxCopy(a),
		newSandboxStop(a), newSandboxPause(a), newSandboxHibernate(a), newSandboxResume(a), newSandboxFork(a), newSandboxRemove(a),
		newSandboxUpdate(a), newSandboxNetwork(a), newSandboxPorts(a), newSandboxForward(a), newSandboxTag(a), newSandboxExtend(a),
		newSandboxStats(a), newSandboxEvents(a), newSandboxSessions(a), newSandboxPool(a),
	)
	c.Aliases = []string{"sb"}
	return c
}

// completeSandboxes offers the names of sandboxes for the first n arguments;
// n < 0 for all.
func (a *app) completeSandboxes(n int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if n >= 0 && len(args) >= n {
			return nil, cobra.ShellCompDirectiveDefault
		}
		page, err := a.sandboxes().List(cmd.Context(), sandbox.ListParams{NamePrefix: prefix, Limit: 200})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var names []string
		for _, s := range page.Items {
			names = append(names, s.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// exactly takes n arguments; names says which, for the error.
func exactly(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usage(cmd, "it takes %s, not %d arguments", names, len(args))
		}
		return nil
	}
}

func atLeast(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return usage(cmd, "it takes %s", names)
		}
		return nil
	}
}

func none(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(cmd, "it takes no argument %q", args[0])
	}
	return nil
}

type sandboxCreateOptions struct {
	sandbox       sandboxFlags
	name          string
	timeout, idle time.Duration
	timeoutSet    bool
	idleSet       bool
	env, envFiles []string
	workDir, user string
	ports         []string
	keep          keepFlags
	saveEvery     time.Duration
	source        sourceFlags
	quiet         bool
}

func newSandboxCreate(a *app) *cobra.Command {
	var o sandboxCreateOptions
	c := &cobra.Command{
		Use:   "create [NAME]",
		Short: "Create a sandbox",
		Long: `Create a sandbox and print its name once it answers commands.

With NAME it is persistent: when it stops its files are saved, and what needs it
next starts it again from them. Without NAME it gets one that is easy to read, and
what is in it goes when it stops.`,
		Example: `  cay sandbox create web --runtime node24 --timeout 1h
  cay sandbox create --snapshot ready --drive data:/data
  cay sandbox create --git https://git.example.com/app.git --revision v1 --depth 1
  cay sandbox create job --ephemeral`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage(cmd, "it takes at most one name")
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o.sandbox.register(c)
	fl := c.Flags()
	fl.DurationVar(&o.timeout, "timeout", 5*time.Minute, "stop it after that time; \"cay sandbox extend\" adds more")
	fl.DurationVar(&o.idle, "idle-timeout", 0, "stop it when nothing happened in it for that long (default never)")
	fl.StringArrayVarP(&o.ports, "port", "p", nil, "serve a preview of that port, as PORT or PORT:private")
	fl.StringArrayVarP(&o.env, "env", "e", nil, "set a variable of all its commands, as KEY=VALUE, or KEY for the value it has here")
	fl.StringArrayVar(&o.envFiles, "env-file", nil, "set the variables in a file of KEY=VALUE lines")
	fl.StringVarP(&o.workDir, "workdir", "w", "", "directory its commands run in (default the image's)")
	fl.StringVarP(&o.user, "user", "u", "", "user its commands run as (default the image's)")
	o.keep.register(c)
	registerSaveEvery(c, &o.saveEvery)
	o.source.register(c)
	fl.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
	return a.verb(c, func(ctx context.Context, args []string) error {
		if len(args) == 1 {
			o.name = args[0]
		}
		o.timeoutSet, o.idleSet = fl.Changed("timeout"), fl.Changed("idle-timeout")
		return o.run(ctx, a)
	})
}

func (o *sandboxCreateOptions) run(ctx context.Context, a *app) error {
	p, err := o.sandbox.params(a.stdin)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	p.Name, p.WorkDir, p.User = o.name, o.workDir, o.user
	if p.Timeout, err = durationValue("--timeout", o.timeout, o.timeoutSet); err != nil {
		return &exitError{exitUsage, err}
	}
	if p.IdleTimeout, err = durationValue("--idle-timeout", o.idle, o.idleSet); err != nil {
		return &exitError{exitUsage, err}
	}
	if p.Env, err = parseEnv(o.envFiles, o.env, os.LookupEnv); err != nil {
		return &exitError{exitUsage, err}
	}
	for _, text := range o.ports {
		port, err := parsePort(text)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		p.Ports = append(p.Ports, port)
	}
	p.SnapshotExpiration, p.SaveEvery = o.keep.expiration.value(), sandbox.Duration(o.saveEvery)
	if p.Persistent, err = o.keep.persistence(); err != nil {
		return &exitError{exitUsage, err}
	}
	if p.Retention, err = o.keep.newRetention(); err != nil {
		return &exitError{exitUsage, err}
	}
	if p.Source, err = o.source.params(os.LookupEnv); err != nil {
		return &exitError{exitUsage, err}
	}
	if err := p.Validate(); err != nil {
		return &exitError{exitUsage, err}
	}
	c, quiet := a.sandboxes(), o.quiet || a.json
	if err := a.ensureImages(ctx, c, p, quiet); err != nil {
		return err
	}
	s, err := c.Create(ctx, p)
	if err != nil {
		return err
	}
	for _, port := range s.Ports {
		a.note(quiet, "port %d: %s", port.Port, port.URL)
	}
	return a.show(s, func(w io.Writer) { fmt.Fprintln(w, s.Name) })
}

type sandboxListOptions struct {
	all, quiet bool
	status     []string
	tags       []string
	prefix     string
	project    string
	sort       string
	reverse    bool
}

// statuses are all there are.
var statuses = []sandbox.Status{
	sandbox.Pending, sandbox.Running, sandbox.Paused, sandbox.Hibernated, sandbox.Resuming, sandbox.Stopping,
	sandbox.Stopped, sandbox.Failed,
}

func newSandboxList(a *app) *cobra.Command {
	var o sandboxListOptions
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List sandboxes",
		Long: "List the sandboxes that run or can be resumed, newest first.",
		Example: `  cay sandbox list --tag stage=test
  cay sandbox list --sort status --all`,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	fl := c.Flags()
	fl.BoolVarP(&o.all, "all", "a", false, "also those that have ended for good")
	fl.StringSliceVar(&o.status, "status", nil, "only those in these states: pending, running, paused, hibernated, resuming, stopping, stopped, failed")
	fl.StringArrayVar(&o.tags, "tag", nil, "only those with this tag, as KEY=VALUE")
	fl.StringVar(&o.prefix, "prefix", "", "only those whose name begins so")
	fl.StringVar(&o.project, "project", "", "those of this project, by id; \"*\" for all of the team")
	fl.StringVar(&o.sort, "sort", "created", "sort by created or status, the latest change first, or by name or snapshot")
	fl.BoolVar(&o.reverse, "reverse", false, "sort the other way round")
	fl.BoolVarP(&o.quiet, "quiet", "q", false, "print names only")
	return a.verb(c, func(ctx context.Context, _ []string) error { return o.run(ctx, a) })
}

// sandboxOrders are the orders of lists of sandboxes: ascending by names and ids,
// descending by times.
var sandboxOrders = map[string]struct {
	order     sandbox.Order
	ascending bool
}{
	"created":  {sandbox.ByCreation, false},
	"name":     {sandbox.ByName, true},
	"status":   {sandbox.ByStatusAt, false},
	"snapshot": {sandbox.BySnapshot, true},
}

func (o *sandboxListOptions) run(ctx context.Context, a *app) error {
	tags, err := parseTags(o.tags)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	by, ok := sandboxOrders[o.sort]
	if !ok {
		return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--sort %q is not one of created, name, status, snapshot", o.sort)}
	}
	p := sandbox.ListParams{
		ProjectID: o.project, NamePrefix: o.prefix, Tags: tags, Order: by.order, Ascending: by.ascending != o.reverse,
	}
	switch {
	case len(o.status) > 0:
		for _, s := range o.status {
			if !slices.Contains(statuses, sandbox.Status(s)) {
				return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--status %q is not one of %v", s, statuses)}
			}
			p.Status = append(p.Status, sandbox.Status(s))
		}
	default:
		p.Resumable = !o.all
	}
	c := a.sandboxes()
	items, _, err := pages(0, func(n int, cursor string) (*sandbox.Page[sandbox.Sandbox], error) {
		p.Limit, p.Cursor = n, cursor
		return c.List(ctx, p)
	})
	if err != nil {
		return err
	}
	return a.show(items, func(w io.Writer) {
		if o.quiet {
			for _, s := range items {
				fmt.Fprintln(w, s.Name)
			}
			return
		}
		t := newTable("NAME", "STATUS", "PERSISTENT", "IMAGE", "VCPUS", "MEMORY", "CREATED", "ENDS")
		for _, s := range items {
			t.row(s.Name, statusText(&s), yesNo(s.Persistent), imageText(&s), vcpuText(s.VCPUs), mibText(s.MemoryMB), agoText(s.CreatedAt), agoPtr(s.ExpiresAt))
		}
		t.print(w)
	})
}

func statusText(s *sandbox.Sandbox) string {
	if s.Reason != "" && s.Reason != sandbox.ReasonRequested {
		return fmt.Sprintf("%s (%s)", s.Status, s.Reason)
	}
	if s.UnresponsiveSince != nil {
		return fmt.Sprintf("%s (unresponsive)", s.Status)
	}
	return string(s.Status)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func reasonText(s *sandbox.Sandbox) string {
	switch {
	case s.Message != "":
		return s.Message
	case s.Reason != "":
		return string(s.Reason)
	}
	return string(s.Status)
}

func imageText(s *sandbox.Sandbox) string {
	if s.Runtime != "" {
		return s.Image + " + " + s.Runtime
	}
	return s.Image
}

func newSandboxGet(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "get SANDBOX", Short: "Show a sandbox",
		Args: exactly(1, "one sandbox"), ValidArgsFunction: a.completeSandboxes(1),
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		c := a.sandboxes()
		s, err := c.Get(ctx, args[0])
		if err != nil {
			return err
		}
		return a.show(s, func(w io.Writer) { describe(w, s, mountsText(ctx, c, s.Mounts)) })
	})
}

func describe(w io.Writer, s *sandbox.Sandbox, drives string) {
	fields(w,
		"name", s.Name, "id", s.ID, "project", s.ProjectID,
		"status", statusText(s), "unresponsive since", agoPtr(s.UnresponsiveSince), "message", s.Message, "next", nextText(s),
		"image", imageText(s), "digest", s.Digest,
		"vcpus", vcpuText(s.VCPUs), "memory", mibText(s.MemoryMB), "disk", mibText(s.DiskMB),
		"user", s.User, "workdir", s.WorkDir, "network", string(s.Network.Mode),
		"ports", portsText(s.Ports), "drives", drives, "tags", tagsText(s.Tags),
		"env", strings.Join(slices.Sorted(maps.Keys(s.Env)), " "), // values may be secrets
		"persistent", yesNo(s.Persistent), "session", s.SessionID, "snapshot", s.SnapshotID,
		"snapshots kept", keptText(s), "saved every", durationText(s.SaveEvery),
		"timeout", durationText(s.Timeout), "idle timeout", durationText(s.IdleTimeout),
		"created", agoText(s.CreatedAt), "ends", agoPtr(s.ExpiresAt), "ended", agoPtr(s.StoppedAt),
		"cpu used", durationText(s.Usage.ActiveCPU), "ran for", durationText(s.Usage.WallTime),
		"memory peak", nonZeroBytes(s.Usage.MemoryPeak), "received", nonZeroBytes(s.Usage.IngressBytes), "sent", nonZeroBytes(s.Usage.EgressBytes),
		"all sessions", totalText(s),
	)
}

// nextText describes the next start of a sandbox that does not run.
func nextText(s *sandbox.Sandbox) string {
	switch {
	case s.Status == sandbox.Hibernated:
		return "goes on where it was, when it is needed or resumed"
	case !s.Status.Final():
		return ""
	case !s.Persistent:
		return "starts only if it is resumed with --anew"
	case s.SnapshotID == "":
		return "starts from its image, when it is needed or resumed"
	}
	return "starts from its snapshot, when it is needed or resumed"
}

// totalText returns a sandbox's usage in all its sessions, if it had several.
func totalText(s *sandbox.Sandbox) string {
	if s.Total == s.Usage {
		return ""
	}
	return fmt.Sprintf("%s of CPU in %s", durationText(s.Total.ActiveCPU), durationText(s.Total.WallTime))
}

func portsText(ports []sandbox.Port) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = fmt.Sprintf("%d %s", p.Port, p.URL)
	}
	return strings.Join(texts, ", ")
}

func nonZeroBytes(n int64) string {
	if n == 0 {
		return ""
	}
	return bytesText(n)
}

type sandboxExecOptions struct {
	exec          execFlags
	timeout       time.Duration
	timeoutSignal string
	detach        bool
}

func newSandboxExec(a *app) *cobra.Command {
	var o sandboxExecOptions
	c := &cobra.Command{
		Use:   "exec [flags] SANDBOX [--] COMMAND [ARG...]",
		Short: "Run a program in a sandbox",
		Long: `Run a program in a sandbox and pass on its output and exit code.

Standard input is forwarded unless it is a terminal; -it makes the program use
this terminal. The first Ctrl-C goes to the program, the second kills it.

` + execCodes,
		Example: "  cay sandbox exec web -- npm test\n  cay sandbox exec -it web bash\n  cay sandbox logs -f web $(cay sandbox exec -d web -- npm start)",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || len(splitDash(args[1:])) == 0 {
				return usage(cmd, "it takes a sandbox and a command")
			}
			return nil
		},
		ValidArgsFunction: a.completeSandboxes(1),
	}
	c.Flags().SetInterspersed(false)
	o.exec.register(c)
	c.Flags().DurationVar(&o.timeout, "timeout", 0, "end the program after that time (default never)")
	c.Flags().StringVar(&o.timeoutSignal, "timeout-signal", "", "end it with that signal, by name or number, and pass on what code it makes of it (default TERM and 124)")
	c.Flags().BoolVarP(&o.detach, "detach", "d", false, "print the command's id and leave it running")
	return a.verb(c, func(ctx context.Context, args []string) error {
		return o.run(ctx, a, args[0], splitDash(args[1:]), c.Flags().Changed("timeout"))
	})
}

func (o *sandboxExecOptions) run(ctx context.Context, a *app, ref string, argv []string, timeoutSet bool) error {
	p, err := o.exec.params(a, argv)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	if p.Timeout, err = durationValue("--timeout", o.timeout, timeoutSet); err != nil {
		return &exitError{exitUsage, err}
	}
	if p.TimeoutSignal, err = signalValue("--timeout-signal", o.timeoutSignal); err != nil {
		return &exitError{exitUsage, err}
	}
	c := a.sandboxes()
	if !o.detach {
		return a.runAttached(ctx, c, ref, p, o.exec.tty)
	}
	if o.exec.interactive || o.exec.tty {
		return &exitError{exitUsage, cay.Errorf(cay.Invalid, "-d does not go together with -i and -t")}
	}
	p.Stdin = false
	cmd, err := c.Start(ctx, ref, p)
	if err != nil {
		if cay.CodeOf(err) == cay.ExecutableMissing {
			return &exitError{exitNotFound, err}
		}
		return before(ctx, err)
	}
	return a.show(cmd, func(w io.Writer) { fmt.Fprintln(w, cmd.ID) })
}

// loginShell starts bash, or sh if there is no bash.
var loginShell = []string{"/bin/sh", "-c", `if command -v bash >/dev/null; then exec bash -l; else exec sh -l; fi`}

func newSandboxShell(a *app) *cobra.Command {
	var o execFlags
	c := &cobra.Command{
		Use: "shell SANDBOX", Short: "Open a shell in a sandbox",
		Long: "Open a login shell in a sandbox: bash, or sh where there is none.\n\n" + execCodes,
		Args: exactly(1, "one sandbox"), ValidArgsFunction: a.completeSandboxes(1),
	}
	fl := c.Flags()
	fl.StringVarP(&o.workDir, "workdir", "w", "", "directory to start in")
	fl.StringVarP(&o.user, "user", "u", "", "user to be")
	fl.BoolVar(&o.sudo, "sudo", false, "be root")
	fl.StringArrayVarP(&o.env, "env", "e", nil, "set a variable, as KEY=VALUE, or KEY for the value it has here")
	return a.verb(c, func(ctx context.Context, args []string) error {
		o.tty = isTerminal(a.stdin) // commands piped into a shell need none
		o.interactive = o.tty
		p, err := o.params(a, loginShell)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		return a.runAttached(ctx, a.sandboxes(), args[0], p, o.tty)
	})
}

func newSandboxPS(a *app) *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use: "ps SANDBOX", Short: "List the commands of a sandbox",
		Long: "List the commands that run in a sandbox and the newest that have ended.",
		Args: exactly(1, "one sandbox"), ValidArgsFunction: a.completeSandboxes(1),
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	return a.verb(c, func(ctx context.Context, args []string) error {
		cmds, err := a.sandboxes().ListCommands(ctx, args[0])
		if err != nil {
			return err
		}
		if cmds == nil {
			cmds = []sandbox.Command{}
		}
		return a.show(cmds, func(w io.Writer) {
			if quiet {
				for _, c := range cmds {
					fmt.Fprintln(w, c.ID)
				}
				return
			}
			t := newTable("ID", "STATUS", "PID", "USER", "STARTED", "COMMAND")
			for _, c := range cmds {
				t.row(c.ID, commandStatus(&c), fmt.Sprint(c.PID), c.User, agoText(c.StartedAt), cut(strings.Join(c.Argv, " "), 60))
			}
			t.print(w)
		})
	})
}

func commandStatus(c *sandbox.Command) string {
	switch {
	case c.Exit == nil:
		return "running"
	case c.Exit.TimedOut:
		return "timed out"
	case c.Exit.Signal != 0:
		return fmt.Sprintf("signal %d", c.Exit.Signal)
	}
	return fmt.Sprintf("exit %d", c.Exit.Code)
}

func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
