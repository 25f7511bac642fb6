package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// pages are files made from the program's own help.
type pages struct {
	manuals     map[string][]byte // by name, as in cay-run.1
	completions map[string][]byte // by shell
	settings    []byte            // cay.yaml, all commented out
	changelog   []byte
}

// described is a command as cay's hidden command describe prints it.
type described struct {
	Use, Short, Long, Example string
	Aliases                   []string
	Runs                      bool
	Flags                     []describedFlag
	Commands                  []described
}

type describedFlag struct {
	Name, Shorthand, Type, Default, Usage, Optional, Setting string
	Persistent                                               bool
}

// pages makes the pages with a program that runs on this machine.
func (r *release) pages(cay string) (*pages, error) {
	// The defaults of a daemon that root runs, whoever runs this.
	env := []string{"HOME=/root", "CAY_DATA=/var/lib/cay"}
	out, err := command(r.repo, env, cay, "describe")
	if err != nil {
		return nil, err
	}
	var root described
	if err := json.Unmarshal(out, &root); err != nil {
		return nil, fmt.Errorf("output of cay describe: %w", err)
	}
	p := &pages{completions: map[string][]byte{}}
	if p.manuals, err = manuals(root, r.version, r.time); err != nil {
		return nil, err
	}
	if p.settings, err = commentedSettings(root); err != nil {
		return nil, err
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if p.completions[shell], err = command(r.repo, env, cay, "completion", shell); err != nil {
			return nil, err
		}
	}
	if p.changelog, err = command(r.repo, []string{"GOFLAGS=-trimpath"}, "go", "run", "./internal/changelog", r.changelog); err != nil {
		return nil, err
	}
	return p, nil
}

// manuals returns a manual page for each command.
func manuals(root described, version string, at time.Time) (map[string][]byte, error) {
	all := map[string][]byte{}
	header := doc.GenManHeader{Section: "1", Date: &at, Source: "cay " + version, Manual: "cay"}
	var walk func(c *cobra.Command) error
	walk = func(c *cobra.Command) error {
		h := header // GenMan fills it
		var page bytes.Buffer
		if err := doc.GenMan(c, &h, &page); err != nil {
			return fmt.Errorf("manual page of %s: %w", c.CommandPath(), err)
		}
		all[strings.ReplaceAll(c.CommandPath(), " ", "-")+".1"] = page.Bytes()
		for _, sub := range c.Commands() {
			if sub.Name() == "help" { // cobra's own
				continue
			}
			if err := walk(sub); err != nil {
				return err
			}
		}
		return nil
	}
	c := root.command()
	c.DisableAutoGenTag = true
	return all, walk(c)
}

// command returns the command as cobra has it.
func (d described) command() *cobra.Command {
	c := &cobra.Command{Use: d.Use, Aliases: d.Aliases, Short: d.Short, Long: indentedExamples(d.Long), Example: d.Example, DisableAutoGenTag: true}
	if d.Runs {
		c.Run = func(*cobra.Command, []string) {}
	}
	for _, f := range d.Flags {
		set := c.Flags()
		if f.Persistent {
			set = c.PersistentFlags()
		}
		set.SortFlags = false
		set.AddFlag(&pflag.Flag{Name: f.Name, Shorthand: f.Shorthand, Usage: f.Usage, DefValue: f.Default, NoOptDefVal: f.Optional, Value: &text{f.Default, f.Type}})
	}
	for _, sub := range d.Commands {
		c.AddCommand(sub.command())
	}
	return c
}

// indentedExamples makes code of lines that are indented: two spaces are code for people who
// read the help, and Markdown, from which manual pages are made, has four.
func indentedExamples(long string) string {
	lines := strings.Split(long, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "  ") {
			lines[i] = "  " + line
		}
	}
	return strings.Join(lines, "\n")
}

// text is the value of a flag that is only shown.
type text struct{ value, kind string }

func (t *text) String() string   { return t.value }
func (t *text) Set(string) error { return nil } // no command line is parsed here
func (t *text) Type() string     { return t.kind }

// settingsHead begins cay.yaml.
const settingsHead = `# Settings of the daemon: "cay serve --config", as the unit cay.service starts it.
# Each line below shows a setting with its default; "systemctl restart cay" after a
# change. "systemctl reload cay" is enough for log_level, the quota and the file of the
# AI gateway. More: man cay-serve, and docs/operations.md.
#
# Keys of model providers belong into /etc/default/cay (OPENAI_API_KEY=...), which only
# root should be able to read, or into /var/lib/cay/gateway.yaml.
`

// commentedSettings returns a file of settings in which all lines are comments.
func commentedSettings(root described) ([]byte, error) {
	i := slices.IndexFunc(root.Commands, func(c described) bool { return c.Use == "serve" })
	if i < 0 {
		return nil, fmt.Errorf("there is no command serve among %d", len(root.Commands))
	}
	var b strings.Builder
	b.WriteString(settingsHead)
	groups := map[string]string{} // settings with a dot, below their group
	for _, f := range root.Commands[i].Flags {
		group, key, nested := strings.Cut(f.Setting, ".")
		switch {
		case f.Setting == "":
		case nested:
			groups[group] += fmt.Sprintf("#   # %s\n#   %s: %s\n", f.Usage, key, yamlValue(f))
		default:
			fmt.Fprintf(&b, "\n# %s\n#%s: %s\n", f.Usage, f.Setting, yamlValue(f))
		}
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		fmt.Fprintf(&b, "\n#%s:\n%s", group, groups[group])
	}
	return []byte(b.String()), nil
}

// yamlValue returns the default of a flag as YAML.
func yamlValue(f describedFlag) string {
	switch f.Type {
	case "string", "duration", "size", "level":
		if f.Default == "" {
			return `""`
		}
	case "strings", "list":
		if f.Default == "" {
			return "[]"
		}
		return "[" + f.Default + "]"
	}
	return f.Default
}
