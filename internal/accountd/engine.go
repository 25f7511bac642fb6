package accountd

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/secret"
)

var _ Service = (*Engine)(nil)

// The limits of a team.
const (
	maxProjects = 1000
	maxTokens   = 1000
)

// Config has the dependencies and settings of an Engine.
type Config struct {
	DB     *db.DB
	Logger *slog.Logger
	// DefaultQuota is the quota of teams without a quota of their own; see
	// SetDefaultQuota.
	DefaultQuota account.Quota
	// AdminTokenFile is where Start writes the admin token.
	AdminTokenFile string
	// InUse lists the objects of a team, or of one project of it (projectID not
	// empty), that prevent its deletion, as in "3 sandboxes"; "" if there are
	// none. Nil means that nothing prevents deletion.
	InUse func(ctx context.Context, teamID, projectID string) (string, error)
	// Secrets seals signing keys, and hashes secrets that are too short for a
	// plain hash.
	Secrets *secret.Box
	// PublicURL is the public URL of the daemon, without a slash at its end.
	// Empty means the host of each request, and ListenURL where there is no
	// request.
	PublicURL string
	ListenURL func() string
	// Now is the wall clock. Nil means time.Now.
	Now func() time.Time
}

// Engine keeps accounts in a database and authenticates secrets.
type Engine struct {
	cfg   Config
	log   *slog.Logger
	now   func() time.Time
	store store
	quota atomic.Pointer[account.Quota] // of teams without a quota of their own
	cache cache
	uses  uses
	keys  keys
	holds holds

	wrongCodes  guesses // of logins, by team
	wrongTokens guesses // on the page that approves logins, by address
}

// NewEngine migrates the database to this version's schema and returns an engine
// on it. Call Start before use.
func NewEngine(ctx context.Context, cfg Config) (*Engine, error) {
	if err := validateQuota(cfg.DefaultQuota); err != nil {
		return nil, fmt.Errorf("default quota: %w", err)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s, err := openStore(ctx, cfg.DB)
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, log: cfg.Logger.With("component", "accountd"), now: cfg.Now, store: s}
	e.quota.Store(&cfg.DefaultQuota)
	e.cache.init()
	e.uses.init(s, e.log)
	return e, nil
}

// Start makes the default team, the default project and the admin token where
// they are missing, and begins to record the use of tokens.
func (e *Engine) Start(ctx context.Context) error {
	if err := e.store.ensureDefaults(ctx, e.now()); err != nil {
		return fmt.Errorf("create default team: %w", err)
	}
	if err := e.ensureAdminToken(ctx); err != nil {
		return err
	}
	e.uses.start()
	return nil
}

// Stop writes the uses of tokens not yet recorded. Stopping twice, or before
// Start, does nothing.
func (e *Engine) Stop() { e.uses.stop() }

// timestamp returns the current time, with the precision of stored times.
func (e *Engine) timestamp() time.Time { return e.now().UTC().Truncate(time.Millisecond) }

// Quota returns the quota of a team's sandboxes. Errors: not_found.
func (e *Engine) Quota(ctx context.Context, teamID string) (account.Quota, error) {
	t, err := e.team(ctx, teamID)
	if err != nil {
		return account.Quota{}, err
	}
	return t.Quota, nil
}

// SetDefaultQuota changes the quota of teams without a quota of their own; it holds for
// the next request of each. Errors: invalid.
func (e *Engine) SetDefaultQuota(q account.Quota) error {
	if err := validateQuota(q); err != nil {
		return fmt.Errorf("default quota: %w", err)
	}
	e.quota.Store(&q)
	return nil
}

// CheckProject returns not_found unless the team has the project.
func (e *Engine) CheckProject(ctx context.Context, teamID, projectID string) error {
	_, err := e.project(ctx, teamID, projectID)
	return err
}

func (e *Engine) WhoAmI(ctx context.Context) (*account.Identity, error) {
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return nil, err
	}
	team, err := e.team(ctx, p.TeamID)
	if err != nil {
		return nil, err
	}
	id := &account.Identity{Team: *team}
	if p.ProjectID != "" {
		if id.Project, err = e.project(ctx, p.TeamID, p.ProjectID); err != nil {
			return nil, err
		}
	}
	token, err := e.token(ctx, p, p.TokenID)
	if err != nil {
		return nil, err
	}
	id.Token = *token
	return id, nil
}

func (e *Engine) CreateTeam(ctx context.Context, params account.CreateTeamParams) (*account.Team, error) {
	if _, err := adminOnly(ctx, "create teams"); err != nil {
		return nil, err
	}
	if err := validateName("team", params.Name); err != nil {
		return nil, err
	}
	t := account.Team{ID: newID("team_"), Name: params.Name, Quota: *e.quota.Load(), CreatedAt: e.timestamp()}
	if err := e.store.insertTeam(ctx, t); err != nil {
		return nil, err
	}
	e.log.InfoContext(ctx, "team created", "team", t.ID)
	return &t, nil
}

func (e *Engine) GetTeam(ctx context.Context, id string) (*account.Team, error) {
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return nil, err
	}
	if !p.Admin && id != p.TeamID {
		return nil, notFound("team", id)
	}
	return e.team(ctx, id)
}

func (e *Engine) ListTeams(ctx context.Context, params account.ListParams) (*account.Page[account.Team], error) {
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return nil, err
	}
	l, err := parseList(params)
	if err != nil {
		return nil, err
	}
	if !p.Admin {
		l.id = p.TeamID
	}
	teams, err := e.store.listTeams(ctx, l)
	if err != nil {
		return nil, err
	}
	for i := range teams {
		e.applyDefaultQuota(&teams[i])
	}
	return page(l, teams, func(t teamRow) (account.Team, time.Time, string) { return t.Team, t.CreatedAt, t.ID }), nil
}

func (e *Engine) SetQuota(ctx context.Context, teamID string, q account.Quota) (*account.Team, error) {
	if _, err := e.GetTeam(ctx, teamID); err != nil {
		return nil, err
	}
	if _, err := adminOnly(ctx, "set quotas"); err != nil {
		return nil, err
	}
	if err := validateQuota(q); err != nil {
		return nil, err
	}
	if err := e.store.setQuota(ctx, teamID, q); err != nil {
		return nil, err
	}
	e.log.InfoContext(ctx, "quota set", "team", teamID)
	return e.team(ctx, teamID)
}

func (e *Engine) DeleteTeam(ctx context.Context, id string) error {
	if _, err := e.GetTeam(ctx, id); err != nil {
		return err
	}
	if _, err := adminOnly(ctx, "delete teams"); err != nil {
		return err
	}
	if id == account.DefaultTeam {
		return cay.Errorf(cay.Conflict, "team %q is the default team and cannot be deleted", id)
	}
	if err := e.checkUnused(ctx, "team", id, ""); err != nil {
		return err
	}
	if err := e.store.deleteTeam(ctx, id); err != nil {
		return err
	}
	e.cache.purge()
	e.endOrphans(context.WithoutCancel(ctx))
	e.log.InfoContext(ctx, "team deleted", "team", id)
	return nil
}

func (e *Engine) CreateProject(ctx context.Context, params account.CreateProjectParams) (*account.Project, error) {
	p, err := teamOnly(ctx, "create projects")
	if err != nil {
		return nil, err
	}
	if err := validateName("project", params.Name); err != nil {
		return nil, err
	}
	if _, err := e.team(ctx, p.TeamID); err != nil {
		return nil, err
	}
	pr := account.Project{ID: newID("prj_"), TeamID: p.TeamID, Name: params.Name, CreatedAt: e.timestamp()}
	if err := e.store.insertProject(ctx, pr); err != nil {
		return nil, err
	}
	e.log.InfoContext(ctx, "project created", "project", pr.ID, "team", pr.TeamID)
	return &pr, nil
}

func (e *Engine) GetProject(ctx context.Context, id string) (*account.Project, error) {
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return nil, err
	}
	if p.ProjectID != "" && id != p.ProjectID {
		return nil, notFound("project", id)
	}
	return e.project(ctx, reach(p), id)
}

func (e *Engine) ListProjects(ctx context.Context, params account.ListParams) (*account.Page[account.Project], error) {
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return nil, err
	}
	l, err := parseList(params)
	if err != nil {
		return nil, err
	}
	l.team, l.id = p.TeamID, p.ProjectID
	projects, err := e.store.listProjects(ctx, l)
	if err != nil {
		return nil, err
	}
	return page(l, projects, func(p account.Project) (account.Project, time.Time, string) { return p, p.CreatedAt, p.ID }), nil
}

func (e *Engine) DeleteProject(ctx context.Context, id string) error {
	pr, err := e.GetProject(ctx, id)
	if err != nil {
		return err
	}
	if _, err := teamOnly(ctx, "delete projects"); err != nil {
		return err
	}
	if id == account.DefaultProject {
		return cay.Errorf(cay.Conflict, "project %q is the default project and cannot be deleted", id)
	}
	if err := e.checkUnused(ctx, "project", pr.TeamID, id); err != nil {
		return err
	}
	if err := e.store.deleteProject(ctx, id); err != nil {
		return err
	}
	e.cache.purge()
	e.endOrphans(context.WithoutCancel(ctx))
	e.log.InfoContext(ctx, "project deleted", "project", id, "team", pr.TeamID)
	return nil
}

// team returns a team with its effective quota.
func (e *Engine) team(ctx context.Context, id string) (*account.Team, error) {
	t, err := e.store.getTeam(ctx, id)
	if err != nil {
		return nil, err
	}
	e.applyDefaultQuota(t)
	return &t.Team, nil
}

func (e *Engine) applyDefaultQuota(t *teamRow) {
	if !t.ownQuota {
		t.Quota = *e.quota.Load()
	}
}

// project returns a project of a team, or with teamID "" of any.
func (e *Engine) project(ctx context.Context, teamID, id string) (*account.Project, error) {
	p, err := e.store.getProject(ctx, id)
	if err != nil {
		return nil, err
	}
	if teamID != "" && p.TeamID != teamID {
		return nil, notFound("project", id)
	}
	return p, nil
}

func (e *Engine) checkUnused(ctx context.Context, kind, teamID, projectID string) error {
	if e.cfg.InUse == nil {
		return nil
	}
	what, err := e.cfg.InUse(ctx, teamID, projectID)
	if err != nil {
		return fmt.Errorf("check use of %s: %w", kind, err)
	}
	if what == "" {
		return nil
	}
	id := projectID
	if id == "" {
		id = teamID
	}
	return cay.Errorf(cay.Conflict, "%s %q still has %s", kind, id, what).WithHint("remove them first")
}

// reach returns the team whose objects p may find by id; "" means any team.
func reach(p api.Principal) string {
	if p.Admin {
		return ""
	}
	return p.TeamID
}

func adminOnly(ctx context.Context, what string) (api.Principal, error) {
	p, err := api.RequirePrincipal(ctx)
	if err == nil && !p.Admin {
		err = cay.Errorf(cay.PermissionDenied, "only an admin token may %s", what)
	}
	return p, err
}

func teamOnly(ctx context.Context, what string) (api.Principal, error) {
	p, err := api.RequirePrincipal(ctx)
	if err == nil && p.ProjectID != "" {
		err = cay.Errorf(cay.PermissionDenied, "a token of a project may not %s", what).WithHint("use a token of the team")
	}
	return p, err
}

func notFound(kind, id string) error {
	return cay.Errorf(cay.NotFound, "%s %q not found", kind, id)
}

// newID returns prefix and 20 characters that carry 100 random bits.
func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()[:20]) }

func validateName(kind, name string) error {
	if n := len(name); n < 1 || n > 64 {
		return cay.Errorf(cay.Invalid, "name of the %s has %d characters; it must have 1 to 64", kind, n)
	}
	for _, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-') {
			return cay.Errorf(cay.Invalid, "name %q of the %s contains %q", name, kind, r).WithHint("use A-Z a-z 0-9 _ and -")
		}
	}
	return nil
}

func validateTokenName(name string) error {
	if n := len([]rune(name)); n > 128 {
		return cay.Errorf(cay.Invalid, "name of the token has %d characters; at most 128 are allowed", n)
	}
	for _, r := range name {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return cay.Errorf(cay.Invalid, "name %q of the token contains %q", name, r).WithHint("use printable characters")
		}
	}
	return nil
}

func validateQuota(q account.Quota) error {
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"sandboxes", float64(q.Sandboxes)},
		{"vcpus", q.VCPUs},
		{"memory_mb", float64(q.MemoryMB)},
		{"disk_mb", float64(q.DiskMB)},
		{"creates_per_minute", float64(q.CreatesPerMinute)},
		{"snapshot_mb", float64(q.SnapshotMB)},
		{"image_mb", float64(q.ImageMB)},
		{"image_download_mb", float64(q.ImageDownloadMB)},
	} {
		if math.IsNaN(f.value) || f.value < 0 || f.value > math.MaxInt32 {
			return cay.Errorf(cay.Invalid, "quota %s is %v; it must be 0 (no bound) to %d", f.name, f.value, math.MaxInt32)
		}
	}
	return nil
}
