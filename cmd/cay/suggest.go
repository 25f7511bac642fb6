package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// synonyms map words of docker, fly, gh, kubectl and shells to commands of cay.
var synonyms = map[string][]string{
	"ps": {"list"}, "ls": {"list"}, "show": {"get"}, "inspect": {"get"}, "describe": {"get"}, "status": {"get", "doctor"}, "info": {"status", "get", "doctor"}, "contexts": {"context"}, "use": {"context"},
	"rm": {"remove", "delete"}, "rmi": {"remove"}, "delete": {"remove", "delete"}, "destroy": {"remove", "delete"}, "del": {"remove", "delete"},
	"cp": {"copy"}, "top": {"stats"}, "log": {"logs"}, "ssh": {"shell"}, "console": {"shell"}, "attach": {"shell"}, "sh": {"shell"},
	"start": {"resume"}, "unpause": {"resume"}, "restart": {"resume"}, "wake": {"resume"}, "kill": {"stop"}, "suspend": {"hibernate"},
	"new": {"create"}, "add": {"create"}, "commit": {"snapshot"}, "checkpoint": {"snapshot"}, "save": {"snapshot", "export"}, "load": {"import"},
	"clone": {"fork"}, "port": {"ports"}, "port-forward": {"forward"}, "proxy": {"forward"}, "set": {"update"}, "edit": {"update"}, "config": {"update"},
	"label": {"tag"}, "gc": {"prune"}, "clean": {"prune"},
	"container": {"sandbox"}, "containers": {"sandbox"}, "machine": {"sandbox"}, "machines": {"sandbox"}, "vm": {"sandbox"}, "box": {"sandbox"},
	"volume": {"drive"}, "volumes": {"drive"}, "disk": {"drive"}, "login": {"token"}, "auth": {"token"}, "daemon": {"serve"}, "server": {"serve"}, "up": {"serve"},
}

// ofDaemon are the commands that concern the daemon as a whole: a user who types their name
// after a noun means that noun's objects.
var ofDaemon = map[string]bool{"backup": true, "restore": true, "status": true, "context": true}

// answers has hints for words that no command corresponds to.
var answers = map[string]string{
	"rename": `names stay; "cay sandbox fork SANDBOX --name NAME" makes a copy under another`,
	"mv":     `names stay; "cay sandbox fork SANDBOX --name NAME" makes a copy under another`,
}

// unknown returns the error for a word that is no sub-command of cmd.
func unknown(cmd *cobra.Command, word string) error {
	msg := fmt.Sprintf("%q has no command %q", cmd.CommandPath(), word)
	if answer := answers[strings.ToLower(word)]; answer != "" {
		msg += ": " + answer
	} else if found := suggestions(cmd, word); len(found) > 0 {
		var quoted []string
		for _, c := range found {
			quoted = append(quoted, fmt.Sprintf("%q", c.CommandPath()))
		}
		msg += "; did you mean " + strings.Join(quoted, " or ") + "?"
	}
	return &usageError{msg, cmd.CommandPath()}
}

// suggestions returns the commands that word may mean as a sub-command of cmd, or only the
// best one. It returns none rather than bad ones.
func suggestions(cmd *cobra.Command, word string) []*cobra.Command {
	word = strings.ToLower(word)
	root := cmd.Root()
	for _, w := range append(slices.Clone(synonyms[word]), word) {
		if c := child(cmd, w); c != nil {
			return []*cobra.Command{c}
		}
		// Prefer the sandbox's command, as most words mean sandboxes; else the commands of at
		// most two other nouns.
		nouns := append([]*cobra.Command{child(root, "sandbox")}, root.Commands()...)
		var found []*cobra.Command
		for _, noun := range nouns {
			c := child(noun, w)
			if c == nil || noun.Hidden || noun.Name() == "docker" { // docker's subcommands have Docker's names
				continue
			}
			if cmd == root && noun == nouns[0] {
				return []*cobra.Command{c}
			}
			found = append(found, c)
		}
		if cmd != root {
			if c := child(root, w); c != nil && c.GroupID != shortForms && !ofDaemon[c.Name()] { // short forms mean sandboxes
				return []*cobra.Command{c}
			}
		}
		if n := len(found); n > 0 && n <= 2 {
			return found
		}
	}
	// Allow for typing errors: two in a long word, none in a very short one.
	cmd.SuggestionsMinimumDistance = len(word) / 3
	if names := cmd.SuggestionsFor(word); len(names) > 0 {
		return []*cobra.Command{child(cmd, names[0])}
	}
	return nil
}

// child returns the sub-command of cmd that has a name or an alias; nil if none has.
func child(cmd *cobra.Command, name string) *cobra.Command {
	for _, c := range cmd.Commands() {
		if !c.Hidden && (c.Name() == name || c.HasAlias(name)) {
			return c
		}
	}
	return nil
}
