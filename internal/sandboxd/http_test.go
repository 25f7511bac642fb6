package sandboxd_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/sandboxd"
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

// TestClient holds the client over HTTP to the behaviour of the engine.
func TestClient(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Config{New: func(t *testing.T) *sandboxtest.Env {
		h, rt := startFake(t)
		mux := api.NewMux(callers{})
		sandboxd.Routes(mux, h.Engine)
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
		fakeHooks(env, rt)
		return env
	}})
}
