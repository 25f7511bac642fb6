package main

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/sandbox"
)

// sizeFlag is a flag such as --memory 2GiB.
type sizeFlag struct{ size config.Size }

func (f *sizeFlag) String() string {
	if f.size == 0 {
		return ""
	}
	return f.size.String()
}

func (f *sizeFlag) Set(text string) (err error) {
	f.size, err = config.ParseSize(text)
	return withHint(err)
}

func (f *sizeFlag) Type() string { return "size" }

// withHint appends an error's hint to its text, for callers that keep only the
// text.
func withHint(err error) error {
	if hint := hintOf(err); hint != "" {
		return fmt.Errorf("%w; %s", err, hint)
	}
	return err
}

// modeFlag is --network.
type modeFlag struct{ mode sandbox.NetworkMode }

func (f *modeFlag) String() string { return string(f.mode) }

func (f *modeFlag) Set(text string) error {
	m, err := parseMode(text)
	f.mode = m
	return err
}

func (f *modeFlag) Type() string { return "mode" }

func parseMode(text string) (sandbox.NetworkMode, error) {
	switch m := sandbox.NetworkMode(text); m {
	case sandbox.AllowAll, sandbox.DenyAll:
		return m, nil
	}
	return "", fmt.Errorf("%q is neither %s nor %s", text, sandbox.AllowAll, sandbox.DenyAll)
}

// parseEnv reads files of K=V lines and then single K=V or K arguments, which
// override the files. K alone takes the value of K in this process's
// environment.
func parseEnv(files, pairs []string, lookup func(string) (string, bool)) (map[string]string, error) {
	env := make(map[string]string)
	for _, file := range files {
		vars, err := parseEnvFile(file, lookup)
		if err != nil {
			return nil, err
		}
		maps.Copy(env, vars)
	}
	for _, pair := range pairs {
		if err := addEnv(env, pair, lookup); err != nil {
			return nil, cay.Errorf(cay.Invalid, "-e %w", err)
		}
	}
	if len(env) == 0 {
		return nil, nil
	}
	return env, nil
}

// parseEnvFile reads K=V and K lines. Blank lines and those that begin with #
// are skipped; values are taken literally, quotes included.
func parseEnvFile(path string, lookup func(string) (string, bool)) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "cannot read --env-file: %w", err)
	}
	defer f.Close()
	env := make(map[string]string)
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSuffix(s.Text(), "\r")
		if t := strings.TrimSpace(line); t == "" || strings.HasPrefix(t, "#") {
			continue
		}
		if err := addEnv(env, strings.TrimLeft(line, " \t"), lookup); err != nil {
			return nil, cay.Errorf(cay.Invalid, "%s, line %d: %w", path, n, err)
		}
	}
	if err := s.Err(); err != nil {
		return nil, cay.Errorf(cay.Invalid, "cannot read --env-file %s: %w", path, err)
	}
	return env, nil
}

func addEnv(env map[string]string, pair string, lookup func(string) (string, bool)) error {
	k, v, given := strings.Cut(pair, "=")
	if k == "" || strings.ContainsAny(k, " \t") {
		return fmt.Errorf("%q is not KEY=VALUE or KEY", k)
	}
	if !given {
		if v, given = lookup(k); !given {
			return fmt.Errorf("%s has no value, and is not set here", k)
		}
	}
	env[k] = v
	return nil
}

// parseTags reads K=V pairs.
func parseTags(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	tags := make(map[string]string)
	for _, pair := range pairs {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" {
			return nil, cay.Errorf(cay.Invalid, "tag %q is not KEY=VALUE", pair)
		}
		tags[k] = v
	}
	return tags, nil
}

// place is the source or the destination of a copy.
type place struct {
	sandbox string // empty: this machine
	path    string // "-" on this machine: standard input or output
}

func (p place) local() bool { return p.sandbox == "" }

// parsePlace reads PATH or SANDBOX:PATH. A colon after a slash belongs to the
// path, so ./a:b is a file here.
func parsePlace(text string) (place, error) {
	name, path, ok := strings.Cut(text, ":")
	if !ok || strings.Contains(name, "/") || name == "" {
		if text == "" {
			return place{}, cay.Errorf(cay.Invalid, "a path is empty")
		}
		return place{path: text}, nil
	}
	if path == "" {
		return place{}, cay.Errorf(cay.Invalid, "%q names no path in the sandbox", text).WithHint("write %s. for its working directory", text)
	}
	return place{sandbox: name, path: path}, nil
}

// parseCopySpec reads SRC:DST. The last colon separates them.
func parseCopySpec(flag, text string) (src, dst string, err error) {
	i := strings.LastIndex(text, ":")
	if i <= 0 || i == len(text)-1 {
		return "", "", cay.Errorf(cay.Invalid, "%s %q is not SRC:DST", flag, text)
	}
	return text[:i], text[i+1:], nil
}

// durationValue checks a duration flag whose zero means not given.
func durationValue(flag string, d time.Duration, changed bool) (sandbox.Duration, error) {
	if changed && d <= 0 {
		return 0, cay.Errorf(cay.Invalid, "%s is %v; it must be more than 0", flag, d)
	}
	return sandbox.Duration(d), nil
}

// signalValue returns the value of a flag that names a signal; 0 if not given.
func signalValue(flag, s string) (sandbox.Signal, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		n = int(unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(s), "SIG")))
	}
	if sandbox.Signal(n).Validate() != nil {
		return 0, cay.Errorf(cay.Invalid, "%s %q is no signal", flag, s).WithHint("name one such as KILL or INT, or give its number")
	}
	return sandbox.Signal(n), nil
}

// splitDash removes a leading "--" from a command.
func splitDash(argv []string) []string {
	if len(argv) > 0 && argv[0] == "--" {
		return argv[1:]
	}
	return argv
}
