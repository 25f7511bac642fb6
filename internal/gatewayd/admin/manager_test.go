package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/gatewayd/admin"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// holders maps tokens to their principals.
var holders = map[string]api.Principal{
	"admin":   {TokenID: "tok_admin", TeamID: account.DefaultTeam, Admin: true},
	"team":    {TokenID: "tok_team", TeamID: account.DefaultTeam},
	"project": {TokenID: "tok_project", TeamID: account.DefaultTeam, ProjectID: "prj_two"},
	"other":   {TokenID: "tok_other", TeamID: "team_other"},
}

type holding struct{}

func (holding) Authenticate(_ context.Context, secret string) (api.Principal, error) {
	p, ok := holders[secret]
	if !ok {
		return p, cay.Errorf(cay.Unauthenticated, "the token is not valid")
	}
	return p, nil
}

// CheckProject implements admin.Projects.
func (holding) CheckProject(_ context.Context, team, project string) error {
	if team == account.DefaultTeam && (project == account.DefaultProject || project == "prj_two") {
		return nil
	}
	return cay.Errorf(cay.NotFound, "project %q not found", project)
}

// Models implements admin.Models.
func (holding) Models() []gateway.Model {
	price := gateway.Money(250_000)
	return []gateway.Model{{ID: "a/b", Name: "B", Kind: "language", Aliases: []string{"b"}, Endpoints: []gateway.Endpoint{
		{Provider: "p", Model: "b-1", Health: gateway.Health{State: "ok"}, Price: &gateway.Price{Version: "2026-11-01", Input: price, Output: 2 * price, CacheRead: &price, Tiers: []gateway.PriceTier{{Above: 1000, Input: price, Output: price}}}},
		{Provider: "q", Model: "b-2", Health: gateway.Health{State: "unknown"}},
	}}}
}

// Check implements admin.Checker.
func (holding) Check(_ context.Context, provider string) ([]gateway.Check, error) {
	if provider != "" && provider != "p" {
		return nil, cay.Errorf(cay.NotFound, "provider %q not found", provider)
	}
	return []gateway.Check{{Provider: "p", OK: true, Latency: 12.5, Models: 3}}, nil
}

// managed is a manager and a way to call it, for one test.
type managed struct {
	book *ledger.Book
	mux  *api.Mux
	// as returns the service for the holder of a token.
	as func(secret string) (admin.Service, context.Context)
}

// overEach runs a test on the manager itself, and through the HTTP client.
func overEach(t *testing.T, test func(t *testing.T, m managed)) {
	build := func(t *testing.T) (managed, *admin.Manager) {
		d := dbtest.Open(t)
		book, err := ledger.Open(context.Background(), d, ledger.Options{Accounts: holding{}})
		checktest.OK(t, err)
		t.Cleanup(func() { checktest.OK(t, book.Close()) })
		manager := &admin.Manager{Book: book, Models: holding{}, Checker: holding{}, Projects: holding{}}
		mux := api.NewMux(holding{})
		admin.Routes(mux, manager)
		mux.ServeOpenAPI("test")
		return managed{book: book, mux: mux}, manager
	}
	t.Run("Manager", func(t *testing.T) {
		t.Parallel()
		m, manager := build(t)
		m.as = func(secret string) (admin.Service, context.Context) {
			return manager, api.WithPrincipal(t.Context(), holders[secret])
		}
		test(t, m)
	})
	t.Run("Client", func(t *testing.T) {
		t.Parallel()
		m, _ := build(t)
		srv := httptest.NewUnstartedServer(nil)
		srv.Config = api.NewServer(described(t, m.mux), nil, slog.New(slog.DiscardHandler))
		srv.Start()
		t.Cleanup(srv.Close)
		m.as = func(secret string) (admin.Service, context.Context) {
			return &gateway.Client{URL: srv.URL, Token: secret, HTTPClient: srv.Client()}, t.Context()
		}
		test(t, m)
	})
}

// managedSpec is the OpenAPI description of the routes.
var managedSpec = sync.OnceValues(func() (*openapi3.T, error) {
	mux := api.NewMux(holding{})
	admin.Routes(mux, &admin.Manager{})
	mux.ServeOpenAPI("test")
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/openapi.json", nil))
	loader := openapi3.NewLoader()
	doc, err := loader.LoadFromData(w.Body.Bytes())
	if err != nil {
		return nil, err
	}
	return doc, doc.Validate(loader.Context)
})

// described checks every answer of h, and every accepted body, against the description.
func described(t *testing.T, h *api.Mux) http.Handler {
	doc, err := managedSpec()
	checktest.OK(t, err)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/events") { // an endless stream
			h.ServeHTTP(w, r)
			return
		}
		sent, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(sent))
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		path := r.URL.Path
		for _, kind := range []string{"keys", "requests"} {
			if rest, ok := strings.CutPrefix(path, "/v1/gateway/"+kind+"/"); ok && rest != "" {
				path = "/v1/gateway/" + kind + "/{id}"
				if strings.HasSuffix(rest, "/body") {
					path += "/body"
				}
			}
		}
		if rest, ok := strings.CutPrefix(path, "/v1/gateway/budgets/"); ok && rest != "" {
			path = "/v1/gateway/budgets/{scope}"
		}
		if rest, ok := strings.CutPrefix(path, "/v1/gateway/providers/"); ok && rest != "" {
			path = "/v1/gateway/providers/{name}"
		}
		if rest, ok := strings.CutPrefix(path, "/v1/gateway/credentials/"); ok && rest != "" {
			path = "/v1/gateway/credentials/{provider}/{name}"
		}
		if item := doc.Paths.Value(path); item == nil {
			t.Errorf("%s is not described", path)
		} else {
			op := item.GetOperation(r.Method)
			conforms(t, r.Method+" "+path, op, rec, sent)
		}
		for name, v := range rec.Header() {
			w.Header()[name] = v
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes()) // fails only when the client left
	})
}

func conforms(t *testing.T, name string, op *openapi3.Operation, rec *httptest.ResponseRecorder, sent []byte) {
	visit := func(what string, schema *openapi3.SchemaRef, b []byte) {
		var v any
		if err := json.Unmarshal(b, &v); err != nil {
			t.Errorf("%s, %s: %v", name, what, err)
		} else if err := schema.Value.VisitJSON(v); err != nil {
			t.Errorf("%s, %s %s: %v", name, what, b, err)
		}
	}
	if rec.Code/100 == 2 && op.RequestBody != nil {
		visit("request", op.RequestBody.Value.Content["application/json"].Schema, sent)
	}
	resp := op.Responses.Value(fmt.Sprint(rec.Code))
	if resp == nil {
		resp = op.Responses.Default()
	}
	if media := resp.Value.Content["application/json"]; media != nil {
		visit("answer", media.Schema, rec.Body.Bytes())
	} else if rec.Body.Len() > 0 {
		t.Errorf("%s answers with %d bytes", name, rec.Body.Len())
	}
}

// Every route is described, and every description has a route.
func TestRoutes_Described(t *testing.T) {
	t.Parallel()
	doc, err := managedSpec()
	checktest.OK(t, err)
	mux := api.NewMux(holding{})
	admin.Routes(mux, &admin.Manager{})
	mux.ServeOpenAPI("test")
	var has []string
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			has = append(has, method+" "+path)
		}
	}
	want := mux.Routes()
	slices.Sort(has)
	slices.Sort(want)
	if !slices.Equal(has, want) {
		t.Errorf("described  %v\nregistered %v", has, want)
	}
}

func TestManager_Keys(t *testing.T) {
	t.Parallel()
	overEach(t, func(t *testing.T, m managed) {
		team, ctx := m.as("team")
		project, pctx := m.as("project")
		other, octx := m.as("other")
		expires := time.Now().Add(time.Hour).UTC()
		k, err := team.CreateKey(ctx, gateway.CreateKeyParams{
			Name: "ci", Tags: []string{"x"}, ExpiresAt: &expires, Budget: &gateway.BudgetParams{Limit: gateway.Dollar, Period: gateway.Daily, AlertAt: []int{80}},
			KeyScope: gateway.KeyScope{Models: []string{"a/*"}, Providers: []string{"p"}, RequestsPerMinute: 1, TokensPerMinute: 2, Concurrency: 3, MaxOutputTokens: 4, Cache: gateway.Duration(time.Minute)},
		})
		checktest.OK(t, err)
		if !ledger.IsSecret(k.Secret) || k.ProjectID != account.DefaultProject || k.Budget == nil || k.Budget.AlertAt[0] != 80 || k.Budget.Ref != k.ID || !k.ExpiresAt.Equal(expires.Truncate(time.Millisecond)) {
			t.Errorf("the key is %+v, its budget %+v", k, k.Budget)
		}
		got, err := team.GetKey(ctx, k.ID)
		checktest.OK(t, err)
		k.Secret = ""
		if !reflect.DeepEqual(got, k) {
			t.Errorf("got  %+v\nwant %+v", got, k)
		}
		mine, err := project.CreateKey(pctx, gateway.CreateKeyParams{})
		checktest.OK(t, err)
		if mine.ProjectID != "prj_two" {
			t.Errorf("it is of project %q", mine.ProjectID)
		}
		for who, want := range map[string][]string{"team": {mine.ID, k.ID}, "project": {mine.ID}, "other": nil} {
			svc, ctx := m.as(who)
			page, err := svc.ListKeys(ctx, gateway.ListParams{})
			checktest.OK(t, err)
			var ids []string
			for _, k := range page.Items {
				ids = append(ids, k.ID)
			}
			slices.Sort(ids)
			slices.Sort(want)
			if !slices.Equal(ids, want) || page.Next != "" {
				t.Errorf("%s sees %v, want %v", who, ids, want)
			}
		}
		page, err := team.ListKeys(ctx, gateway.ListParams{Limit: 1})
		checktest.OK(t, err)
		rest, err := team.ListKeys(ctx, gateway.ListParams{Limit: 1, Cursor: page.Next})
		checktest.OK(t, err)
		if len(page.Items) != 1 || len(rest.Items) != 1 || page.Items[0].ID == rest.Items[0].ID || rest.Next != "" {
			t.Errorf("pages are %v and %v", page, rest)
		}

		yes, name := true, "new"
		got, err = team.UpdateKey(ctx, k.ID, gateway.UpdateKeyParams{Name: &name, Disabled: &yes, Scope: &gateway.KeyScope{}, Tags: &[]string{}, ExpiresAt: new(time.Time)})
		checktest.OK(t, err)
		if got.Name != "new" || !got.Disabled || got.Models != nil || got.ExpiresAt != nil || len(got.Tags) != 0 {
			t.Errorf("it is %+v", got)
		}
		for _, svc := range []struct {
			admin.Service
			ctx context.Context
		}{{project, pctx}, {other, octx}} {
			_, err = svc.GetKey(svc.ctx, k.ID)
			checktest.Code(t, err, cay.NotFound)
			_, err = svc.UpdateKey(svc.ctx, k.ID, gateway.UpdateKeyParams{})
			checktest.Code(t, err, cay.NotFound)
			checktest.Code(t, svc.DeleteKey(svc.ctx, k.ID), cay.NotFound)
		}
		_, err = project.CreateKey(pctx, gateway.CreateKeyParams{ProjectID: account.DefaultProject})
		checktest.Code(t, err, cay.NotFound)
		_, err = team.CreateKey(ctx, gateway.CreateKeyParams{ProjectID: "prj_none"})
		checktest.Code(t, err, cay.NotFound)
		_, err = other.CreateKey(octx, gateway.CreateKeyParams{})
		checktest.Code(t, err, cay.Invalid)
		past := time.Now().Add(-time.Second)
		for says, p := range map[string]gateway.CreateKeyParams{
			"name has 129":                  {Name: strings.Repeat("x", 129)},
			"name":                          {Name: "a\nb"},
			"expires_at":                    {ExpiresAt: &past},
			"tags has 33":                   {Tags: strings.Split(strings.Repeat("x,", 32)+"x", ",")},
			"tags has \"x\" twice":          {Tags: []string{"x", "x"}},
			"models has an empty":           {KeyScope: gateway.KeyScope{Models: []string{""}}},
			"requests_per_minute is -1":     {KeyScope: gateway.KeyScope{RequestsPerMinute: -1}},
			"concurrency is 2000000000":     {KeyScope: gateway.KeyScope{Concurrency: 2_000_000_000}},
			"cache is 721h":                 {KeyScope: gateway.KeyScope{Cache: gateway.Duration(721 * time.Hour)}},
			"limit is -0.000000000001":      {Budget: &gateway.BudgetParams{Limit: -1, Period: gateway.Daily}},
			`period "" is not one of daily`: {Budget: &gateway.BudgetParams{}},
		} {
			if _, err := team.CreateKey(ctx, p); cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), says) {
				t.Errorf("error is %v; want one that says %q", err, says)
			}
			if p.Budget == nil {
				u := gateway.UpdateKeyParams{Name: &p.Name, Scope: &p.KeyScope, Tags: &p.Tags, ExpiresAt: p.ExpiresAt}
				if _, err := team.UpdateKey(ctx, k.ID, u); cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), says) {
					t.Errorf("error is %v; want one that says %q", err, says)
				}
			}
		}
		for _, p := range []gateway.ListParams{{Limit: 201}, {Limit: -1}, {Cursor: "x"}} {
			_, err := team.ListKeys(ctx, p)
			checktest.Code(t, err, cay.Invalid)
		}
		checktest.OK(t, team.DeleteKey(ctx, k.ID))
		checktest.Code(t, team.DeleteKey(ctx, k.ID), cay.NotFound)
		for _, id := range []string{"", ".", "..", "a/b", "%00", "gk_x y"} {
			_, err := team.GetKey(ctx, id)
			checktest.Code(t, err, cay.NotFound)
		}
	})
}

func TestManager_Budgets(t *testing.T) {
	t.Parallel()
	overEach(t, func(t *testing.T, m managed) {
		operator, actx := m.as("admin")
		team, ctx := m.as("team")
		project, pctx := m.as("project")
		other, octx := m.as("other")
		params := gateway.BudgetParams{Limit: 5 * gateway.Dollar, Period: gateway.Monthly, AlertAt: []int{50, 100}, IncludeBYOK: true, AllowUnpriced: true}
		key, err := project.CreateKey(pctx, gateway.CreateKeyParams{})
		checktest.OK(t, err)
		ids := []gateway.BudgetID{
			{Scope: gateway.ScopeProject}, {Scope: gateway.ScopeProject, Ref: "prj_two"}, {Scope: gateway.ScopeKey, Ref: key.ID}, {Scope: gateway.ScopeKey, Ref: "tok_team"},
			{Scope: gateway.ScopeUser, Ref: "a/b c%é"}, {Scope: gateway.ScopeTag, Ref: ".."},
		}
		for _, id := range ids {
			b, err := team.SetBudget(ctx, id, params)
			checktest.OK(t, err)
			if b.BudgetID != id || !reflect.DeepEqual(b.BudgetParams, params) || b.Spent != 0 || b.ResetAt == nil {
				t.Errorf("it is %+v", b)
			}
			got, err := team.GetBudget(ctx, id)
			checktest.OK(t, err)
			if !reflect.DeepEqual(got, b) {
				t.Errorf("got  %+v\nwant %+v", got, b)
			}
			_, err = other.GetBudget(octx, id)
			checktest.Code(t, err, cay.NotFound)
			checktest.Code(t, project.DeleteBudget(pctx, id), cay.PermissionDenied)
			_, err = project.SetBudget(pctx, id, params)
			checktest.Code(t, err, cay.PermissionDenied)
		}
		got, err := team.GetBudget(ctx, gateway.BudgetID{Scope: gateway.ScopeProject, Ref: "prj_default"}) // by the default
		checktest.OK(t, err)
		if got.Ref != "prj_default" || got.Limit != params.Limit {
			t.Errorf("it is %+v", got)
		}
		for _, id := range ids[1:3] { // its own
			_, err := project.GetBudget(pctx, id)
			checktest.OK(t, err)
		}
		for _, id := range []gateway.BudgetID{ids[0], ids[3], ids[4], ids[5], {Scope: gateway.ScopeProject, Ref: "prj_default"}} {
			_, err := project.GetBudget(pctx, id)
			checktest.Code(t, err, cay.NotFound)
		}
		for _, id := range []gateway.BudgetID{{Scope: gateway.ScopeTeam}, {Scope: gateway.ScopeTeam, Ref: account.DefaultTeam}} {
			_, err := team.SetBudget(ctx, id, params)
			checktest.Code(t, err, cay.PermissionDenied)
			checktest.Code(t, team.DeleteBudget(ctx, id), cay.PermissionDenied)
			_, err = operator.SetBudget(actx, id, params)
			checktest.OK(t, err)
		}
		_, err = other.GetBudget(octx, gateway.BudgetID{Scope: gateway.ScopeTeam, Ref: "team_other"}) // by the default of teams
		checktest.OK(t, err)
		_, err = operator.SetBudget(actx, gateway.BudgetID{Scope: gateway.ScopeTeam, Ref: "team_other"}, params)
		checktest.Code(t, err, cay.NotFound)

		list := func(svc admin.Service, ctx context.Context) (n int) {
			for p := (gateway.ListParams{Limit: 3}); ; {
				page, err := svc.ListBudgets(ctx, p)
				checktest.OK(t, err)
				n += len(page.Items)
				if p.Cursor = page.Next; p.Cursor == "" {
					return n
				}
			}
		}
		if a, b, c := list(operator, actx), list(team, ctx), list(other, octx); a != 8 || b != 7 || c != 0 {
			t.Errorf("they see %d, %d and %d budgets; want 8, 7 and 0", a, b, c)
		}
		_, err = project.ListBudgets(pctx, gateway.ListParams{})
		checktest.Code(t, err, cay.PermissionDenied)
		for says, f := range map[string]func() error{
			"scope \"city\"": func() error { _, err := team.SetBudget(ctx, gateway.BudgetID{Scope: "city"}, params); return err },
			"ref has 257": func() error {
				_, err := team.GetBudget(ctx, gateway.BudgetID{Scope: gateway.ScopeUser, Ref: strings.Repeat("x", 257)})
				return err
			},
			"limit is 1000000.000000000001": func() error {
				_, err := team.SetBudget(ctx, ids[0], gateway.BudgetParams{Limit: 1_000_000*gateway.Dollar + 1, Period: gateway.Daily})
				return err
			},
			"period \"yearly\"": func() error {
				_, err := team.SetBudget(ctx, ids[0], gateway.BudgetParams{Period: "yearly"})
				return err
			},
			"alert_at has 101": func() error {
				_, err := team.SetBudget(ctx, ids[0], gateway.BudgetParams{Period: gateway.Daily, AlertAt: []int{101}})
				return err
			},
			"alert_at has 11": func() error {
				_, err := team.SetBudget(ctx, ids[0], gateway.BudgetParams{Period: gateway.Daily, AlertAt: make([]int, 11)})
				return err
			},
			"cursor": func() error { _, err := team.ListBudgets(ctx, gateway.ListParams{Cursor: "x"}); return err },
		} {
			if err := f(); cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), says) {
				t.Errorf("error is %v; want one that says %q", err, says)
			}
		}
		for _, id := range []gateway.BudgetID{{Scope: gateway.ScopeProject, Ref: "prj_none"}, {Scope: gateway.ScopeKey, Ref: "gk_none"}} {
			_, err := team.SetBudget(ctx, id, params)
			checktest.Code(t, err, cay.NotFound)
		}
		for _, id := range ids {
			checktest.OK(t, team.DeleteBudget(ctx, id))
			checktest.Code(t, team.DeleteBudget(ctx, id), cay.NotFound)
		}
	})
}

func TestManager_Records(t *testing.T) {
	t.Parallel()
	overEach(t, func(t *testing.T, m managed) {
		cost := gateway.Dollar / 8
		at := time.Now().UTC().Truncate(time.Millisecond).Add(-time.Hour)
		var ids []string
		for i, project := range []string{account.DefaultProject, "prj_two", "prj_two"} {
			r := &gateway.Request{
				CreatedAt: at.Add(time.Duration(i) * time.Minute), TeamID: account.DefaultTeam, ProjectID: project, KeyID: fmt.Sprint("k", i), User: "u", Tags: []string{"x"}, Session: "s",
				Surface: "messages", Kind: "language", Model: "b", Served: "a/b", Provider: "p", Status: gateway.Succeeded, HTTPStatus: 200, Cost: &cost, MarketCost: &cost,
				Tokens: gateway.Tokens{Input: 5, Output: 6}, Attempts: []gateway.Attempt{{Model: "a/b", Provider: "p", ProviderModel: "b-1", StartedAt: at, OK: true}},
			}
			if i == 2 {
				r.Status, r.Cost, r.MarketCost, r.Attempts = gateway.Refused, nil, nil, nil
			}
			checktest.OK(t, m.book.Record(r))
			ids = append(ids, r.ID)
		}
		for _, tt := range []struct {
			who    string
			filter gateway.RequestFilter
			want   []string
		}{
			{"admin", gateway.RequestFilter{}, []string{ids[2], ids[1], ids[0]}},
			{"team", gateway.RequestFilter{Since: at.Add(time.Second), Until: at.Add(2 * time.Minute)}, []string{ids[1]}},
			{"team", gateway.RequestFilter{KeyID: "k1", User: "u", Tag: "x", Model: "a/b", Session: "s", Provider: "p", ProjectID: "prj_two", Status: gateway.Succeeded}, []string{ids[1]}},
			{"project", gateway.RequestFilter{}, []string{ids[2], ids[1]}},
			{"project", gateway.RequestFilter{ProjectID: account.DefaultProject}, nil},
			{"other", gateway.RequestFilter{}, nil},
		} {
			svc, ctx := m.as(tt.who)
			tt.filter.Limit = 1
			var got []string
			for {
				page, err := svc.ListRequests(ctx, tt.filter)
				checktest.OK(t, err)
				for _, r := range page.Items {
					got = append(got, r.ID)
				}
				if tt.filter.Cursor = page.Next; page.Next == "" {
					break
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%s, %+v: %v, want %v", tt.who, tt.filter, got, tt.want)
			}
		}
		team, ctx := m.as("team")
		r, err := team.GetRequest(ctx, ids[2])
		checktest.OK(t, err)
		if r.Cost != nil || r.Status != gateway.Refused || !r.CreatedAt.Equal(at.Add(2*time.Minute)) {
			t.Errorf("it is %+v", r)
		}
		project, pctx := m.as("project")
		_, err = project.GetRequest(pctx, ids[0])
		checktest.Code(t, err, cay.NotFound)

		rows, err := team.Spend(ctx, gateway.SpendParams{By: []string{"project", "model"}, User: "u"})
		checktest.OK(t, err)
		want := []gateway.Spend{
			{Group: map[string]string{"project": "prj_default", "model": "a/b"}, Requests: 1, Cost: cost, MarketCost: cost, Tokens: gateway.Tokens{Input: 5, Output: 6}},
			{Group: map[string]string{"project": "prj_two", "model": "a/b"}, Requests: 2, Refused: 1, Unpriced: 1, Cost: cost, MarketCost: cost, Tokens: gateway.Tokens{Input: 10, Output: 12}},
		}
		if !reflect.DeepEqual(rows, want) {
			t.Errorf("got  %+v\nwant %+v", rows, want)
		}
		other, octx := m.as("other")
		if rows, err = other.Spend(octx, gateway.SpendParams{}); err != nil || len(rows) != 0 {
			t.Errorf("another team sees %v, %v", rows, err)
		}
		for says, f := range map[string]func() error{
			"by \"hue\"":    func() error { _, err := team.Spend(ctx, gateway.SpendParams{By: []string{"hue"}}); return err },
			"by \"day\" is": func() error { _, err := team.Spend(ctx, gateway.SpendParams{By: []string{"day", "day"}}); return err },
			"is not before": func() error { _, err := team.Spend(ctx, gateway.SpendParams{Since: at, Until: at}); return err },
			"since": func() error {
				_, err := team.ListRequests(ctx, gateway.RequestFilter{Since: at, Until: at})
				return err
			},
			"status \"odd\"": func() error { _, err := team.ListRequests(ctx, gateway.RequestFilter{Status: "odd"}); return err },
			"1001":           func() error { _, err := team.ListRequests(ctx, gateway.RequestFilter{Limit: 1001}); return err },
			"cursor":         func() error { _, err := team.ListRequests(ctx, gateway.RequestFilter{Cursor: "x"}); return err },
		} {
			if err := f(); cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), says) {
				t.Errorf("error is %v; want one that says %q", err, says)
			}
		}
	})
}

func TestManager_ModelsAndCheck(t *testing.T) {
	t.Parallel()
	overEach(t, func(t *testing.T, m managed) {
		team, ctx := m.as("team")
		models, err := team.ListModels(ctx)
		checktest.OK(t, err)
		if !reflect.DeepEqual(models, holding{}.Models()) {
			t.Errorf("got  %+v\nwant %+v", models, holding{}.Models())
		}
		_, err = team.Check(ctx, "")
		checktest.Code(t, err, cay.PermissionDenied)
		operator, actx := m.as("admin")
		checks, err := operator.Check(actx, "p")
		checktest.OK(t, err)
		if len(checks) != 1 || !checks[0].OK || checks[0].Models != 3 {
			t.Errorf("it is %+v", checks)
		}
		_, err = operator.Check(actx, "none")
		checktest.Code(t, err, cay.NotFound)
	})
}

func TestManager_Unauthenticated(t *testing.T) {
	t.Parallel()
	m := &admin.Manager{}
	for name, f := range map[string]func(ctx context.Context) error{
		"CreateKey": func(ctx context.Context) error { _, err := m.CreateKey(ctx, gateway.CreateKeyParams{}); return err },
		"GetKey":    func(ctx context.Context) error { _, err := m.GetKey(ctx, "x"); return err },
		"ListKeys":  func(ctx context.Context) error { _, err := m.ListKeys(ctx, gateway.ListParams{}); return err },
		"UpdateKey": func(ctx context.Context) error {
			_, err := m.UpdateKey(ctx, "x", gateway.UpdateKeyParams{})
			return err
		},
		"DeleteKey": func(ctx context.Context) error { return m.DeleteKey(ctx, "x") },
		"SetBudget": func(ctx context.Context) error {
			_, err := m.SetBudget(ctx, gateway.BudgetID{}, gateway.BudgetParams{})
			return err
		},
		"GetBudget":         func(ctx context.Context) error { _, err := m.GetBudget(ctx, gateway.BudgetID{}); return err },
		"ListBudgets":       func(ctx context.Context) error { _, err := m.ListBudgets(ctx, gateway.ListParams{}); return err },
		"DeleteBudget":      func(ctx context.Context) error { return m.DeleteBudget(ctx, gateway.BudgetID{}) },
		"ListRequests":      func(ctx context.Context) error { _, err := m.ListRequests(ctx, gateway.RequestFilter{}); return err },
		"GetRequest":        func(ctx context.Context) error { _, err := m.GetRequest(ctx, "x"); return err },
		"GetRequestBody":    func(ctx context.Context) error { _, err := m.GetRequestBody(ctx, "gen_x"); return err },
		"DeleteRequestBody": func(ctx context.Context) error { return m.DeleteRequestBody(ctx, "gen_x") },
		"FollowRequests": func(ctx context.Context) error {
			for _, err := range m.FollowRequests(ctx, gateway.RequestFilter{}, "") {
				return err
			}
			return nil
		},
		"Spend":      func(ctx context.Context) error { _, err := m.Spend(ctx, gateway.SpendParams{}); return err },
		"ListModels": func(ctx context.Context) error { _, err := m.ListModels(ctx); return err },
	} {
		if err := f(t.Context()); cay.CodeOf(err) != cay.Unauthenticated {
			t.Errorf("%s: %v", name, err)
		}
	}
}
