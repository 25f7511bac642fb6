package runtimetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

func testWatch(t *testing.T, c *guest.Client) {
	for name, test := range map[string]func(*testing.T, *guest.Client){
		"Directory": testWatchDirectory,
		"Recursive": testWatchRecursive,
		"File":      testWatchFile,
		"Flood":     testWatchFlood,
		"Refusals":  testWatchRefusals,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, c)
		})
	}
}

// until reads events until one about path, and returns them as text without the
// directory.
func until(t *testing.T, w sandbox.Watch, d, path string) []string {
	t.Helper()
	var out []string
	for {
		ev, err := w.Next()
		checktest.OK(t, err)
		s := string(ev.Op) + " " + strings.TrimPrefix(ev.Path, d+"/")
		if ev.From != "" {
			s += " from " + strings.TrimPrefix(ev.From, d+"/")
		}
		out = append(out, s)
		if ev.Path == d+"/"+path {
			return out
		}
	}
}

func watch(t *testing.T, c *guest.Client, path string, recursive bool) sandbox.Watch {
	t.Helper()
	w, err := c.Watch(testContext(t), path, sandbox.WatchParams{Recursive: recursive})
	checktest.OK(t, err)
	t.Cleanup(func() { w.Close() })
	return w
}

func wantEvents(t *testing.T, got, want []string) {
	t.Helper()
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("no %q in %q", w, got)
		}
	}
}

func testWatchDirectory(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	sh(t, c, d, "mkdir sub; echo x > old; echo x > gone")
	w := watch(t, c, d, false)
	sh(t, c, d, "echo x > new; chmod 600 old; mv old renamed; rm gone; touch sub/unseen; mv renamed sub/out; mv sub/out in; : > end1")
	got := until(t, w, d, "end1")
	wantEvents(t, got, []string{"create new", "write new", "chmod old", "rename renamed from old", "remove gone", "remove renamed", "create in"})
	for _, e := range got {
		if strings.Contains(e, "unseen") {
			t.Errorf("%s: the watch is not recursive", e)
		}
	}
	write(t, c, d+"/whole", "x")
	got = until(t, w, d, "whole")
	if !slices.Equal(got[len(got)-1:], []string{"create whole"}) || strings.Contains(strings.Join(got, " "), ".cay-") {
		t.Errorf("a file written by the agent: %q", got)
	}
}

func testWatchRecursive(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	sh(t, c, d, "mkdir -p a/b")
	w := watch(t, c, d, true)
	// A file created in a new directory at once is not missed.
	sh(t, c, d, "mkdir -p new/deeper; echo x > new/deeper/file; echo x > a/b/file; : > end1")
	got := until(t, w, d, "end1")
	wantEvents(t, got, []string{"create new", "create new/deeper", "create new/deeper/file", "create a/b/file"})
	// Directories are still watched after a move.
	sh(t, c, d, "mv new moved; : > mid")
	until(t, w, d, "mid")
	sh(t, c, d, "echo y > moved/deeper/other; : > end2")
	got = until(t, w, d, "end2")
	wantEvents(t, got, []string{"create moved/deeper/other"})
}

func testWatchFile(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	write(t, c, d+"/file", "x")
	w := watch(t, c, d+"/file", false)
	sh(t, c, d, "echo x > other; echo y >> file")
	if got := until(t, w, d, "file"); !slices.Equal(got, []string{"write file"}) {
		t.Errorf("got %q", got)
	}
	// Replacing the file does not end the watch.
	write(t, c, d+"/file", "new")
	if got := until(t, w, d, "file"); !slices.Equal(got, []string{"create file"}) {
		t.Errorf("got %q", got)
	}
	sh(t, c, d, "mv file elsewhere")
	if got := until(t, w, d, "file"); !slices.Equal(got, []string{"remove file"}) {
		t.Errorf("got %q", got)
	}
}

// Events are lost only with an overflow event.
func testWatchFlood(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	w := watch(t, c, d, false)
	const files = 6000
	sh(t, c, d, fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo f$i; i=$((i+1)); done | xargs touch", files))
	made := time.Now()
	seen, overflow, last := map[string]bool{}, false, made
	for len(seen) < files && !overflow {
		ev, err := w.Next()
		if err != nil {
			t.Fatalf("%d of %d seen, the last %v and the end %v after all were made: %v",
				len(seen), files, last.Sub(made), time.Since(made), err)
		}
		last = time.Now()
		if ev.Op == sandbox.OpOverflow {
			overflow = true
		} else if ev.Op == sandbox.OpCreate {
			seen[ev.Path] = true
		}
	}
	t.Logf("%d of %d, overflow %v", len(seen), files, overflow)
}

func testWatchRefusals(t *testing.T, c *guest.Client) {
	d := dir(t, c)
	_, err := c.Watch(testContext(t), d+"/none", sandbox.WatchParams{})
	checktest.Code(t, err, cay.FileNotFound)
	w := watch(t, c, d, false)
	checktest.OK(t, w.Close())
	if _, err := w.Next(); cay.CodeOf(err) != cay.Canceled {
		t.Errorf("after Close: %v", err)
	}
}
