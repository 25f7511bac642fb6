package sandbox

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// Client works with the sandboxes of a cay daemon over HTTP. The zero value is
// ready to use: it finds the daemon and a token in the environment. A Client is
// safe for concurrent use, and must not be copied after its first use.
//
// Every method honours its context, which for streams also bounds their life,
// and none has a timeout of its own. Errors are *cay.Error with the codes the
// daemon gave, so errors.Is(err, &cay.Error{Code: cay.NotFound}) works;
// unavailable means that the daemon could not be reached.
type Client struct {
	// URL is the daemon's address. Empty means $CAY_URL, else http://127.0.0.1:7070.
	URL string
	// Token is sent with every request. Empty means $CAY_TOKEN, else, if the
	// daemon is on this machine, the content of admin.token in its data
	// directory ($CAY_DATA, else /var/lib/cay for root and ~/.local/share/cay
	// for others) if that can be read.
	Token string
	// Team is the team to speak for. Only admin tokens may choose one; empty
	// means the token's own.
	Team string
	// HTTPClient sends the requests. Nil means one shared by all Clients.
	// Redirects are not followed, whatever its policy.
	HTTPClient *http.Client

	mu   sync.Mutex // guards conn
	conn *wire.Conn // nil until the first use
}

// ClientOptions has the fields of a Client.
type ClientOptions struct {
	URL, Token, Team string
	HTTPClient       *http.Client
}

// NewClient returns a Client with the given options; see Client for the meaning
// of empty options. NewClient does not connect.
func NewClient(o ClientOptions) *Client {
	return &Client{URL: o.URL, Token: o.Token, Team: o.Team, HTTPClient: o.HTTPClient}
}

// dial returns the connection settings, resolved once.
func (c *Client) dial() (*wire.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		conn, err := wire.Target{URL: c.URL, Token: c.Token, Team: c.Team, HTTPClient: c.HTTPClient}.Resolve()
		if err != nil {
			return nil, err
		}
		c.conn = conn
	}
	return c.conn, nil
}

func (c *Client) call(ctx context.Context, r wire.Request, out any) error {
	conn, err := c.dial()
	if err != nil {
		return err
	}
	return conn.Call(ctx, r, out)
}

// do sends r; the caller must close the body of the answer.
func (c *Client) do(ctx context.Context, r wire.Request) (*http.Response, *wire.Conn, error) {
	conn, err := c.dial()
	if err != nil {
		return nil, nil, err
	}
	resp, err := conn.Do(ctx, r)
	return resp, conn, err
}

// endpoint joins the elements of an API path below /v1/sandboxes, escaped.
func endpoint(ref string, elems ...string) (string, error) {
	return pathOf("/v1/sandboxes", "sandbox", ref, elems...)
}

// pathOf joins the elements of an API path below base, escaped. The first names
// a thing of the given kind.
func pathOf(base, kind, ref string, elems ...string) (string, error) {
	var b strings.Builder
	b.WriteString(base)
	for i, e := range append([]string{ref}, elems...) {
		// Servers and proxies read these as something other than a name.
		if e == "" || e == "." || e == ".." {
			if i > 0 {
				kind = "command"
			}
			return "", cay.Errorf(cay.NotFound, "%s %q not found", kind, e)
		}
		b.WriteByte('/')
		b.WriteString(url.PathEscape(e))
	}
	return b.String(), nil
}

// fetch sends r and decodes the object it answers with.
func fetch[T any](ctx context.Context, c *Client, r wire.Request) (*T, error) {
	out := new(T)
	if err := c.call(ctx, r, out); err != nil {
		return nil, err
	}
	return out, nil
}

// one calls an operation on a sandbox, and decodes the object in the answer.
func one[T any](ctx context.Context, c *Client, method string, body any, ref string, elems ...string) (*T, error) {
	p, err := endpoint(ref, elems...)
	if err != nil {
		return nil, err
	}
	return fetch[T](ctx, c, wire.Request{Method: method, Path: p, JSON: body})
}

// none calls an operation on a sandbox whose answer has no body.
func (c *Client) none(ctx context.Context, method string, body any, ref string, elems ...string) error {
	p, err := endpoint(ref, elems...)
	if err != nil {
		return err
	}
	return c.call(ctx, wire.Request{Method: method, Path: p, JSON: body}, nil)
}

// Create makes a sandbox and returns when it answers commands. Errors: invalid,
// source_unavailable, already_exists (name), not_found (image), quota_exceeded, no_space,
// unavailable. If p has no IdempotencyKey, Create generates one, so that
// repeating a request whose answer was lost does not make a second sandbox.
func (c *Client) Create(ctx context.Context, p CreateParams) (*Sandbox, error) {
	key := p.IdempotencyKey
	if key == "" {
		key = rand.Text()
	}
	if err := checkKey(key); err != nil {
		return nil, err
	}
	out := new(Sandbox)
	err := c.call(ctx, wire.Request{
		Method: http.MethodPost,
		Path:   "/v1/sandboxes",
		Header: http.Header{wire.HeaderIdempotency: {key}},
		JSON:   p,
		Repeat: true,
	}, out)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// checkKey checks an idempotency key.
func checkKey(key string) error {
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r >= 0x7f }) || len(key) > 255 {
		return cay.Errorf(cay.Invalid, "idempotency key %q is not 1 to 255 visible ASCII characters", key)
	}
	return nil
}

// Get returns a sandbox by its id, its name, or the id of one of its sessions,
// ended or not.
func (c *Client) Get(ctx context.Context, ref string) (*Sandbox, error) {
	return one[Sandbox](ctx, c, http.MethodGet, nil, ref)
}

var tagKey = strings.NewReplacer("%", "%25", "=", "%3D")

// List returns one page of sandboxes, newest first unless p says otherwise.
func (c *Client) List(ctx context.Context, p ListParams) (*Page[Sandbox], error) {
	q := url.Values{}
	setString(q, "project", p.ProjectID)
	setBool(q, "kept", p.Resumable)
	setTime(q, "created_after", p.CreatedAfter)
	setTime(q, "created_before", p.CreatedBefore)
	setString(q, "name_prefix", p.NamePrefix)
	setString(q, "order", string(p.Order))
	setBool(q, "ascending", p.Ascending)
	setString(q, "cursor", p.Cursor)
	setInt(q, "limit", int64(p.Limit))
	for _, s := range p.Status {
		q.Add("status", string(s))
	}
	for k, v := range p.Tags {
		q.Add("tag", tagKey.Replace(k)+"="+v)
	}
	return fetch[Page[Sandbox]](ctx, c, wire.Request{Method: http.MethodGet, Path: "/v1/sandboxes", Query: q})
}

// Update changes a sandbox. Changes to a sandbox that has ended apply from its
// next session on. Errors: invalid, sandbox_stopped, conflict.
func (c *Client) Update(ctx context.Context, ref string, p UpdateParams) (*Sandbox, error) {
	return one[Sandbox](ctx, c, http.MethodPatch, p, ref)
}

// Extend moves the end of a running sandbox by d. Errors: invalid (beyond the
// operator's maximum), sandbox_stopped.
func (c *Client) Extend(ctx context.Context, ref string, d Duration) (*Sandbox, error) {
	return one[Sandbox](ctx, c, http.MethodPost, map[string]Duration{"duration_ms": d}, ref, "extend")
}

// Stop ends a sandbox and returns when all its processes have ended. Stopping a
// stopped sandbox does nothing.
func (c *Client) Stop(ctx context.Context, ref string) (*Sandbox, error) {
	return one[Sandbox](ctx, c, http.MethodPost, nil, ref, "stop")
}

// Pause freezes all processes. Errors: sandbox_stopped, conflict.
func (c *Client) Pause(ctx context.Context, ref string) (*Sandbox, error) {
	return one[Sandbox](ctx, c, http.MethodPost, nil, ref, "pause")
}

// Resume makes a sandbox run. A paused or hibernated sandbox continues. A
// persistent sandbox that has ended is started from its saved files; with
// ResumeParams.Fresh a sandbox that is not persistent is started, too. A running
// sandbox is left alone. Resume waits for a sandbox that is stopping or being
// created. Errors: sandbox_stopped (not persistent), not_found (its snapshot is
// gone), not_supported (hibernated by a build with other programs; see ResumeParams),
// quota_exceeded, no_space, unavailable.
func (c *Client) Resume(ctx context.Context, ref string, p ResumeParams) (*Sandbox, error) {
	return one[Sandbox](ctx, c, http.MethodPost, p, ref, "resume")
}

// Delete stops a sandbox and deletes it, with its automatic snapshots except
// those that other sandboxes start from.
func (c *Client) Delete(ctx context.Context, ref string) error {
	return c.DeleteWith(ctx, ref, DeleteParams{})
}

// DeleteWith is Delete with options.
func (c *Client) DeleteWith(ctx context.Context, ref string, p DeleteParams) error {
	path, err := endpoint(ref)
	if err != nil {
		return err
	}
	q := url.Values{}
	setBool(q, "keep_snapshots", p.KeepSnapshots)
	return c.call(ctx, wire.Request{Method: http.MethodDelete, Path: path, Query: q}, nil)
}

// Stats reads the counters of a running sandbox. Errors: sandbox_stopped.
func (c *Client) Stats(ctx context.Context, ref string) (*Stats, error) {
	return one[Stats](ctx, c, http.MethodGet, nil, ref, "stats")
}

func setString(q url.Values, name, v string) {
	if v != "" {
		q.Set(name, v)
	}
}

func setInt(q url.Values, name string, v int64) {
	if v != 0 {
		q.Set(name, strconv.FormatInt(v, 10))
	}
}

func setTime(q url.Values, name string, t time.Time) {
	if !t.IsZero() {
		q.Set(name, t.UTC().Format(time.RFC3339Nano))
	}
}

func setBool(q url.Values, name string, v bool) {
	if v {
		q.Set(name, "true")
	}
}
