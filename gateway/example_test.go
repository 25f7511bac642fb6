package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/gatewayd/admin"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// TestMain starts the servers for the Examples, and points the default client at
// them: the API of keys and records, and a gateway with a single model, which repeats
// its prompt.
func TestMain(m *testing.M) {
	os.Exit(run(m))
}

type everybody struct{}

func (everybody) Authenticate(context.Context, string) (api.Principal, error) {
	return api.Principal{TokenID: "tok_admin", TeamID: account.DefaultTeam, Admin: true}, nil
}

func run(m *testing.M) int {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	dir, err := os.MkdirTemp("", "cay-gateway-")
	must(err)
	defer func() { must(os.RemoveAll(dir)) }()
	d, err := db.Open(context.Background(), filepath.Join(dir, "gateway.db"), db.Options{})
	must(err)
	defer func() { must(d.Close()) }()
	book, err := ledger.Open(context.Background(), d, ledger.Options{Accounts: everybody{}})
	must(err)
	defer func() { must(book.Close()) }()
	mux := api.NewMux(everybody{})
	admin.Routes(mux, &admin.Manager{Book: book})
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = api.NewServer(mux, nil, slog.New(slog.DiscardHandler))
	srv.Start()
	defer srv.Close()
	parrot := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { repeat(w, r, book) }))
	defer parrot.Close()
	for name, v := range map[string]string{"CAY_URL": srv.URL, "CAY_TOKEN": "cay_token", "CAY_GATEWAY_URL": parrot.URL} {
		must(os.Setenv(name, v))
	}
	return m.Run()
}

// repeat is the gateway's model.
func repeat(w http.ResponseWriter, r *http.Request, book *ledger.Book) {
	secret, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	c, err := book.Authenticate(r.Context(), secret)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	h, err := book.Admit(r.Context(), c, ledger.Need{Cost: gateway.Dollar / 100})
	if err != nil {
		http.Error(w, err.Error(), http.StatusPaymentRequired)
		return
	}
	var ask struct {
		Model    string
		Messages []struct{ Content string }
	}
	cost := gateway.Money(0)
	if err := json.NewDecoder(r.Body).Decode(&ask); err == nil && len(ask.Messages) > 0 {
		cost = gateway.Dollar / 400
		fmt.Fprintf(w, `{"choices":[{"message":{"content":%q}}]}`, ask.Messages[0].Content)
	}
	h.Settle(&gateway.Request{
		CreatedAt: time.Now(), TeamID: c.TeamID, ProjectID: c.ProjectID, KeyID: c.KeyID, Surface: "chatcompletions", Kind: "language", Model: ask.Model, Provider: "parrot",
		Status: gateway.Succeeded, HTTPStatus: 200, Cost: &cost, MarketCost: &cost, Tokens: gateway.Tokens{Input: 9, Output: 2},
	})
}

func Example() {
	ctx := context.Background()
	var c gateway.Client // the daemon and token of this machine, or CAY_URL and CAY_TOKEN
	key, err := c.CreateKey(ctx, gateway.CreateKeyParams{
		Name:   "ci",
		Budget: &gateway.BudgetParams{Limit: 5 * gateway.Dollar, Period: gateway.Daily},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	// Any HTTP client can send its requests to the gateway.
	client := &http.Client{Transport: &gateway.Transport{Key: key.Secret, Tags: []string{"docs"}}}
	resp, err := client.Post("https://api.openai.com/v1/chat/completions", "application/json",
		strings.NewReader(`{"model": "cay/parrot", "messages": [{"role": "user", "content": "Hello!"}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(answer))

	// The cost of the request is known at once.
	key, err = c.GetKey(ctx, key.ID)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("$%s of $%s is spent\n", key.Budget.Spent, key.Budget.Limit)
	// Output:
	// {"choices":[{"message":{"content":"Hello!"}}]}
	// $0.0025 of $5 is spent
}

func ExampleClient_SetBudget() {
	ctx := context.Background()
	var c gateway.Client
	// Every user may spend two dollars a day; alice may spend more.
	for _, b := range []struct {
		user  string
		limit gateway.Money
	}{{"", 2 * gateway.Dollar}, {"alice", 10 * gateway.Dollar}} {
		id := gateway.BudgetID{Scope: gateway.ScopeUser, Ref: b.user}
		if _, err := c.SetBudget(ctx, id, gateway.BudgetParams{Limit: b.limit, Period: gateway.Daily}); err != nil {
			fmt.Println(err)
			return
		}
	}
	for _, user := range []string{"alice", "bob"} {
		b, err := c.GetBudget(ctx, gateway.BudgetID{Scope: gateway.ScopeUser, Ref: user})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s may spend $%s %s\n", b.Ref, b.Limit, b.Period)
	}
	// Output:
	// alice may spend $10 daily
	// bob may spend $2 daily
}

func ExampleClient_Spend() {
	ctx := context.Background()
	var c gateway.Client
	key, err := c.CreateKey(ctx, gateway.CreateKeyParams{Name: "batch"})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: &gateway.Transport{Key: key.Secret}}
	for _, word := range []string{"one", "two"} {
		resp, err := client.Post("https://api.openai.com/v1/chat/completions", "application/json",
			strings.NewReader(`{"model": "cay/parrot", "messages": [{"content": "`+word+`"}]}`))
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
	}
	rows, err := c.Spend(ctx, gateway.SpendParams{By: []string{"model"}, KeyID: key.ID})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, row := range rows {
		fmt.Printf("%s: %d requests, %d tokens, $%s\n", row.Group["model"], row.Requests, row.Tokens.Input+row.Tokens.Output, row.Cost)
	}
	// Output:
	// cay/parrot: 2 requests, 22 tokens, $0.005
}
