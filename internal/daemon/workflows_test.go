package daemon_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/workflow"
)

// startDaemon starts a daemon without sandboxes over cfg.Data.
func startDaemon(t *testing.T, cfg config.Config) (d *daemon.Daemon, token string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	rt, err := fake.New(filepath.Join(cfg.Data, "fake"))
	if err != nil {
		t.Fatal(err)
	}
	d, err = daemon.New(t.Context(), cfg, daemon.Options{Runtime: rt, Listener: l, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(cfg.AdminTokenFile())
	if err != nil {
		t.Fatal(err)
	}
	return d, strings.TrimSpace(string(b))
}

func stopDaemon(t *testing.T, d *daemon.Daemon) {
	t.Helper()
	if err := d.Stop(); err != nil {
		t.Error(err)
	}
}

func TestDaemon_Workflows(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, cfg *config.Config){
		"sqlite":   func(_ *testing.T, cfg *config.Config) { cfg.WorkflowSync = true },
		"postgres": func(t *testing.T, cfg *config.Config) { cfg.WorkflowDatabase = pgtest.DSN(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := settings(t.TempDir())
			change(t, &cfg)
			testWorkflows(t, cfg)
		})
	}
}

// A workflow of a worker gets a webhook, survives a restart of the daemon, and
// is counted.
func testWorkflows(t *testing.T, cfg config.Config) {
	path := make(chan string, 1)
	answer := workflow.Step("answer", func(ctx context.Context, call workflow.WebhookRequest) (string, error) {
		return string(call.Body), call.Respond(ctx, workflow.WebhookResponse{Status: http.StatusTeapot, Body: []byte("I got " + string(call.Body))})
	})
	listen := workflow.Define("listen", func(ctx workflow.Context, _ struct{}) (string, error) {
		hook, err := workflow.NewWebhook(ctx, workflow.RespondByStep())
		if err != nil {
			return "", err
		}
		if _, err := workflow.Do(ctx, "tell", func(context.Context) (bool, error) { path <- hook.Path(); return true, nil }); err != nil {
			return "", err
		}
		var all []string
		for range 2 {
			call, err := hook.Receive(ctx)
			if err != nil {
				return "", err
			}
			said, err := answer.Run(ctx, call)
			if err != nil {
				return "", err
			}
			all = append(all, said)
		}
		return strings.Join(all, " "), nil
	})

	front := checktest.NewFront(t)
	d, token := startDaemon(t, cfg)
	front.Lead(strings.TrimPrefix(d.URL(), "http://"))
	url := "http://" + front.Addr
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	c, err := workflow.Connect(workflow.RemoteOptions{URL: url, Token: token, HTTPClient: &http.Client{Transport: tr}})
	if err != nil {
		t.Fatal(err)
	}
	w := workflow.NewWorker(c, workflow.WorkerConfig{Definitions: workflow.Definitions(listen), Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run, err := listen.Start(ctx, c, struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	webhook := <-path
	if !strings.HasSuffix(webhook, "."+account.DefaultProject) {
		t.Errorf("the webhook %q does not say whose it is", webhook)
	}
	call := func(body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, "PUT", url+webhook, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusTeapot || string(b) != "I got "+body {
			t.Errorf("the webhook answered %d %q, %v", resp.StatusCode, b, err)
		}
	}
	call("one")
	for _, wrong := range []string{webhook + "x", strings.Replace(webhook, ".", "", 1), workflow.WebhookPath + "none"} {
		resp, err := (&http.Client{Transport: tr}).Get(url + wrong)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s answered %d", wrong, resp.StatusCode)
		}
	}

	stopDaemon(t, d)
	front.Lead("")
	d, _ = startDaemon(t, cfg)
	front.Lead(strings.TrimPrefix(d.URL(), "http://"))
	defer func() { stopDaemon(t, d) }()
	call("two")
	out, err := run.Result(ctx)
	if err != nil || out != "one two" {
		t.Errorf("the run returned %q, %v", out, err)
	}

	req, err := http.NewRequestWithContext(ctx, "GET", url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`cay_workflow_runs_ended_total{status="completed",workflow="listen"} 1`, "cay_workflow_events_total ", "cay_workflow_commit_seconds_count "} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
}

// A project with runs that have not ended cannot be deleted.
func TestDaemon_ProjectOfWorkflows(t *testing.T) {
	t.Parallel()
	cfg := settings(t.TempDir())
	d, token := startDaemon(t, cfg)
	defer func() { stopDaemon(t, d) }()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	hc := &http.Client{Transport: tr}
	accounts := &account.Client{URL: d.URL(), Token: token, HTTPClient: hc}
	p, err := accounts.CreateProject(t.Context(), account.CreateProjectParams{Name: "ours"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := workflow.Connect(workflow.RemoteOptions{URL: d.URL(), Token: token, Project: p.ID, HTTPClient: hc})
	if err != nil {
		t.Fatal(err)
	}
	run, err := c.Start(t.Context(), "order", 1)
	if err != nil || run.Project != p.ID {
		t.Fatalf("%+v, %v", run, err)
	}
	err = accounts.DeleteProject(t.Context(), p.ID)
	if cay.CodeOf(err) != cay.Conflict || !strings.Contains(fmt.Sprint(err), "runs of workflows") {
		t.Errorf("a project with runs: %v", err)
	}
	if _, err := c.Cancel(t.Context(), run.ID, workflow.CancelParams{}); err != nil {
		t.Fatal(err)
	}
	if err := accounts.DeleteProject(t.Context(), p.ID); err != nil {
		t.Errorf("one whose runs have ended: %v", err)
	}
}
