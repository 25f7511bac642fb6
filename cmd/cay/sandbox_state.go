package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// each calls do for every sandbox in refs, continues after a failure, and
// prints the results: names, or with --json an array.
func (a *app) each(ctx context.Context, refs []string, quiet bool, do func(ref string) (*sandbox.Sandbox, error)) error {
	done := []*sandbox.Sandbox{}
	var errs []error
	for _, ref := range refs {
		if ctx.Err() != nil {
			break
		}
		s, err := do(ref)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, s)
	}
	err := a.show(done, func(w io.Writer) {
		if !quiet {
			for _, s := range done {
				fmt.Fprintln(w, s.Name)
			}
		}
	})
	return a.reportAll(append(errs, err)...)
}

// reportAll prints all but the last error and returns that one.
func (a *app) reportAll(errs ...error) error {
	var last error
	for _, err := range errs {
		if err == nil {
			continue
		}
		if last != nil {
			a.report(last)
		}
		last = err
	}
	return last
}

func newSandboxVerb(a *app, use, short, long string, do func(ctx context.Context, c *sandbox.Client, ref string) (*sandbox.Sandbox, error)) *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use: use + " SANDBOX...", Short: short, Long: long,
		Args: atLeast(1, "one or more sandboxes"), ValidArgsFunction: a.completeSandboxes(-1),
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print nothing")
	return a.verb(c, func(ctx context.Context, args []string) error {
		client := a.sandboxes()
		return a.each(ctx, args, quiet, func(ref string) (*sandbox.Sandbox, error) { return do(ctx, client, ref) })
	})
}

func newSandboxStop(a *app) *cobra.Command {
	return newSandboxVerb(a, "stop", "Stop sandboxes",
		"Stop sandboxes and print the names of those that have stopped. The files of those\nthat are persistent are saved first; what was in others is gone. Processes end:\n\"cay sandbox pause\" and \"cay sandbox hibernate\" keep them.",
		func(ctx context.Context, c *sandbox.Client, ref string) (*sandbox.Sandbox, error) {
			return c.Stop(ctx, ref)
		})
}

func newSandboxRemove(a *app) *cobra.Command {
	var force bool
	var p sandbox.DeleteParams
	c := newSandboxVerb(a, "remove", "Stop sandboxes and forget them",
		`Stop sandboxes and forget them, with nothing saved. Their names can be used again.
The snapshots that their stops made go with them, but those that other sandboxes
start from. Snapshots that somebody made, and drives, stay.`,
		func(ctx context.Context, c *sandbox.Client, ref string) (*sandbox.Sandbox, error) {
			s, err := c.Get(ctx, ref)
			if err == nil {
				err = c.DeleteWith(ctx, s.ID, p)
			}
			if force && cay.CodeOf(err) == cay.NotFound {
				return &sandbox.Sandbox{Name: ref}, nil
			}
			return s, err
		})
	c.Aliases = []string{"rm"}
	c.Flags().BoolVarP(&force, "force", "f", false, "a sandbox that is not there is no error")
	c.Flags().BoolVar(&p.KeepSnapshots, "keep-snapshots", false, "leave the snapshots that their stops made until they expire")
	return c
}

func newSandboxTag(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:               "tag SANDBOX [KEY=VALUE|KEY-]...",
		Short:             "Show or change a sandbox's tags",
		Long:              "Show the tags of a sandbox, or change them: KEY=VALUE sets one, KEY- takes it away.",
		Args:              atLeast(1, "a sandbox and any tags"),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		client := a.sandboxes()
		s, err := client.Get(ctx, args[0])
		if err != nil {
			return err
		}
		if len(args) > 1 {
			tags, err := changeTags(s.Tags, args[1:])
			if err != nil {
				return &exitError{exitUsage, err}
			}
			if s, err = client.Update(ctx, s.ID, sandbox.UpdateParams{Tags: tags}); err != nil {
				return err
			}
		}
		tags := s.Tags
		if tags == nil {
			tags = map[string]string{}
		}
		return a.show(tags, func(w io.Writer) {
			if len(tags) > 0 {
				fmt.Fprintln(w, clean(tagsText(tags)))
			}
		})
	})
}

// changeTags applies KEY=VALUE and KEY- to tags.
func changeTags(tags map[string]string, changes []string) (map[string]string, error) {
	out := maps.Clone(tags)
	if out == nil {
		out = make(map[string]string)
	}
	for _, change := range changes {
		if k, v, ok := strings.Cut(change, "="); ok && k != "" {
			out[k] = v
		} else if k, ok := strings.CutSuffix(change, "-"); ok && k != "" {
			delete(out, k)
		} else {
			return nil, cay.Errorf(cay.Invalid, "%q is neither KEY=VALUE nor KEY-", change)
		}
	}
	return out, nil
}

func newSandboxExtend(a *app) *cobra.Command {
	var by time.Duration
	c := &cobra.Command{
		Use: "extend SANDBOX DURATION", Short: "Let a sandbox run longer",
		Long:    "Move the end of a sandbox by DURATION, as in 30m, and print when that is now.",
		Example: "  cay sandbox extend web 2h",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage(cmd, "it takes a sandbox and a duration")
			}
			var err error
			if by, err = time.ParseDuration(args[1]); err != nil || by <= 0 {
				return usage(cmd, "%q is not a duration of more than 0, as in 90s, 5m or 2h", args[1])
			}
			return nil
		},
		ValidArgsFunction: a.completeSandboxes(1),
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		s, err := a.sandboxes().Extend(ctx, args[0], sandbox.Duration(by))
		if err != nil {
			return err
		}
		return a.show(s, func(w io.Writer) {
			if s.ExpiresAt != nil {
				fmt.Fprintln(w, s.ExpiresAt.Local().Format(time.RFC3339))
			}
		})
	})
}

const watchInterval = time.Second

func newSandboxStats(a *app) *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use: "stats [SANDBOX...]", Short: "Show what sandboxes use",
		Long:              "Show what running sandboxes use; without a name, all of them.",
		ValidArgsFunction: a.completeSandboxes(-1),
	}
	c.Flags().BoolVar(&watch, "watch", false, "show it again every second until interrupted")
	return a.verb(c, func(ctx context.Context, args []string) error {
		if watch && a.json {
			return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--watch and --json do not go together")}
		}
		if !watch {
			return a.stats(ctx, args, "")
		}
		prefix := ""
		if isTerminal(a.stdout) {
			prefix = "\x1b[H\x1b[J" // to the top, and clear
		}
		tick := time.NewTicker(watchInterval)
		defer tick.Stop()
		for {
			if err := a.stats(ctx, args, prefix); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return cay.Errorf(cay.Canceled, "interrupted")
			case <-tick.C:
			}
		}
	})
}

// namedStats is one sandbox's stats in an array of them.
type namedStats struct {
	Name string `json:"name"`
	*sandbox.Stats
}

func (a *app) stats(ctx context.Context, refs []string, prefix string) error {
	client := a.sandboxes()
	every := len(refs) == 0
	if every {
		running, _, err := pages(0, func(n int, cursor string) (*sandbox.Page[sandbox.Sandbox], error) {
			return client.List(ctx, sandbox.ListParams{Status: []sandbox.Status{sandbox.Running, sandbox.Paused}, Limit: n, Cursor: cursor})
		})
		if err != nil {
			return err
		}
		for _, s := range running {
			refs = append(refs, s.Name)
		}
	}
	all := []namedStats{}
	var errs []error
	for _, ref := range refs {
		s, err := client.Stats(ctx, ref)
		if c := cay.CodeOf(err); every && (c == cay.Stopped || c == cay.NotFound || c == cay.Conflict) {
			continue // it has ended since the list was read
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, namedStats{ref, s})
	}
	if len(all) == 0 && !every {
		return a.reportAll(errs...)
	}
	err := a.show(all, func(w io.Writer) {
		io.WriteString(w, prefix)
		t := newTable("NAME", "CPU TIME", "MEMORY", "DISK", "RECEIVED", "SENT", "PROCESSES", "COMMANDS")
		for _, s := range all {
			t.row(s.Name, durationText(s.Usage.ActiveCPU),
				bytesText(s.MemoryBytes)+" / "+bytesText(s.MemoryLimit), bytesText(s.DiskBytes)+" / "+bytesText(s.DiskLimit),
				bytesText(s.Usage.IngressBytes), bytesText(s.Usage.EgressBytes), fmt.Sprint(s.Processes), fmt.Sprint(s.Commands))
		}
		t.print(w)
	})
	return a.reportAll(append(errs, err)...)
}

type sandboxLogsOptions struct {
	follow bool
	cursor int64
}

func newSandboxLogs(a *app) *cobra.Command {
	var o sandboxLogsOptions
	c := &cobra.Command{
		Use:   "logs SANDBOX [COMMAND]",
		Short: "Show what a command has printed",
		Long:  "Show what a command of a sandbox has printed, on the stream it printed it to.\nCOMMAND is an id as shown by \"cay sandbox ps\"; without it, the newest command.\nThe exit code is not the command's.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usage(cmd, "it takes a sandbox and at most one command")
			}
			return nil
		},
		ValidArgsFunction: a.completeSandboxes(1),
	}
	c.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on until the command exits")
	c.Flags().Int64Var(&o.cursor, "cursor", 0, "skip that many bytes")
	return a.verb(c, func(ctx context.Context, args []string) error {
		id := ""
		if len(args) == 2 {
			id = args[1]
		}
		return o.run(ctx, a, args[0], id)
	})
}

func (o *sandboxLogsOptions) run(ctx context.Context, a *app, ref, id string) error {
	client := a.sandboxes()
	if id == "" {
		cmds, err := client.ListCommands(ctx, ref)
		if err != nil {
			return err
		}
		if len(cmds) == 0 {
			return cay.Errorf(cay.NotFound, "sandbox %s has run no command", ref)
		}
		id = cmds[0].ID
	}
	out, err := client.Output(ctx, ref, id, sandbox.OutputParams{Cursor: o.cursor, Follow: o.follow})
	if err != nil {
		return err
	}
	defer out.Close()
	var stdout, stderr capture
	to := map[sandbox.Stream]io.Writer{sandbox.Stdout: a.stdout, sandbox.Stderr: a.stderr}
	if a.json {
		to = map[sandbox.Stream]io.Writer{sandbox.Stdout: &stdout, sandbox.Stderr: &stderr}
	}
	lost := false
	for {
		event, err := out.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		lost = lost || event.Truncated
		if w := to[event.Stream]; w != nil && len(event.Data) > 0 {
			if _, err := w.Write(event.Data); err != nil {
				return err
			}
		}
	}
	if !a.json {
		if lost {
			a.warn("some output is no longer kept")
		}
		return nil
	}
	cmd, err := client.GetCommand(ctx, ref, id)
	if err != nil {
		return err
	}
	return a.printJSON(result{cmd, stdout.text(), stderr.text(), lost || stdout.truncated || stderr.truncated})
}
