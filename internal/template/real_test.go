//go:build !race

// These tests start sandboxes, and gVisor does not start with the race detector.

package template

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

const server = `
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
const started = process.hrtime.bigint();
let n = 0;
createServer((_, res) => res.end([readFileSync("made.txt", "utf8").trim(), process.env.GREETING, process.pid, ++n].join(" ")))
	.listen(3000, () => console.log("listening"));
`

// box starts a sandbox that ends with the test.
func startBox(t *testing.T, c *sandbox.Client, p sandbox.CreateParams) *sandbox.Handle {
	t.Helper()
	s, err := c.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Delete(context.Background(), s.ID); err != nil {
			t.Error(err)
		}
	})
	return c.Sandbox(s.ID)
}

// get reads from the server in a sandbox.
func get(t *testing.T, box *sandbox.Handle, path string) string {
	t.Helper()
	tr := &http.Transport{DialContext: box.DialContext}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get("http://localhost:3000" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func sh(t *testing.T, box *sandbox.Handle, line string) string {
	t.Helper()
	b, err := box.Command(t.Context(), "/bin/sh", "-c", line).Output()
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return strings.TrimSpace(string(b))
}

// All three outputs of one template, in real sandboxes.
func TestReal(t *testing.T) {
	if testing.Short() {
		t.Skip("starts sandboxes")
	}
	env := testenv.Start(t)
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("server.mjs", server)
	build := func(t *testing.T, tail string) (*Result, error) {
		t.Helper()
		write("cay.yaml", `
from: {runtime: node24}
resources: {vcpus: 1, memory: 512MiB, disk: 256MiB}
network: deny-all
env: {GREETING: hello}
workdir: /srv/web
steps:
  - copy: server.mjs
  - run: |
      head -c 8 /dev/urandom | od -An -tx1 | tr -d ' \n' > made.txt
      sudo rm /etc/motd
      sudo ln -s /srv/web /www
`+tail)
		tmpl, err := Read(filepath.Join(dir, "cay.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		b := &Builder{Sandboxes: env.Client, Images: env.Client.Images(), Progress: func(e Event) {
			if e.Phase != "" {
				t.Logf("%s %d %s", e.Phase, e.Step, e.Text)
			}
		}}
		return b.Build(t.Context(), tmpl)
	}
	must := func(t *testing.T, tail string, cached int) *Result {
		t.Helper()
		r, err := build(t, tail)
		if err != nil {
			t.Fatal(err)
		}
		if r.Cached != cached {
			t.Errorf("%d steps were known, want %d", r.Cached, cached)
		}
		t.Logf("took %v", r.Took)
		page, err := env.Client.List(t.Context(), sandbox.ListParams{})
		if err != nil || len(page.Items) > 0 {
			t.Errorf("sandboxes left: %+v, %v", page, err)
		}
		return r
	}

	var made string // random, so that it shows which build ran the step
	t.Run("Snapshot", func(t *testing.T) {
		r := must(t, "name: files\noutput: snapshot\n", 0)
		box := startBox(t, env.Client, sandbox.CreateParams{Snapshot: "files"})
		made = sh(t, box, "cat made.txt")
		if got := sh(t, box, `echo "$GREETING $PWD $(test -e /etc/motd || echo gone) $(readlink /www)"`); got != "hello /srv/web gone /srv/web" || len(made) != 16 {
			t.Errorf("got %q, made %q", got, made)
		}
		if s := r.Snapshot; s.Kind != sandbox.FilesystemSnapshot || s.ExpiresAt != nil {
			t.Errorf("snapshot %+v", s)
		}
	})
	t.Run("SnapshotAgain", func(t *testing.T) {
		former := must(t, "name: files\noutput: snapshot\n", 2).Snapshot.ID
		r := must(t, "name: files\noutput: snapshot\n", 2)
		if s, err := env.Client.GetSnapshot(t.Context(), former); err != nil || s.Status != sandbox.SnapshotDeleted {
			t.Errorf("the former one: %+v, %v", s, err)
		}
		box := startBox(t, env.Client, sandbox.CreateParams{Snapshot: r.Snapshot.ID})
		if got := sh(t, box, "cat made.txt"); got != made {
			t.Errorf("the step was carried out again: %q, not %q", got, made)
		}
	})
	t.Run("Memory", func(t *testing.T) {
		must(t, "name: running\noutput: memory\nstart: {command: node server.mjs, ready: {port: 3000}}\n", 2)
		var first string
		for i := range 2 {
			box := startBox(t, env.Client, sandbox.CreateParams{Snapshot: "running"})
			// The server counts requests: each copy continues from the count in
			// the snapshot.
			got := get(t, box, "/")
			if i == 0 {
				first = got
			}
			if !strings.HasPrefix(got, made+" hello ") || !strings.HasSuffix(got, " 1") || got != first {
				t.Errorf("copy %d answers %q, the first %q", i, got, first)
			}
		}
	})
	t.Run("Example", func(t *testing.T) {
		tmpl, err := Read("../../examples/template/cay.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (&Builder{Sandboxes: env.Client, Images: env.Client.Images()}).Build(t.Context(), tmpl); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		box := startBox(t, env.Client, sandbox.CreateParams{Snapshot: tmpl.Name})
		got := get(t, box, "/4999999")
		t.Logf("a sandbox that knows all primes answers after %v", time.Since(begun))
		if want := `{"n":4999999,"prime":true,"known":348513,"requests":1}`; strings.TrimSpace(got) != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
	t.Run("NotReady", func(t *testing.T) {
		_, err := build(t, "name: running\noutput: memory\nstart: {command: echo oh no; exit 7, ready: {port: 3000}}\n")
		var failed *StepError
		if !errors.As(err, &failed) || failed.Exit.Code != 7 || string(failed.Output) != "oh no\n" {
			t.Errorf("got %v", err)
		}
		if _, err := env.Client.GetSnapshot(t.Context(), "running"); err != nil {
			t.Errorf("the former snapshot: %v", err)
		}
	})
	t.Run("Image", func(t *testing.T) {
		r := must(t, "name: web:1\noutput: image\nstart: {command: [node, server.mjs]}\n", 2)
		t.Cleanup(func() {
			// The store is shared with other tests.
			images := env.Client.Images()
			if err := images.Remove(context.Background(), "web:1"); err != nil {
				t.Error(err)
			}
			if _, err := images.GC(context.Background(), sandbox.ImageGCParams{}); err != nil {
				t.Error(err)
			}
		})
		if c := r.Image.Config; c.WorkDir != "/srv/web" || c.User == "" || fmt.Sprint(c.Cmd) != "[node server.mjs]" {
			t.Errorf("config %+v", c)
		}
		box := startBox(t, env.Client, sandbox.CreateParams{Image: "web:1"})
		want := made + " hello /srv/web gone v24"
		if got := sh(t, box, `echo "$(cat made.txt) $GREETING $PWD $(test -e /etc/motd || echo gone) $(node --version | cut -d. -f1)"`); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("FailingStep", func(t *testing.T) {
		_, err := build(t, "  - run: echo so far; exit 3\nname: files\noutput: snapshot\n")
		var failed *StepError
		if !errors.As(err, &failed) || failed.Step != 3 || failed.Exit.Code != 3 || string(failed.Output) != "so far\n" {
			t.Errorf("got %v", err)
		}
		page, err := env.Client.List(t.Context(), sandbox.ListParams{})
		if err != nil || len(page.Items) > 0 {
			t.Errorf("sandboxes left: %+v, %v", page, err)
		}
	})
	t.Run("Hostile", func(t *testing.T) {
		// A step that creates links to mislead later copies affects only its
		// sandbox.
		_, err := build(t, "  - run: rm -rf /srv/web/x && ln -s /proc/self/root/etc /srv/web/x\n  - copy: server.mjs\n    to: x/passwd\n    user: root\nname: files\noutput: snapshot\n")
		if err != nil && cay.CodeOf(err) == cay.Internal {
			t.Errorf("got %v", err)
		}
		host, rerr := os.ReadFile("/etc/passwd")
		if rerr != nil || strings.Contains(string(host), "createServer") {
			t.Errorf("the host's /etc/passwd: %v", rerr)
		}
	})
}
