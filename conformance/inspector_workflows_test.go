package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/workflow"
)

// hostile are texts of a hostile program: markup, and characters that change the
// direction of text.
var hostile = []string{`<img src=x onerror=alert(1)>`, `"><script>alert(2)</script>`, "javascript:alert(3)//BEGIN\u202egnp.exe"}

// take waits for d, so that the page has something to show.
func take(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// inspected are workflows of which a page has something to show.
func inspected() []workflow.Workflow {
	type item struct {
		Name  string `json:"name"`
		Count int    `json:"count"`
	}
	type order struct {
		ID    int    `json:"id"`
		Items []item `json:"items"`
		Note  string `json:"note"`
	}
	quick := workflow.RetryPolicy{Initial: 250 * time.Millisecond, Multiplier: 2, Jitter: -1}

	work := func(name string, d time.Duration, opts ...workflow.StepOption) *workflow.StepDef[int, string] {
		return workflow.Step(name, func(ctx context.Context, n int) (string, error) {
			if err := take(ctx, d); err != nil {
				return "", err
			}
			return fmt.Sprintf("%s of %d is done", name, n), nil
		}, opts...)
	}
	reserve, pick, pack, label := work("reserve stock", 180*time.Millisecond), work("pick", 320*time.Millisecond), work("pack", 150*time.Millisecond), work("print label", 90*time.Millisecond)
	charge := workflow.Step("charge card", func(ctx context.Context, id int) (string, error) {
		if err := take(ctx, 120*time.Millisecond); err != nil {
			return "", err
		}
		if workflow.StepInfo(ctx).Attempt < 3 {
			return "", fmt.Errorf("charge order %d: %w", id, errors.New("card reader is busy"))
		}
		return "ch_7731", nil
	}, quick)
	tell := workflow.Step("tell the customer", func(ctx context.Context, id int) (int, error) {
		words := workflow.Stream[string](ctx, "")
		for _, w := range strings.SplitAfter("Order accepted, packed with care, and on its way to you: "+hostile[0], " ") {
			if err := words.Send(w); err != nil {
				return 0, err
			}
			if err := take(ctx, 20*time.Millisecond); err != nil {
				return 0, err
			}
		}
		parts := workflow.Stream[map[string]any](ctx, "parts")
		for i := range 40 {
			if err := parts.Send(map[string]any{"type": "text-delta", "id": "t1", "delta": fmt.Sprintf("part %d, ", i), "hostile": hostile[1]}); err != nil {
				return 0, err
			}
		}
		return id, parts.End()
	})
	shipping := workflow.Define("shipping", func(ctx workflow.Context, id int) (string, error) {
		picked, packed := pick.Go(ctx, id), pack.Go(ctx, id)
		if _, err := picked.Get(ctx); err != nil {
			return "", err
		}
		if _, err := packed.Get(ctx); err != nil {
			return "", err
		}
		return label.Run(ctx, id)
	})
	orders := workflow.Define("order", func(ctx workflow.Context, o order) (map[string]any, error) {
		if _, err := reserve.Run(ctx, o.ID); err != nil {
			return nil, err
		}
		id, err := charge.Run(ctx, o.ID)
		if err != nil {
			return nil, err
		}
		if err := workflow.SetAttributes(ctx, map[string]string{"stage": "charged"}); err != nil {
			return nil, err
		}
		if err := workflow.Sleep(ctx, 300*time.Millisecond); err != nil {
			return nil, err
		}
		hook, err := workflow.NewHook[map[string]any](ctx, fmt.Sprintf("approve:%d", o.ID), workflow.Metadata(map[string]any{"order": o.ID, "question": "May it be sent? " + hostile[0]}))
		if err != nil {
			return nil, err
		}
		answer, err := hook.Receive(ctx)
		if err != nil {
			return nil, err
		}
		sent, err := shipping.StartChild(ctx, o.ID)
		if err != nil {
			return nil, err
		}
		if _, err := sent.Result(ctx); err != nil {
			return nil, err
		}
		if _, err := tell.Run(ctx, o.ID); err != nil {
			return nil, err
		}
		return map[string]any{"charge": id, "answer": answer, "note": o.Note}, nil
	})
	remind := workflow.Define("remind", func(ctx workflow.Context, days int) (string, error) {
		if _, err := reserve.Run(ctx, days); err != nil {
			return "", err
		}
		if err := workflow.Sleep(ctx, time.Duration(days)*24*time.Hour); err != nil {
			return "", err
		}
		return label.Run(ctx, days)
	})
	panics := workflow.Step("divide", func(_ context.Context, n int) (int, error) { return 100 / n, nil }, workflow.MaxRetries(1), quick)
	broken := workflow.Define("broken", func(ctx workflow.Context, n int) (int, error) { return panics.Run(ctx, n) })
	refuse := workflow.Step("step <b class=x onclick=alert(5)>bold", func(context.Context, string) (string, error) { return "", errors.New(strings.Join(hostile, " ")) }, workflow.MaxRetries(0))
	evil := workflow.Define("evil <img src=x onerror=alert(4)>", func(ctx workflow.Context, in string) (string, error) {
		if err := workflow.SetAttributes(ctx, map[string]string{hostile[0]: hostile[1]}); err != nil {
			return "", err
		}
		return refuse.Run(ctx, in)
	})
	tick := workflow.Step("tick", func(ctx context.Context, n int) (int, error) {
		s := workflow.Stream[map[string]any](ctx, "ticks")
		return n, s.Send(map[string]any{"tick": n})
	})
	clock := workflow.Define("clock", func(ctx workflow.Context, n int) (int, error) {
		for i := range n {
			if _, err := tick.Run(ctx, i); err != nil {
				return i, err
			}
			if err := workflow.Sleep(ctx, 300*time.Millisecond); err != nil {
				return i, err
			}
		}
		return n, nil
	})
	long := workflow.Define("many steps", func(ctx workflow.Context, n int) (int, error) {
		for i := range n {
			if _, err := workflow.Do(ctx, fmt.Sprintf("step %d", i), func(context.Context) (int, error) { return i, nil }); err != nil {
				return 0, err
			}
		}
		return n, nil
	})
	call := workflow.Define("webhook", func(ctx workflow.Context, _ string) (string, error) {
		hook, err := workflow.NewWebhook(ctx, workflow.RespondWith(workflow.WebhookResponse{Status: http.StatusOK, Body: []byte("thanks")}))
		if err != nil {
			return "", err
		}
		r, err := hook.Receive(ctx)
		if err != nil {
			return "", err
		}
		return string(r.Body), nil
	})
	return workflow.Definitions(orders, shipping, remind, broken, evil, clock, long, call)
}

// A person watches workflow runs in the web inspector: finds runs, follows their
// progress, sends the messages that they wait for, and ends them. Hostile text of
// runs is shown as text. CAY_SCREENSHOTS is a directory for pictures of all pages.
func TestInspectorWorkflows_Browser(t *testing.T) {
	t.Parallel()
	chromium := need(t, "chromium", "chromium-browser", "google-chrome")
	node := need(t, "node")
	if _, err := os.Stat("node_modules"); err != nil {
		missing(t, "playwright-core")
	}
	env := testenv.Start(t)
	client, err := workflow.Connect(workflow.RemoteOptions{URL: env.URL, Token: env.Token})
	if err != nil {
		t.Fatal(err)
	}
	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: inspected(), StopTimeout: time.Second})
	if err := worker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(worker.Stop)
	shots := os.Getenv("CAY_SCREENSHOTS")
	if shots == "" {
		shots = t.TempDir()
	}
	url := strings.Replace(env.URL, "127.0.0.1", "localhost", 1)
	cmd := exec.CommandContext(t.Context(), node, "browser/workflows.mjs", url, shots)
	cmd.Env = append(os.Environ(), "CHROMIUM="+chromium, "CAY_TOKEN="+env.Token)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, t.Output()
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	t.Log(out.String())
	if err != nil || !strings.Contains(out.String(), "steps passed") {
		t.Fatal(err)
	}
}
