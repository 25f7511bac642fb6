package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const networkHelp = `Show what a sandbox may reach, or change it. A change takes effect at once, on
connections that are open too.

--log shows the sandbox's flow log: which connections it opened, and which were
denied by what rule.`

type sandboxNetworkOptions struct {
	policy  networkFlags
	log     bool
	follow  bool
	verdict string
	after   int64
}

func newSandboxNetwork(a *app) *cobra.Command {
	var o sandboxNetworkOptions
	c := &cobra.Command{
		Use:   "network SANDBOX [allow-all|deny-all]",
		Short: "Show or change what a sandbox may reach, and see what it reached",
		Long:  networkHelp,
		Example: `  cay sandbox network web deny-all
  cay sandbox network web --allow api.example.com --allow '*.npmjs.org' --deny 203.0.113.0/24
  envsubst < policy.json | cay sandbox network web --set -
  cay sandbox network web --log -f --verdict denied`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usage(cmd, "it takes a sandbox and at most one mode")
			}
			if len(args) == 2 {
				if _, err := parseMode(args[1]); err != nil {
					return usage(cmd, "mode %v", err)
				}
			}
			return nil
		},
		ValidArgsFunction: a.completeSandboxes(1),
	}
	o.policy.register(c, "set")
	fl := c.Flags()
	fl.BoolVar(&o.log, "log", false, "show the flow log")
	fl.BoolVarP(&o.follow, "follow", "f", false, "with --log, go on until the sandbox ends")
	fl.StringVar(&o.verdict, "verdict", "", "with --log, show only these: allowed, denied or failed")
	fl.Int64Var(&o.after, "after", 0, "with --log, begin after that record")
	mustComplete(c, "verdict", string(sandbox.Allowed), string(sandbox.Denied), string(sandbox.Broken))
	return a.verb(c, func(ctx context.Context, args []string) error {
		var mode sandbox.NetworkMode
		if len(args) == 2 {
			mode = sandbox.NetworkMode(args[1])
		}
		n, change, err := o.policy.network(a.stdin, mode, "set")
		if err != nil {
			return &exitError{exitUsage, err}
		}
		if o.log {
			if change {
				return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--log shows; it does not go with a change of the policy")}
			}
			return o.showLog(ctx, a, args[0])
		}
		if o.follow || o.verdict != "" || o.after != 0 {
			return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--follow, --verdict and --after go with --log")}
		}
		client := a.sandboxes()
		var s *sandbox.Sandbox
		if change {
			s, err = client.Update(ctx, args[0], sandbox.UpdateParams{Network: &n})
		} else {
			s, err = client.Get(ctx, args[0])
		}
		if err != nil {
			return err
		}
		return a.show(s.Network, func(w io.Writer) { printPolicy(w, s.Network) })
	})
}

// printPolicy writes a policy for people.
func printPolicy(w io.Writer, n sandbox.Network) {
	fmt.Fprintln(w, n.Mode)
	for _, d := range n.Allow {
		ports := make([]string, len(d.Ports))
		for i, p := range d.Ports {
			ports[i] = ":" + strconv.Itoa(int(p))
		}
		fmt.Fprintln(w, clean("allow "+d.Name+strings.Join(ports, ",")))
		for _, r := range d.Rules {
			fmt.Fprintln(w, "  "+clean(ruleText(r)))
		}
	}
	for _, c := range n.AllowCIDRs {
		fmt.Fprintln(w, "allow "+clean(c))
	}
	for _, c := range n.DenyCIDRs {
		fmt.Fprintln(w, "deny "+clean(c))
	}
	if n.Strict {
		fmt.Fprintln(w, "strict")
	}
	for _, name := range n.Handled {
		fmt.Fprintln(w, "handled "+clean(name))
	}
	l := n.Limits
	fields(w,
		"connections", nonZero(int64(l.Connections)), "connections/s", nonZero(int64(l.ConnectionsPerSecond)),
		"bytes/s", nonZeroBytes(l.BytesPerSecond), "total", nonZeroBytes(l.TotalBytes))
}

func nonZero(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// ruleText describes a rule in a line, without the values it sets.
func ruleText(r sandbox.Rule) string {
	var parts []string
	m := r.Match
	if len(m.Methods) > 0 {
		parts = append(parts, strings.Join(m.Methods, ","))
	}
	if m.Path != nil {
		parts = append(parts, "path "+textMatch(m.Path))
	}
	for _, f := range m.Query {
		parts = append(parts, "query "+fieldMatch(f))
	}
	for _, f := range m.Headers {
		parts = append(parts, "header "+fieldMatch(f))
	}
	if len(parts) == 0 {
		parts = append(parts, "every request")
	}
	action := "passes"
	switch {
	case len(r.SetHeaders) > 0:
		action = "gets " + strings.Join(slices.Sorted(maps.Keys(r.SetHeaders)), ", ")
		if r.Scrub {
			action += ", scrubbed from the answer"
		}
	case r.ForwardURL != "":
		action = "goes to " + r.ForwardURL
	case r.Respond != nil:
		action = "is answered with " + strconv.Itoa(r.Respond.Status)
	case r.Deny:
		action = "is denied"
	}
	return strings.Join(parts, " and ") + ": " + action
}

func textMatch(m *sandbox.TextMatch) string {
	switch {
	case m == nil:
		return "any"
	case m.Exact != nil:
		return strconv.Quote(*m.Exact)
	case m.Prefix != nil:
		return strconv.Quote(*m.Prefix) + "..."
	case m.Regex != nil:
		return "/" + *m.Regex + "/"
	}
	return "any"
}

func fieldMatch(f sandbox.FieldMatch) string { return textMatch(f.Key) + "=" + textMatch(f.Value) }

func (o *sandboxNetworkOptions) showLog(ctx context.Context, a *app, ref string) error {
	p := sandbox.FlowParams{Verdict: sandbox.Verdict(o.verdict), After: o.after}
	client := a.sandboxes()
	if o.follow {
		return a.followFlows(ctx, client, ref, p)
	}
	flows := []sandbox.Flow{}
	for {
		page, err := client.Flows(ctx, ref, p)
		if err != nil {
			return err
		}
		flows = append(flows, page.Items...)
		if page.Next == "" {
			break
		}
		p.After = page.Items[len(page.Items)-1].Seq
	}
	return a.show(flows, func(w io.Writer) {
		if len(flows) == 0 {
			return
		}
		t := newTable("TIME", "VERDICT", "PROTOCOL", "TO", "RECEIVED", "SENT", "RULE")
		for _, f := range flows {
			t.row(flowCells(f)...)
		}
		t.print(w)
	})
}

// flowCells are a flow's cells in a table.
func flowCells(f sandbox.Flow) []string {
	verdict := string(f.Verdict)
	if f.Open {
		verdict = "open"
	}
	rule := f.Rule
	if f.Reason != "" {
		rule += ": " + f.Reason
	}
	return []string{
		f.Time.Local().Format(time.TimeOnly), verdict, f.Protocol, flowTarget(f),
		bytesText(f.IngressBytes), bytesText(f.EgressBytes), rule,
	}
}

// flowTarget returns the destination of a flow.
func flowTarget(f sandbox.Flow) string {
	to := f.Address
	if f.Name != "" {
		to = f.Name
		if f.Port != 0 {
			to += ":" + strconv.Itoa(int(f.Port))
		}
	}
	if f.Method != "" {
		to = f.Method + " " + to + f.Path
		if f.Status != 0 {
			to += " " + strconv.Itoa(f.Status)
		}
	}
	return to
}

// followFlows prints new records: a line each, or with --json an object each.
func (a *app) followFlows(ctx context.Context, client *sandbox.Client, ref string, p sandbox.FlowParams) error {
	watch, err := client.WatchFlows(ctx, ref, p)
	if err != nil {
		return err
	}
	defer watch.Close() // it was only read
	for {
		f, err := watch.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if a.json {
			err = json.NewEncoder(a.stdout).Encode(f)
		} else {
			c := flowCells(f)
			_, err = fmt.Fprintf(a.stdout, "%s  %-7s  %-5s  %s  %s\n", c[0], c[1], c[2], clean(c[3]), clean(c[6]))
		}
		if err != nil {
			return err
		}
	}
}
