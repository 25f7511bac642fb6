package route_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/route"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// callers authenticates the callers of sandboxtest, whose tokens are their ids.
type callers struct{}

func (callers) Authenticate(_ context.Context, secret string) (api.Principal, error) {
	for _, p := range []api.Principal{
		sandboxtest.Default, sandboxtest.TeamA, sandboxtest.ProjectA, sandboxtest.ProjectA2, sandboxtest.TeamB, sandboxtest.ProjectB,
	} {
		if "cay_"+p.TokenID == secret {
			return p, nil
		}
	}
	return api.Principal{}, cay.Errorf(cay.Unauthenticated, "the token is not valid")
}

// TestClient runs the engine's tests with the client over HTTP.
func TestClient(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Config{New: func(t *testing.T) *sandboxtest.Env {
		h, rt := sandboxtest.StartFake(t)
		mux := api.NewMux(callers{})
		route.Mount(mux, h.Engine, context.Background())
		srv := httptest.NewUnstartedServer(nil)
		srv.Config = api.NewServer(mux, nil, slog.New(slog.DiscardHandler))
		srv.Start()
		t.Cleanup(srv.Close)
		transport := &http.Transport{}
		t.Cleanup(transport.CloseIdleConnections)

		env := h.Env()
		env.As = func(t *testing.T, p api.Principal) sandboxtest.Caller {
			token := "cay_" + p.TokenID
			if p == sandboxtest.Nobody {
				token = "cay_nobody"
			}
			return sandboxtest.Caller{
				Service: sandbox.NewClient(sandbox.ClientOptions{
					URL: srv.URL, Token: token, HTTPClient: &http.Client{Transport: transport},
				}),
				Context: func(ctx context.Context) context.Context { return ctx },
			}
		}
		sandboxtest.FakeHooks(env, rt)
		return env
	}})
}

// When the server is about to stop, clients that follow a command are told at once; a
// command whose output is the response goes on.
func TestRoutes_Ending(t *testing.T) {
	t.Parallel()
	h, _ := sandboxtest.StartFake(t)
	mux := api.NewMux(callers{})
	why := cay.Errorf(cay.Unavailable, "the server is stopping")
	ending, end := context.WithCancelCause(context.Background())
	route.Mount(mux, h.Engine, ending)
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = api.NewServer(mux, nil, slog.New(slog.DiscardHandler))
	srv.Start()
	defer srv.Close()
	c := sandbox.NewClient(sandbox.ClientOptions{URL: srv.URL, Token: "cay_" + sandboxtest.Default.TokenID, HTTPClient: srv.Client()})
	s := checktest.Must(c.Create(t.Context(), sandbox.CreateParams{}))(t)
	run := checktest.Must(c.Exec(t.Context(), s.ID, sandbox.CommandParams{Argv: []string{"cat"}, Stdin: true}))(t)
	defer run.Close()
	cmd := checktest.Must(run.Next())(t).Command

	follows := map[string]func() error{}
	out := checktest.Must(c.Output(t.Context(), s.ID, cmd.ID, sandbox.OutputParams{Follow: true}))(t)
	defer out.Close()
	follows["output"] = func() error { _, err := out.Next(); return err }
	watch := checktest.Must(c.Watch(t.Context(), s.ID, ".", sandbox.WatchParams{}))(t)
	defer watch.Close()
	follows["watch"] = func() error { _, err := watch.Next(); return err }
	changes := checktest.Must(c.WatchSandboxes(t.Context(), sandbox.ChangeParams{}))(t)
	defer changes.Close()
	follows["sandboxes"] = func() error {
		for {
			if _, err := changes.Next(); err != nil {
				return err
			}
		}
	}
	end(why)
	for name, next := range follows {
		if err := next(); cay.CodeOf(err) != cay.Unavailable || !strings.Contains(err.Error(), "stopping") {
			t.Errorf("%s ended with %v", name, err)
		}
	}
	if err := c.WriteStdin(t.Context(), s.ID, cmd.ID, bytes.NewReader([]byte("on\n")), true); err != nil {
		t.Fatal(err)
	}
	if text := sandboxtest.ReadText(t, run); text != "on\n" {
		t.Errorf("the command wrote %q", text)
	}
}
