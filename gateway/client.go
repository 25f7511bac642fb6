package gateway

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cayhq/cay/internal/wire"
)

// Client manages the gateway of a daemon. The zero value speaks to the daemon
// named by CAY_URL with the token in CAY_TOKEN, or else to the daemon on this
// machine with its admin token, if the caller may read it. Methods may be called
// concurrently.
//
// Keys of the gateway are for calls of models; Client takes a token of the daemon.
// A token that is bound to a project reaches the keys, requests and spending of
// that project.
//
// Errors are *cay.Error. Beside the codes each method names, all can return
// unauthenticated, unavailable (the daemon does not answer, or cannot record
// spending), no_space, canceled and deadline_exceeded (ctx ended), and not_found
// for an id the token does not reach.
type Client struct {
	// URL is the daemon's address, not the gateway's. Empty means $CAY_URL, else
	// http://127.0.0.1:7070.
	URL string
	// Token is the secret of a token. Empty means $CAY_TOKEN, else the
	// admin.token file, which is used for a daemon on this machine only.
	Token string
	// Team is the team that an admin token acts for. Empty means the default team.
	Team string
	// HTTPClient sends the requests. Nil means one shared by the process.
	HTTPClient *http.Client
}

// CreateKey makes a key; only this answer carries its secret. Errors: invalid,
// not_found (the project), quota_exceeded (10,000 keys).
func (c *Client) CreateKey(ctx context.Context, p CreateKeyParams) (*Key, error) {
	return call[Key](ctx, c, wire.Request{Method: "POST", Path: "/v1/gateway/keys", JSON: p})
}

// GetKey returns a key, with its budget.
func (c *Client) GetKey(ctx context.Context, id string) (*Key, error) {
	return call[Key](ctx, c, wire.Request{Method: "GET", Path: path("keys", id)})
}

// ListKeys lists keys, newest first. Errors: invalid.
func (c *Client) ListKeys(ctx context.Context, p ListParams) (*Page[Key], error) {
	return call[Page[Key]](ctx, c, wire.Request{Method: "GET", Path: "/v1/gateway/keys", Query: p.query()})
}

// UpdateKey changes a key; requests that begin after UpdateKey returns see the
// change. Errors: invalid.
func (c *Client) UpdateKey(ctx context.Context, id string, p UpdateKeyParams) (*Key, error) {
	return call[Key](ctx, c, wire.Request{Method: "PATCH", Path: path("keys", id), JSON: p, Repeat: true})
}

// DeleteKey deletes a key and its budget: no request that begins after DeleteKey
// returns is admitted. The records of the key's requests stay.
func (c *Client) DeleteKey(ctx context.Context, id string) error {
	return c.do(ctx, wire.Request{Method: "DELETE", Path: path("keys", id)})
}

// SetBudget sets or replaces a budget. Replacing a budget keeps the amount spent;
// a new budget counts from now. Budgets of the scope team need an admin token.
// Errors: invalid, permission_denied (a token of a project), quota_exceeded
// (10,000 budgets).
func (c *Client) SetBudget(ctx context.Context, id BudgetID, p BudgetParams) (*Budget, error) {
	return call[Budget](ctx, c, wire.Request{Method: "PUT", Path: path("budgets", string(id.Scope)), Query: id.query(), JSON: p, Repeat: true})
}

// GetBudget returns the budget of a spender: the spender's own, or the default of
// the scope. With an empty Ref it returns the default. Errors: invalid.
func (c *Client) GetBudget(ctx context.Context, id BudgetID) (*Budget, error) {
	return call[Budget](ctx, c, wire.Request{Method: "GET", Path: path("budgets", string(id.Scope)), Query: id.query()})
}

// ListBudgets lists the budgets that were set, sorted by scope and Ref. Errors:
// invalid, permission_denied (a token of a project).
func (c *Client) ListBudgets(ctx context.Context, p ListParams) (*Page[Budget], error) {
	return call[Page[Budget]](ctx, c, wire.Request{Method: "GET", Path: "/v1/gateway/budgets", Query: p.query()})
}

// DeleteBudget deletes a budget. The spender has the default of the scope from
// then on, if there is one. Errors: invalid, permission_denied, as SetBudget.
func (c *Client) DeleteBudget(ctx context.Context, id BudgetID) error {
	return c.do(ctx, wire.Request{Method: "DELETE", Path: path("budgets", string(id.Scope)), Query: id.query()})
}

// ListRequests lists requests to the gateway, newest first. The list has each
// request as soon as the request has ended. Errors: invalid.
func (c *Client) ListRequests(ctx context.Context, f RequestFilter) (*Page[Request], error) {
	return call[Page[Request]](ctx, c, wire.Request{Method: "GET", Path: "/v1/gateway/requests", Query: f.query()})
}

// FollowRequests yields requests as they end, until ctx ends. It yields the
// requests that f selects (the times, limit and cursor of f are ignored), starting
// after the request with the id after, or from now on if after is empty or no such
// request exists. When the connection breaks, FollowRequests resumes after the
// last request that it has yielded. The last pair is the error that ended it,
// which is never nil. Errors: invalid.
//
//	for r, err := range c.FollowRequests(ctx, gateway.RequestFilter{}, "") {
//		if err != nil {
//			return err
//		}
//		fmt.Println(r.ID, r.Status)
//	}
func (c *Client) FollowRequests(ctx context.Context, f RequestFilter, after string) iter.Seq2[Request, error] {
	return func(yield func(Request, error) bool) { c.follow(ctx, f, after, yield) }
}

// GetRequest returns a request by its generation id.
func (c *Client) GetRequest(ctx context.Context, id string) (*Request, error) {
	return call[Request](ctx, c, wire.Request{Method: "GET", Path: path("requests", id)})
}

// Spend adds up requests and returns a row for each group, sorted by the group's
// values. In a report by tag, a request with several tags counts for each of them.
// Errors: invalid (also for more than 10,000 rows).
func (c *Client) Spend(ctx context.Context, p SpendParams) ([]Spend, error) {
	page, err := call[Page[Spend]](ctx, c, wire.Request{Method: "GET", Path: "/v1/gateway/spend", Query: p.query()})
	if err != nil {
		return nil, err
	}
	return page.Items, nil
}

// ListModels lists the catalogue, sorted by id.
func (c *Client) ListModels(ctx context.Context) ([]Model, error) {
	page, err := call[Page[Model]](ctx, c, wire.Request{Method: "GET", Path: "/v1/gateway/models"})
	if err != nil {
		return nil, err
	}
	return page.Items, nil
}

// Address returns the URL of the gateway itself, where models are called. Errors:
// not_found (the gateway is off), invalid (only the daemon's own machine can reach
// the gateway).
func (c *Client) Address(ctx context.Context) (string, error) {
	at, err := call[struct {
		URL string `json:"url"`
	}](ctx, c, wire.Request{Method: "GET", Path: "/v1/gateway"})
	if err != nil {
		return "", err
	}
	return at.URL, nil
}

// Check sends a small request to a provider, or to all configured providers if the
// name is empty. A provider that does not answer is no error of Check: see the
// results. Admin tokens only. Errors: not_found (the provider), permission_denied.
func (c *Client) Check(ctx context.Context, provider string) ([]Check, error) {
	q := url.Values{}
	if provider != "" {
		q.Set("provider", provider)
	}
	page, err := call[Page[Check]](ctx, c, wire.Request{Method: "POST", Path: "/v1/gateway/check", Query: q, Repeat: true})
	if err != nil {
		return nil, err
	}
	return page.Items, nil
}

func (c *Client) do(ctx context.Context, r wire.Request) error {
	conn, err := c.conn()
	if err != nil {
		return err
	}
	return conn.Call(ctx, r, nil)
}

func (c *Client) conn() (*wire.Conn, error) {
	return wire.Target{URL: c.URL, Token: c.Token, Team: c.Team, HTTPClient: c.HTTPClient}.Resolve()
}

func call[T any](ctx context.Context, c *Client, r wire.Request) (*T, error) {
	conn, err := c.conn()
	if err != nil {
		return nil, err
	}
	out := new(T)
	if err := conn.Call(ctx, r, out); err != nil {
		return nil, err
	}
	return out, nil
}

// path returns the route of one object.
func path(kind, id string) string { return "/v1/gateway/" + kind + "/" + segment(id) }

// segment returns an id as a part of a route. An empty id, or an id of dots, would
// name another route; in brackets it is an id that no object has.
func segment(id string) string {
	if id == "" || id == "." || id == ".." {
		id = "(" + id + ")"
	}
	return url.PathEscape(id)
}

func (p ListParams) query() url.Values { return page(url.Values{}, p.Limit, p.Cursor) }

func page(q url.Values, limit int, cursor string) url.Values {
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	set(q, "cursor", cursor)
	return q
}

func (id BudgetID) query() url.Values {
	q := url.Values{}
	set(q, "ref", id.Ref)
	return q
}

func (f RequestFilter) query() url.Values {
	q := page(url.Values{}, f.Limit, f.Cursor)
	setTime(q, "since", f.Since)
	setTime(q, "until", f.Until)
	set(q, "project_id", f.ProjectID)
	set(q, "key_id", f.KeyID)
	set(q, "user", f.User)
	set(q, "tag", f.Tag)
	set(q, "model", f.Model)
	set(q, "session", f.Session)
	set(q, "provider", f.Provider)
	set(q, "status", string(f.Status))
	return q
}

func (p SpendParams) query() url.Values {
	q := url.Values{}
	setTime(q, "since", p.Since)
	setTime(q, "until", p.Until)
	for _, by := range p.By {
		q.Add("by", by)
	}
	set(q, "project_id", p.ProjectID)
	set(q, "key_id", p.KeyID)
	set(q, "user", p.User)
	set(q, "session", p.Session)
	set(q, "tag", p.Tag)
	for _, tag := range p.Tags {
		q.Add("tag", tag)
	}
	if p.Latency {
		q.Set("latency", "true")
	}
	set(q, "model", p.Model)
	set(q, "provider", p.Provider)
	return q
}

func set(q url.Values, name, v string) {
	if v != "" {
		q.Set(name, v)
	}
}

func setTime(q url.Values, name string, t time.Time) {
	if !t.IsZero() {
		q.Set(name, t.UTC().Format(time.RFC3339Nano))
	}
}
