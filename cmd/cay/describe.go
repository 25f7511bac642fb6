package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// described is a command with its help, for programs that make pages or settings files of
// it: see packaging.
type described struct {
	Use      string          `json:"use"`
	Aliases  []string        `json:"aliases,omitempty"`
	Short    string          `json:"short"`
	Long     string          `json:"long,omitempty"`
	Example  string          `json:"example,omitempty"`
	Runs     bool            `json:"runs"` // it is more than a group of commands
	Flags    []describedFlag `json:"flags,omitempty"`
	Commands []described     `json:"commands,omitempty"`
}

type describedFlag struct {
	Name       string `json:"name"`
	Shorthand  string `json:"shorthand,omitempty"`
	Type       string `json:"type"`
	Default    string `json:"default"`
	Usage      string `json:"usage"`
	Optional   string `json:"optional,omitempty"` // the value of the flag without a value
	Persistent bool   `json:"persistent,omitempty"`
	Setting    string `json:"setting,omitempty"` // its key in the daemon's settings
}

// newDescribeCommand returns the hidden command that prints all commands as JSON.
func newDescribeCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "describe", Short: "Print all commands as JSON", Hidden: true,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(context.Context, []string) error { return a.printJSON(describeCommand(c.Root())) })
}

func describeCommand(c *cobra.Command) described {
	d := described{Use: c.Use, Aliases: c.Aliases, Short: c.Short, Long: c.Long, Example: c.Example, Runs: c.Runnable() && !c.HasSubCommands()}
	add := func(flags *pflag.FlagSet, persistent bool) {
		flags.VisitAll(func(f *pflag.Flag) {
			if f.Hidden {
				return
			}
			d.Flags = append(d.Flags, describedFlag{
				Name: f.Name, Shorthand: f.Shorthand, Type: f.Value.Type(), Default: f.DefValue, Usage: f.Usage, Optional: f.NoOptDefVal,
				Persistent: persistent, Setting: strings.Join(f.Annotations[settingKey], ""),
			})
		})
	}
	add(c.PersistentFlags(), true)
	add(c.LocalNonPersistentFlags(), false)
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			d.Commands = append(d.Commands, describeCommand(sub))
		}
	}
	return d
}
