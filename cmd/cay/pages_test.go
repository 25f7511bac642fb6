package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The commands that the web inspector's empty pages show for pasting are valid
// commands, with known flags and the right number of arguments.
func TestPages_Commands(t *testing.T) {
	t.Parallel()
	shown := regexp.MustCompile("\"cay [^\"\n]*\"|'cay [^'\n]*'|`cay [^`\n]*`")
	value, quoted := regexp.MustCompile(`\$\{[^}]*\}`), regexp.MustCompile(`'[^']*'`)
	commands := map[string]string{} // with the file of each
	err := filepath.WalkDir("../../internal/ui/src/pages", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		source, err := os.ReadFile(name)
		for _, literal := range shown.FindAllString(string(source), -1) {
			commands[literal[1:len(literal)-1]] = entry.Name()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(commands) < 10 {
		t.Fatalf("%d commands were found: %v", len(commands), commands)
	}
	for command, file := range commands {
		words := strings.Fields(quoted.ReplaceAllString(value.ReplaceAllString(command, "x"), "x"))
		cmd, rest, err := newRootCommand(&app{}).Find(words[1:])
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil || !cmd.Runnable() || cmd.HasSubCommands() {
			t.Errorf("%s shows %q: %v", file, command, err)
		}
	}
}
