// The daemon links gVisor, which does not build with the race detector.

//go:build !fuzz

package agent_test

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/workflow"
)

// The daemon keeps the runs and calls the models; it knows this program by HTTP
// alone.
func TestAgent_Daemon(t *testing.T) {
	scripts := filepath.Join(t.TempDir(), "script.yaml")
	if err := os.WriteFile(scripts, []byte(weatherScript), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CAY_SCRIPT", scripts)
	url, gatewayURL, token := startDaemon(t)

	client, err := workflow.Connect(workflow.RemoteOptions{URL: url, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ask := agent.NewClientTool[struct{}]("ask", "", agent.NeedsApproval())
	a := agent.New(agent.Config{Name: "assistant", Model: "cay/scripted", Tools: []agent.Tool{weather, ask}})
	d := workflow.Define("twice", func(ctx workflow.Context, prompt string) (*agent.Result, error) {
		if _, err := a.Stream(ctx, agent.Call{Prompt: prompt, NoClose: true}); err != nil {
			return nil, err
		}
		return a.Stream(ctx, agent.Call{Prompt: prompt})
	})
	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: workflow.Definitions(d), VerifyReplay: true})
	if err := worker.Start(agent.WithModels(t.Context(), &agent.Gateway{URL: gatewayURL, Key: token})); err != nil {
		t.Fatal(err)
	}
	defer worker.Stop()
	run, err := d.Start(t.Context(), client, "Is an umbrella needed?")
	if err != nil {
		t.Fatal(err)
	}
	r, err := run.Result(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(r.Text, "It is the input is not JSON") || len(r.Steps) != 2 || !r.Usage.CostKnown {
		t.Errorf("the result is %+v", r)
	}
	var kinds []string
	for _, c := range chunks(t, client, run.ID) {
		switch c.Type {
		case agent.ChunkStart, agent.ChunkStartStep, agent.ChunkToolInputError, agent.ChunkToolOutput, agent.ChunkFinish:
			kinds = append(kinds, string(c.Type))
		}
	}
	once := "start start-step tool-input-error tool-output-available start-step finish"
	if got := strings.Join(kinds, " "); got != once+" "+once {
		t.Errorf("the stream has %s", got)
	}
	info, err := run.Info(t.Context())
	if err != nil || info.Attributes[agent.AttributeAgent] != "assistant" || info.Attributes[agent.AttributeCost] != "0" || info.Attributes[agent.AttributeTokens] == "" {
		t.Errorf("the run has %v, %v", info.Attributes, err)
	}
}

// startDaemon starts a daemon whose machines are directories.
func startDaemon(t *testing.T) (url, gatewayURL, token string) {
	t.Helper()
	rt, err := fake.New(filepath.Join(t.TempDir(), "machines"))
	if err != nil {
		t.Fatal(err)
	}
	images, err := sandboxtest.NewImages(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	var listeners [2]net.Listener
	for i := range listeners {
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	cfg := config.Default()
	cfg.Data = t.TempDir()
	d, err := daemon.New(t.Context(), cfg, daemon.Options{
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})), Runtime: rt, Images: images,
		Listener: listeners[0], GatewayListener: listeners[1], DestroyOnStop: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Stop(), rt.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(cfg.AdminTokenFile())
	if err != nil {
		t.Fatal(err)
	}
	return d.URL(), d.GatewayURL(), strings.TrimSpace(string(b))
}
