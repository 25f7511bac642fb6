package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// cmdRequest records three requests with a key, without a gateway: a request that
// succeeds, a request that fails and is not priced, and a request of yesterday. A
// request that the key's budget does not admit is recorded as refused.
func cmdRequest(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: request file-with-secret")
	}
	book := ts.Value(programKey{}).(*program).book
	ctx := context.Background()
	c, err := book.Authenticate(ctx, strings.TrimSpace(ts.ReadFile(args[0])))
	ts.Check(err)
	c.User, c.Tags = "alice", append(c.Tags, "a\nb")
	cost := gateway.Dollar / 800
	for i := range 3 {
		at := time.Now().AddDate(0, 0, -i/2)
		r := &gateway.Request{
			CreatedAt: at, TeamID: c.TeamID, ProjectID: c.ProjectID, KeyID: c.KeyID, User: c.User, Tags: c.Tags, Surface: "chatcompletions", Kind: "language",
			Model: "fast", Served: "openai/gpt-5", Provider: "openai", Status: gateway.Succeeded, HTTPStatus: 200, FinishReason: "stop", Cost: &cost, MarketCost: &cost,
			Tokens: gateway.Tokens{Input: 1200, CacheRead: 1000, Output: 34, Reasoning: 20}, Latency: 1234.5, FirstToken: 250,
			Attempts: []gateway.Attempt{{Model: "openai/gpt-5", Provider: "azure", ProviderModel: "gpt-5", StartedAt: at, Latency: 3, Status: 500, Error: "it broke"}, {Model: "openai/gpt-5", Provider: "openai", ProviderModel: "gpt-5", StartedAt: at, Latency: 1230, Status: 200, OK: true}},
		}
		if i == 1 {
			r.Status, r.HTTPStatus, r.ErrorKind, r.Error, r.Served, r.Cost, r.MarketCost, r.Attempts = gateway.Failed, 502, "upstream_failed", "it said \"no\"", "", nil, nil, r.Attempts[:1]
		}
		h, err := book.Admit(ctx, c, ledger.Need{Cost: 4 * cost})
		var e *hub.Error
		switch {
		case err == nil:
			h.Settle(r)
		case errors.As(err, &e):
			r.Status, r.HTTPStatus, r.ErrorKind, r.Error, r.Cost, r.MarketCost, r.Attempts = gateway.Refused, 402, string(e.Kind), e.Message, new(gateway.Money), nil, nil
			ts.Check(book.Record(r))
		default:
			ts.Check(err)
		}
	}
}

func TestDollars(t *testing.T) {
	t.Parallel()
	for m, want := range map[gateway.Money]string{
		0: "$0.00", gateway.Dollar: "$1.00", 12 * gateway.Dollar / 10: "$1.20", -5 * gateway.Dollar: "-$5.00", gateway.Dollar / 4: "$0.250", 123_456_789_012_345: "$123.4568",
		gateway.Dollar / 800: "$0.00125", 1: "$0.000000000001", 127_500_000: "$0.000128",
	} {
		if got := dollars(m); got != want {
			t.Errorf("%s is %q, want %q", m, got, want)
		}
	}
}

func TestWhenFlag(t *testing.T) {
	t.Parallel()
	var f whenFlag
	if err := f.Set("7d"); err != nil || time.Since(f.time).Round(time.Hour) < 167*time.Hour || time.Since(f.time).Round(time.Hour) > 169*time.Hour {
		t.Errorf("7d is %v, %v", f.time, err)
	}
	if err := f.Set("2026-11-20T12:00:00Z"); err != nil || !f.time.Equal(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)) {
		t.Errorf("it is %v, %v", f.time, err)
	}
	for _, bad := range []string{"d", "-1d", "1.5d", "123456d", "soon"} {
		if err := f.Set(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// Written cells are read back unchanged, except for cleaning.
func FuzzWriteCSV(f *testing.F) {
	f.Add("plain", `quo"ted`, "a,b")
	f.Add("line\r\nbreak", "\x00\xff\u202e", " ")
	f.Add("", "#", "=1+1")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		want := [][]string{{"one", "two", "three"}, {clean(a), clean(b), clean(c)}}
		var out bytes.Buffer
		if err := writeCSV(&out, [][]string{{"one", "two", "three"}, {a, b, c}}); err != nil {
			t.Fatal(err)
		}
		got, err := csv.NewReader(io.Reader(&out)).ReadAll()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	})
}
