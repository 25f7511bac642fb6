package account

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cayhq/cay/internal/wire"
)

// Client manages the accounts of a daemon. The zero value uses the daemon at CAY_URL
// with the token in CAY_TOKEN, or else the daemon on this machine with its admin
// token, if the caller may read it. Methods may be called concurrently.
//
// Errors are *cay.Error. Beside the codes each method names, all can return
// unauthenticated, unavailable (the daemon does not answer), canceled and
// deadline_exceeded (ctx ended), and not_found for an id the token does not reach.
type Client struct {
	// URL is the daemon's address. Empty means $CAY_URL, else http://127.0.0.1:7070.
	URL string
	// Token is the secret of a token. Empty means $CAY_TOKEN, else the
	// admin.token file, which is used for a daemon on this machine only.
	Token string
	// Team is the team that an admin token acts for. Empty means the default team.
	Team string
	// HTTPClient sends the requests. Nil means one shared by the process.
	HTTPClient *http.Client
}

// WhoAmI returns the team and project that the token acts for.
func (c *Client) WhoAmI(ctx context.Context) (*Identity, error) {
	return call[Identity](ctx, c, wire.Request{Method: "GET", Path: "/v1/whoami"})
}

// Daemon returns the daemon's version.
func (c *Client) Daemon(ctx context.Context) (*Daemon, error) {
	return call[Daemon](ctx, c, wire.Request{Method: "GET", Path: "/v1/version"})
}

// CreateTeam makes a team without projects. Admin tokens only. Errors: invalid,
// already_exists (name), permission_denied.
func (c *Client) CreateTeam(ctx context.Context, p CreateTeamParams) (*Team, error) {
	return call[Team](ctx, c, wire.Request{Method: "POST", Path: "/v1/teams", JSON: p})
}

// GetTeam returns a team.
func (c *Client) GetTeam(ctx context.Context, id string) (*Team, error) {
	return call[Team](ctx, c, wire.Request{Method: "GET", Path: path("teams", id)})
}

// ListTeams lists all teams for an admin token, otherwise only the token's own team.
// Errors: invalid.
func (c *Client) ListTeams(ctx context.Context, p ListParams) (*Page[Team], error) {
	return call[Page[Team]](ctx, c, wire.Request{Method: "GET", Path: "/v1/teams", Query: p.query()})
}

// SetQuota replaces a team's quota, for objects created from then on. Admin tokens
// only. Errors: invalid, permission_denied.
func (c *Client) SetQuota(ctx context.Context, teamID string, q Quota) (*Team, error) {
	return call[Team](ctx, c, wire.Request{Method: "PUT", Path: path("teams", teamID) + "/quota", JSON: q, Repeat: true})
}

// DeleteTeam deletes a team with its projects and tokens. Admin tokens only. Errors:
// conflict (the default team, or a team still in use), permission_denied.
func (c *Client) DeleteTeam(ctx context.Context, id string) error {
	return c.delete(ctx, path("teams", id))
}

// CreateProject makes a project in the token's team. Errors: invalid,
// already_exists (name), permission_denied (token of a project),
// quota_exceeded (1000 projects).
func (c *Client) CreateProject(ctx context.Context, p CreateProjectParams) (*Project, error) {
	return call[Project](ctx, c, wire.Request{Method: "POST", Path: "/v1/projects", JSON: p})
}

// GetProject returns a project.
func (c *Client) GetProject(ctx context.Context, id string) (*Project, error) {
	return call[Project](ctx, c, wire.Request{Method: "GET", Path: path("projects", id)})
}

// ListProjects lists the projects of the token's team; for a token of a project,
// only that project. Errors: invalid.
func (c *Client) ListProjects(ctx context.Context, p ListParams) (*Page[Project], error) {
	return call[Page[Project]](ctx, c, wire.Request{Method: "GET", Path: "/v1/projects", Query: p.query()})
}

// DeleteProject deletes a project and the tokens bound to it. Errors: conflict (the
// default project, or a project still in use), permission_denied (token of a
// project).
func (c *Client) DeleteProject(ctx context.Context, id string) error {
	return c.delete(ctx, path("projects", id))
}

// CreateToken makes a token in the token's team; only this answer carries its
// secret. Errors: invalid, not_found (project), permission_denied (token of a
// project; Admin with a token that is no admin token), quota_exceeded (1000 tokens).
func (c *Client) CreateToken(ctx context.Context, p CreateTokenParams) (*Token, error) {
	return call[Token](ctx, c, wire.Request{Method: "POST", Path: "/v1/tokens", JSON: p})
}

// GetToken returns a token without its secret. Only admin tokens can see admin
// tokens, and a token of a project can see only itself; the same holds for the other
// methods on tokens.
func (c *Client) GetToken(ctx context.Context, id string) (*Token, error) {
	return call[Token](ctx, c, wire.Request{Method: "GET", Path: path("tokens", id)})
}

// ListTokens lists the tokens of the token's team, expired ones included. Errors: invalid.
func (c *Client) ListTokens(ctx context.Context, p ListParams) (*Page[Token], error) {
	return call[Page[Token]](ctx, c, wire.Request{Method: "GET", Path: "/v1/tokens", Query: p.query()})
}

// DeleteToken revokes a token: no request that starts after DeleteToken returns is
// admitted. Errors: permission_denied (token of a project).
func (c *Client) DeleteToken(ctx context.Context, id string) error {
	return c.delete(ctx, path("tokens", id))
}

// CreateJWT returns the client's own token in the form of a JWT for one project,
// which is valid for 12 hours, or as long as the token. Errors: permission_denied
// (admin token).
func (c *Client) CreateJWT(ctx context.Context, projectID string) (*JWT, error) {
	return call[JWT](ctx, c, wire.Request{Method: "POST", Path: path("projects", projectID) + "/jwt"})
}

// CreateLoginLink makes a link that logs a browser in as the client's token, once,
// within 10 minutes. Errors: quota_exceeded (the token has 32 unused links).
func (c *Client) CreateLoginLink(ctx context.Context) (*LoginLink, error) {
	return call[LoginLink](ctx, c, wire.Request{Method: "POST", Path: "/v1/login-links"})
}

// ApproveDeviceLogin gives a token of the client's team to the program that shows
// the code. Errors: invalid, not_found (the code, or the project), permission_denied
// (token of a project), quota_exceeded (too many wrong codes).
func (c *Client) ApproveDeviceLogin(ctx context.Context, userCode string, p ApproveParams) (*DeviceLogin, error) {
	return call[DeviceLogin](ctx, c, wire.Request{Method: "POST", Path: path("device-logins", userCode) + "/approve", JSON: p})
}

// DenyDeviceLogin denies the program a token, also after the client's team has
// approved the login. Errors: as for ApproveDeviceLogin.
func (c *Client) DenyDeviceLogin(ctx context.Context, userCode string) (*DeviceLogin, error) {
	return call[DeviceLogin](ctx, c, wire.Request{Method: "POST", Path: path("device-logins", userCode) + "/deny"})
}

func (c *Client) delete(ctx context.Context, path string) error {
	conn, err := c.conn()
	if err != nil {
		return err
	}
	return conn.Call(ctx, wire.Request{Method: "DELETE", Path: path}, nil)
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

// path returns the route of one object. An empty id, or an id of dots, would name
// another route; in brackets it is an id that no object has.
func path(kind, id string) string {
	if id == "" || id == "." || id == ".." {
		id = "(" + id + ")"
	}
	return "/v1/" + kind + "/" + url.PathEscape(id)
}

func (p ListParams) query() url.Values {
	q := url.Values{}
	if p.Limit != 0 {
		q.Set("limit", strconv.Itoa(p.Limit))
	}
	if p.Cursor != "" {
		q.Set("cursor", p.Cursor)
	}
	return q
}
