package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Words that users of docker, fly, gh and kubectl type lead to the command of cay.
func TestSuggestions(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"list": "cay sandbox list", "stats": "cay sandbox stats", "delete": "cay sandbox remove", "destroy": "cay sandbox remove",
		"copy": "cay sandbox copy", "log": "cay logs", "stop": "cay sandbox stop", "kill": "cay sandbox stop", "start": "cay sandbox resume", "pause": "cay sandbox pause",
		"unpause": "cay sandbox resume", "create": "cay sandbox create", "show": "cay sandbox get", "ssh": "cay sandbox shell", "console": "cay sandbox shell",
		"port": "cay sandbox ports", "forward": "cay sandbox forward", "contexts": "cay context", "stauts": "cay status", "info": "cay status", "inspekt": "cay inspect", "proxy": "cay sandbox forward", "commit": "cay snapshot",
		"pull": "cay image pull", "rmi": "cay sandbox remove", "images": "cay image", "volumes": "cay drive", "login": "cay token", "daemon": "cay serve",
		"keys": "cay gateway keys", "exexc": "cay exec", "sandbo": "cay sandbox", "wrokflow": "cay workflow", "xy": "", "ui2": "cay ui", "frobnicate": "", "uo": "",
		"sandbox top": "cay sandbox stats", "sandbox delete": "cay sandbox remove", "sandbox inspect": "cay sandbox get", "sandbox kill": "cay sandbox stop",
		"sandbox ssh": "cay sandbox shell", "sandbox start": "cay sandbox resume", "sandbox coppy": "cay sandbox copy", "sandbox snapshot": "cay snapshot",
		"image ps": "cay image list", "image delete": "cay image remove", "image inspect": "", "image create": "", "drive inspect": "cay drive get",
		"snapshot restore": "", "SANDBOX": "cay sandbox",
	} {
		var got []string
		root := newRootCommand(newApp())
		cmd, args, err := root.Find(strings.Fields(typed))
		if err != nil || len(args) != 1 {
			t.Fatalf("%s: %v, %q", typed, err, args)
		}
		for _, c := range suggestions(cmd, args[0]) {
			got = append(got, c.CommandPath())
		}
		if strings.Join(got, " or ") != want {
			t.Errorf("%s: suggests %q, want %q", typed, got, want)
		}
	}
	root := newRootCommand(newApp())
	if err := unknown(root, "rename"); !strings.Contains(err.Error(), `"cay sandbox fork SANDBOX --name NAME"`) {
		t.Errorf("rename: %v", err)
	}
}

// Every suggestion is an existing command, and every synonym leads to one.
func TestSuggestions_exist(t *testing.T) {
	t.Parallel()
	root := newRootCommand(newApp())
	for word := range synonyms {
		found := suggestions(root, word)
		if len(found) == 0 {
			t.Errorf("%q suggests nothing", word)
		}
		for _, c := range found {
			if got, _, err := root.Find(strings.Fields(strings.TrimPrefix(c.CommandPath(), "cay "))); err != nil || got != c {
				t.Errorf("%q suggests %q, which is not there", word, c.CommandPath())
			}
		}
	}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, s := range c.Commands() {
			for word := range synonyms {
				suggestions(s, word) // never panics, whatever the noun has
			}
			walk(s)
		}
	}
	walk(root)
}
