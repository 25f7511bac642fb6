package main

import (
	"bytes"
	"cmp"

	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

const contextHelp = `Give daemons names: a context is the address of a daemon, with the token and the team
to use there. Commands speak to the daemon of --context, else of $CAY_CONTEXT, else
of the context that is in use; "default" is the daemon of this machine. --url goes
before all of these, and $CAY_URL before the last two.

Contexts are files in the directory cay/contexts of $XDG_CONFIG_HOME, by default
~/.config, which only their owner can read. A file that others can read is refused.`

// localContext is the name of the context that no file is for.
const localContext = "default"

func newContextCommand(a *app) *cobra.Command {
	return newNoun("context", "Work with several daemons by name", contextHelp,
		newContextAdd(a), newContextUse(a), newContextList(a), newContextRemove(a))
}

// namedDaemon is the content of a context's file.
type namedDaemon struct {
	URL   string `json:"url"`
	Token string `json:"token,omitempty"`
	Team  string `json:"team,omitempty"`
}

// contextStore is the directory with the contexts of a user.
type contextStore struct{ dir string }

// openContexts returns the store of this user. The directory need not exist.
func openContexts() (contextStore, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return contextStore{}, cay.Errorf(cay.Invalid, "there is no directory for contexts: %w", err).WithHint("set XDG_CONFIG_HOME or HOME")
	}
	return contextStore{filepath.Join(dir, "cay", "contexts")}, nil
}

var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// path returns the file of a context. Errors: invalid.
func (s contextStore) path(name string) (string, error) {
	if !contextName.MatchString(name) {
		return "", cay.Errorf(cay.Invalid, "%q cannot be the name of a context", name).
			WithHint("use up to 64 letters, digits and any of _.- and begin with a letter or digit")
	}
	return filepath.Join(s.dir, name+".json"), nil
}

func (s contextStore) currentPath() string { return filepath.Join(s.dir, "current") }

// current returns the name of the context that is in use.
func (s contextStore) current() (string, error) {
	b, err := os.ReadFile(s.currentPath())
	if errors.Is(err, fs.ErrNotExist) {
		return localContext, nil
	}
	return strings.TrimSpace(string(b)), err
}

// get reads a context. Errors: not_found, invalid, permission_denied (others can read it).
func (s contextStore) get(name string) (namedDaemon, error) {
	var d namedDaemon
	if name == localContext {
		return d, nil
	}
	path, err := s.path(name)
	if err != nil {
		return d, err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return d, cay.Errorf(cay.NotFound, "there is no context %q", name).WithHint("\"cay context list\" shows those that are there")
	}
	if err != nil {
		return d, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return d, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return d, cay.Errorf(cay.PermissionDenied, "others can read %s, which has a token", path).WithHint("chmod 600 %s", path)
	}
	dec := json.NewDecoder(io.LimitReader(f, 64<<10))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil || d.URL == "" {
		return d, cay.Errorf(cay.Invalid, "%s is damaged", path).WithHint("cay context add %s --url URL", name)
	}
	return d, nil
}

// names lists the contexts, sorted, with the local one first.
func (s contextStore) names() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names := []string{localContext}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok && contextName.MatchString(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// write replaces a file of the store; only the user can read it.
func (s contextStore) write(path string, content []byte) (err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, ".new-") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// use makes a context the one that commands use.
func (s contextStore) use(name string) error {
	if name == localContext {
		if err := os.Remove(s.currentPath()); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return s.write(s.currentPath(), []byte(name+"\n"))
}

// useContext sets the address, token and team of a context, once, unless the flags or the
// environment name another daemon.
func (a *app) useContext() error {
	if a.inContext != "" {
		return nil
	}
	if a.context != "" && a.url != "" {
		return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--context and --url do not go together")}
	}
	name, _, err := a.contextInUse()
	if err != nil || name == "" {
		return err
	}
	var d namedDaemon
	if name != localContext { // which needs no directory: systemd gives a service no HOME
		store, err := openContexts()
		if err != nil {
			return err
		}
		if d, err = store.get(name); err != nil {
			return err
		}
	}
	if name == localContext && a.context != "" {
		d.URL = wire.DefaultURL // not $CAY_URL
	}
	a.url, a.token, a.team = d.URL, cmp.Or(a.token, d.Token), cmp.Or(a.team, d.Team)
	a.inContext = name
	return nil
}

// contextInUse returns the name of the context whose daemon commands speak to, "" if the
// daemon has no context, and the setting that says so.
func (a *app) contextInUse() (name, why string, err error) {
	switch {
	case a.inContext != "":
		return a.inContext, "", nil
	case a.context != "":
		return a.context, "--context", nil
	case a.url != "":
		return "", "--url", nil
	case os.Getenv("CAY_URL") != "":
		return "", "CAY_URL", nil
	case os.Getenv("CAY_CONTEXT") != "":
		return os.Getenv("CAY_CONTEXT"), "CAY_CONTEXT", nil
	}
	store, err := openContexts()
	if err != nil {
		return localContext, "", nil // a service without HOME has no contexts
	}
	name, err = store.current()
	return name, "", err
}

// contextVerb gives c a run function that does not need the context in use: it may be
// damaged, and these commands repair it.
func (a *app) contextVerb(c *cobra.Command, run func(s contextStore, args []string) error) *cobra.Command {
	c.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		store, err := openContexts()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, err := store.names()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	c.RunE = func(_ *cobra.Command, args []string) error {
		a.ran = true
		store, err := openContexts()
		if err != nil {
			return err
		}
		return run(store, args)
	}
	c.Flags().SortFlags = false
	return c
}

func newContextAdd(a *app) *cobra.Command {
	var tokenFile string
	var use bool
	c := &cobra.Command{
		Use: "add NAME", Short: "Give a daemon a name",
		Long: `Give the daemon at --url a name, or change what the name stands for. The token is read
from --token-file; without one, commands take $CAY_TOKEN, or for a daemon on this
machine its admin token. Nothing is sent to the daemon.`,
		Example: "  cay context add prod --url https://cay.example.com --token-file token.txt\n  cay context use prod",
		Args:    exactly(1, "one name"),
	}
	c.Flags().StringVar(&tokenFile, "token-file", "", "file with the token; \"-\" reads standard input")
	c.Flags().BoolVar(&use, "use", false, "use it from now on")
	return a.contextVerb(c, func(s contextStore, args []string) error {
		name := args[0]
		path, err := s.path(name)
		switch {
		case err != nil:
			return &exitError{exitUsage, err}
		case name == localContext:
			return &exitError{exitUsage, cay.Errorf(cay.Invalid, "the name %q is for the daemon of this machine", name)}
		case a.url == "":
			return usage(c, "--url is missing")
		case a.token != "" && tokenFile != "":
			return usage(c, "--token and --token-file do not go together")
		}
		if _, err := (wire.Target{URL: a.url, Token: "x"}).Resolve(); err != nil {
			return &exitError{exitUsage, err}
		}
		d := namedDaemon{URL: strings.TrimSuffix(a.url, "/"), Token: a.token, Team: a.team}
		if tokenFile != "" {
			if d.Token, err = readToken(a.stdin, tokenFile); err != nil {
				return err
			}
		}
		b, err := json.MarshalIndent(d, "", "  ")
		if err != nil {
			return err
		}
		if err := s.write(path, append(b, '\n')); err != nil {
			return err
		}
		if use {
			if err := s.use(name); err != nil {
				return err
			}
		}
		return a.show(contextRow(name, d, use), func(w io.Writer) { fmt.Fprintln(w, name) })
	})
}

// readToken reads a token from a file. Errors: invalid.
func readToken(stdin io.Reader, file string) (string, error) {
	src := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", cay.Errorf(cay.Invalid, "cannot read the token: %w", err)
		}
		defer f.Close()
		src = f
	}
	b, err := io.ReadAll(io.LimitReader(src, 16<<10))
	if err != nil {
		return "", cay.Errorf(cay.Invalid, "cannot read the token: %w", err)
	}
	token := string(bytes.TrimSpace(b))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", cay.Errorf(cay.Invalid, "%s does not have one token", file)
	}
	return token, nil
}

// contextInfo is a context as commands print it, without its token.
type contextInfo struct {
	Name     string `json:"name"`
	URL      string `json:"url"`
	Team     string `json:"team,omitempty"`
	HasToken bool   `json:"has_token"`
	InUse    bool   `json:"in_use"`
	Problem  string `json:"problem,omitempty"`
}

func contextRow(name string, d namedDaemon, used bool) contextInfo {
	return contextInfo{Name: name, URL: d.URL, Team: d.Team, HasToken: d.Token != "", InUse: used}
}

func newContextUse(a *app) *cobra.Command {
	return a.contextVerb(&cobra.Command{
		Use: "use NAME", Short: "Use a daemon from now on",
		Long: "Use the daemon of a context from now on; \"default\" is the one of this machine.",
		Args: exactly(1, "one name"),
	}, func(s contextStore, args []string) error {
		d, err := s.get(args[0])
		if err != nil {
			return err
		}
		if err := s.use(args[0]); err != nil {
			return err
		}
		if name, why, err := a.contextInUse(); err == nil && name != args[0] {
			a.warn("%s is set and goes before it", why)
		}
		return a.show(contextRow(args[0], d, true), func(w io.Writer) { fmt.Fprintln(w, args[0]) })
	})
}

func newContextList(a *app) *cobra.Command {
	return a.contextVerb(&cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List contexts", Long: "List contexts. \"*\" marks the one that commands use.", Args: none,
	}, func(s contextStore, _ []string) error {
		names, err := s.names()
		if err != nil {
			return err
		}
		used, why, err := a.contextInUse()
		if err != nil {
			return err
		}
		list := []contextInfo{}
		for _, name := range names {
			d, err := s.get(name)
			if name == localContext {
				d.URL = wire.DefaultURL
			}
			row := contextRow(name, d, name == used)
			if err != nil {
				row.Problem = err.Error()
			}
			list = append(list, row)
		}
		if used == "" {
			a.warn("%s is set, so commands use no context", why)
		} else if !slices.Contains(names, used) {
			a.warn("the context in use, %q, is not there", used)
		}
		return a.show(list, func(w io.Writer) {
			t := newTable(" ", "NAME", "URL", "TEAM", "TOKEN", "PROBLEM")
			for _, c := range list {
				mark := " "
				if c.InUse {
					mark = "*"
				}
				token := yesNo(c.HasToken)
				if c.Name == localContext {
					token = "" // that of the environment, or the machine's admin token
				}
				t.row(mark, c.Name, c.URL, c.Team, token, c.Problem)
			}
			t.print(w)
		})
	})
}

func newContextRemove(a *app) *cobra.Command {
	return a.contextVerb(&cobra.Command{
		Use: "remove NAME...", Aliases: []string{"rm"}, Short: "Forget daemons", Long: "Forget contexts, with their tokens. Nothing is sent to the daemons.",
		Args: atLeast(1, "one or more names"),
	}, func(s contextStore, args []string) error {
		removed := []string{}
		var errs []error
		current, err := s.current()
		errs = append(errs, err)
		for _, name := range args {
			path, err := s.path(name)
			if err == nil && name == localContext {
				err = cay.Errorf(cay.Invalid, "%q is the daemon of this machine and cannot be removed", name)
			}
			if err == nil {
				err = os.Remove(path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				err = cay.Errorf(cay.NotFound, "there is no context %q", name)
			}
			if err == nil && name == current {
				err = s.use(localContext)
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
			removed = append(removed, name)
		}
		err = a.show(removed, func(w io.Writer) {
			for _, name := range removed {
				fmt.Fprintln(w, name)
			}
		})
		return a.reportAll(append(errs, err)...)
	})
}
