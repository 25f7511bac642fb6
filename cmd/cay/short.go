package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// shortForms is the group of the commands that users of docker and fly know. Each is a
// command of "cay sandbox" under a shorter name, except prune.
const shortForms = "short"

func newShortForms(a *app) []*cobra.Command {
	ps := shortForm("ps", newSandboxList(a), "ls")
	ps.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return usage(cmd, "it lists sandboxes and takes no argument %q; \"cay sandbox ps %s\" lists the commands of a sandbox", args[0], args[0])
	}
	top := shortForm("top", newSandboxStats(a))
	return []*cobra.Command{
		ps,
		shortForm("exec", newSandboxExec(a)),
		shortForm("logs", newSandboxLogs(a)),
		shortForm("cp", newSandboxCopy(a)),
		shortForm("inspect", newSandboxGet(a)),
		top,
		shortForm("rm", newSandboxRemove(a)),
		shortForm("port-forward", newSandboxForward(a)),
		shortForm("events", newSandboxEvents(a)),
		newPruneCommand(a),
	}
}

// shortForm renames a command of "cay sandbox", for use as a command of "cay".
func shortForm(name string, c *cobra.Command, aliases ...string) *cobra.Command {
	long, args, _ := strings.Cut(c.Use, " ")
	c.Use, c.Aliases = strings.TrimSpace(name+" "+args), aliases
	c.Example = strings.ReplaceAll(c.Example, "cay sandbox "+long+" ", "cay "+name+" ")
	c.Long = fmt.Sprintf("%s\n\nIt is short for \"cay sandbox %s\".", c.Long, long)
	if strings.HasPrefix(c.Long, "\n") {
		c.Long = c.Short + "." + c.Long
	}
	return c
}
