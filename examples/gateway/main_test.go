package main

import (
	"bytes"
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/chatcompletions"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/settings"
)

// start returns the address of a gateway with nothing configured, its book, and a key.
func start(t *testing.T, scope gateway.KeyScope) (url string, _ *ledger.Book, _ *gateway.Key) {
	t.Helper()
	d := dbtest.Open(t)
	book, err := ledger.Open(t.Context(), d, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = book.Close() })
	loaded, err := settings.Load("", nil)
	if err != nil {
		t.Fatal(err)
	}
	current := &gatewayd.Settings{Providers: loaded.Snapshot.Providers, Catalog: loaded.Snapshot.Catalog}
	engine := gatewayd.New(gatewayd.Config{
		Ledger: book, Formats: []any{chatcompletions.New()}, Settings: func() *gatewayd.Settings { return current },
	})
	t.Cleanup(func() { engine.Close(context.Background()) })
	server := httptest.NewServer(engine)
	t.Cleanup(server.Close)
	key, err := book.CreateKey(t.Context(), account.DefaultTeam, gateway.CreateKeyParams{ProjectID: account.DefaultProject, KeyScope: scope})
	if err != nil {
		t.Fatal(err)
	}
	return server.URL, book, key
}

func TestRun(t *testing.T) {
	t.Parallel()
	url, book, key := start(t, gateway.KeyScope{})
	var out bytes.Buffer
	if err := run(t.Context(), &gateway.Transport{URL: url, Key: key.Secret, User: "ada", Tags: []string{"example"}}, &out, "cay/scripted", "Which islands are cays?"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"You said: Which islands are cays?\n", "\ncay, for $0: gen_"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it printed %q, want it to have %q", out.String(), want)
		}
	}
	page, err := book.Requests(t.Context(), account.DefaultTeam, "", gateway.RequestFilter{User: "ada", Tag: "example", Limit: 10})
	if err != nil || len(page.Items) != 1 || page.Items[0].Status != gateway.Succeeded {
		t.Errorf("Requests() = %+v, %v; want one that succeeded", page, err)
	}
}

// The gateway refuses requests in the error format that OpenAI's clients read.
func TestRun_Refused(t *testing.T) {
	t.Parallel()
	url, _, key := start(t, gateway.KeyScope{Models: []string{"openai/*"}})
	err := run(t.Context(), &gateway.Transport{URL: url, Key: key.Secret}, new(bytes.Buffer), "cay/scripted", "Hi")
	if want := "403 Forbidden: this key may not use the model cay/scripted"; err == nil || err.Error() != want {
		t.Errorf("run() = %v, want %s", err, want)
	}
}
