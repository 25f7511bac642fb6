package runtimetest

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// Guest tests commands and files of a guest in depth. connect returns a client of a
// running machine that has a POSIX shell and the usual tools; it is called once. Guest
// asks the machine for optional features.
func Guest(t *testing.T, connect func(t *testing.T) *guest.Client) {
	// Commands that are children of this process would inherit signals that it ignores,
	// as under nohup.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE)
	t.Cleanup(func() { signal.Stop(caught) })
	c := connect(t)
	t.Run("Commands", func(t *testing.T) { testCommands(t, c) })
	t.Run("Files", func(t *testing.T) { testFiles(t, c) })
	t.Run("Archives", func(t *testing.T) { testArchives(t, c) })
	t.Run("Watch", func(t *testing.T) { testWatch(t, c) })
}

// patience bounds operations that should be quick.
const patience = time.Minute

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// dir creates a directory for the test and returns its absolute path.
func dir(t *testing.T, c *guest.Client) string {
	t.Helper()
	name := "t-" + strings.ToLower(guest.NewCommandID()[4:14])
	checktest.OK(t, c.Mkdir(testContext(t), name, sandbox.MkdirParams{Mode: 0o777}))
	info, err := c.Stat(testContext(t), name, false)
	checktest.OK(t, err)
	return info.Path
}

// realRoot reports whether commands see the paths that file methods see.
func realRoot(t *testing.T, c *guest.Client) bool {
	t.Helper()
	d := dir(t, c)
	return strings.TrimSpace(run(t, c, sandbox.CommandParams{Argv: []string{"pwd"}, WorkDir: d}).stdout) == d
}

// canSwitchUsers reports whether commands may run as a user they name.
func canSwitchUsers(t *testing.T, c *guest.Client) bool {
	t.Helper()
	_, err := c.Start(testContext(t), sandbox.CommandParams{Argv: []string{"true"}, User: "12345"})
	if cay.CodeOf(err) == cay.NotSupported {
		return false
	}
	checktest.OK(t, err)
	return true
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// result is the outcome of a command.
type result struct {
	command   *sandbox.Command
	stdout    string
	stderr    string
	exit      sandbox.Exit
	truncated bool
	end       int64 // cursor
}

func run(t *testing.T, c *guest.Client, p sandbox.CommandParams) result {
	t.Helper()
	o, err := c.Exec(testContext(t), p)
	checktest.OK(t, err)
	return collect(t, o)
}

func sh(t *testing.T, c *guest.Client, dir, script string) string {
	t.Helper()
	r := run(t, c, sandbox.CommandParams{Argv: []string{"sh", "-c", script}, WorkDir: dir})
	if r.exit.Code != 0 {
		t.Fatalf("%s: exit %d: %s", script, r.exit.Code, r.stderr)
	}
	return r.stdout
}

// collect reads an output to its end, and checks the cursors on the way.
func collect(t *testing.T, o sandbox.Output) result {
	t.Helper()
	defer o.Close()
	var res result
	var out, errs bytes.Buffer
	first := true
	for {
		ev, err := o.Next()
		if err == io.EOF {
			break
		}
		checktest.OK(t, err)
		switch {
		case ev.Command != nil:
			res.command = ev.Command
		case ev.Truncated:
			res.truncated, res.end, first = true, ev.Cursor, false
		case ev.Exit != nil:
			res.exit = *ev.Exit
		default:
			if !first && ev.Cursor != res.end {
				t.Fatalf("cursor %d after %d", ev.Cursor, res.end)
			}
			first = false
			res.end = ev.Cursor + int64(len(ev.Data))
			if ev.Stream == sandbox.Stderr {
				errs.Write(ev.Data)
			} else {
				out.Write(ev.Data)
			}
		}
	}
	res.stdout, res.stderr = out.String(), errs.String()
	return res
}

func write(t *testing.T, c *guest.Client, path, content string) {
	t.Helper()
	_, err := c.WriteFile(testContext(t), path, strings.NewReader(content), sandbox.WriteParams{})
	checktest.OK(t, err)
}

func read(t *testing.T, c *guest.Client, path string) string {
	t.Helper()
	r, _, err := c.ReadFile(testContext(t), path, sandbox.ReadParams{})
	checktest.OK(t, err)
	defer r.Close()
	data, err := io.ReadAll(r)
	checktest.OK(t, err)
	return string(data)
}

func names(t *testing.T, c *guest.Client, path string) []string {
	t.Helper()
	page, err := c.ReadDir(testContext(t), path, sandbox.ReadDirParams{Limit: 10000})
	checktest.OK(t, err)
	var out []string
	for _, e := range page.Items {
		out = append(out, e.Name)
	}
	return out
}

func modeOf(t *testing.T, c *guest.Client, path string) fs.FileMode {
	t.Helper()
	info, err := c.Stat(testContext(t), path, false)
	checktest.OK(t, err)
	return info.Mode
}
