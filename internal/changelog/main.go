// Command changelog prints the changes of each version from the files in changelog/, the
// newest version first; changelog/TEMPLATE describes the files.
//
//	go run ./internal/changelog [VERSION]
package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func main() {
	if len(os.Args) > 2 {
		fmt.Fprintln(os.Stderr, "usage: changelog [VERSION]")
		os.Exit(2)
	}
	only := ""
	if len(os.Args) == 2 {
		only = os.Args[1]
	}
	if err := run(os.Stdout, os.DirFS("changelog"), only); err != nil {
		fmt.Fprintln(os.Stderr, "changelog:", err)
		os.Exit(1)
	}
}

// unreleased is the directory of the changes since the last version.
const unreleased = "unreleased"

// kinds are the kinds of changes, in the order in which they are printed, with the title
// of their section.
var kinds = []struct{ name, title string }{
	{"Security", "Security"}, {"Breaking", "Breaking changes"}, {"Feature", "Features"}, {"Enhancement", "Enhancements"}, {"Bugfix", "Bugfixes"},
}

// version is a version with its changes.
type version struct {
	name    string // "0.1.0", or unreleased
	date    string // empty: unreleased
	number  [3]int
	changes []change
}

type change struct{ kind, summary, text string }

// directory matches the names of the directories of versions: 0.1.0_2026-11-27.
var directory = regexp.MustCompile(`^(\d+)\.(\d+)\.(\d+)_(\d{4}-\d{2}-\d{2})$`)

// run prints all versions, or a single one.
func run(out io.Writer, dir fs.FS, only string) error {
	versions, err := read(dir)
	if err != nil {
		return err
	}
	printed := false
	for _, v := range versions {
		if only != "" && v.name != only || len(v.changes) == 0 {
			continue
		}
		if printed {
			if _, err := fmt.Fprintln(out); err != nil {
				return err
			}
		}
		if err := v.print(out); err != nil {
			return err
		}
		printed = true
	}
	if only != "" && !printed {
		return fmt.Errorf("there is no version %s with changes", only)
	}
	return nil
}

// read returns all versions, the newest first.
func read(dir fs.FS) ([]version, error) {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return nil, err
	}
	var versions []version
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		v := version{name: e.Name()}
		if m := directory.FindStringSubmatch(e.Name()); m != nil {
			v.name, v.date, _ = strings.Cut(e.Name(), "_")
			for i := range v.number {
				if v.number[i], err = strconv.Atoi(m[i+1]); err != nil {
					return nil, fmt.Errorf("%s: %w", e.Name(), err)
				}
			}
		} else if e.Name() != unreleased {
			return nil, fmt.Errorf("%s is neither %s nor a version and its date, as 0.2.0_2027-01-31", e.Name(), unreleased)
		}
		if v.changes, err = readChanges(dir, e.Name()); err != nil {
			return nil, err
		}
		versions = append(versions, v)
	}
	slices.SortFunc(versions, func(a, b version) int {
		if a.date == "" || b.date == "" { // what is not released is the newest
			return cmp.Compare(len(a.date), len(b.date))
		}
		return slices.Compare(b.number[:], a.number[:])
	})
	return versions, nil
}

func readChanges(dir fs.FS, name string) ([]change, error) {
	files, err := fs.Glob(dir, path.Join(name, "*.md"))
	if err != nil {
		return nil, err
	}
	var all []change
	var problems []error
	for _, file := range files {
		b, err := fs.ReadFile(dir, file)
		if err != nil {
			return nil, err
		}
		c, err := parse(string(b))
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", file, err))
			continue
		}
		all = append(all, c)
	}
	return all, errors.Join(problems...)
}

// parse reads a file: the first line is "Kind: summary", and a text follows after a blank
// line.
func parse(text string) (change, error) {
	first, rest, _ := strings.Cut(text, "\n")
	kind, summary, ok := strings.Cut(first, ": ")
	switch {
	case !ok || !slices.ContainsFunc(kinds, func(k struct{ name, title string }) bool { return k.name == kind }):
		return change{}, fmt.Errorf("the first line is %q; it begins with a kind and a colon, as in changelog/TEMPLATE", first)
	case summary == "" || strings.HasSuffix(summary, "."):
		return change{}, fmt.Errorf("the summary is %q; it is a sentence without a full stop", summary)
	case rest != "" && !strings.HasPrefix(rest, "\n"):
		return change{}, errors.New("the second line is not blank")
	}
	return change{kind, summary, strings.TrimSpace(rest)}, nil
}

// print prints a version as Markdown.
func (v *version) print(out io.Writer) error {
	var b strings.Builder
	if v.date == "" {
		b.WriteString("# Unreleased\n")
	} else {
		fmt.Fprintf(&b, "# %s (%s)\n", v.name, v.date)
	}
	for _, k := range kinds {
		title := "\n## " + k.title + "\n"
		for _, c := range v.changes {
			if c.kind != k.name {
				continue
			}
			b.WriteString(title)
			title = ""
			fmt.Fprintf(&b, "\n### %s\n", c.summary)
			if c.text != "" {
				fmt.Fprintf(&b, "\n%s\n", c.text)
			}
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}
