package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/wire"
)

const (
	vercelTokenLife = 30 * 24 * time.Hour
	// vercelTokenRest is how long a stored token must still be valid to be reused.
	vercelTokenRest = 24 * time.Hour
)

// vercelCredential is a token in the form for the clients, with its team and
// project.
type vercelCredential struct {
	URL       string    `json:"url"` // of the daemon
	TeamID    string    `json:"team_id"`
	ProjectID string    `json:"project_id"`
	Secret    string    `json:"secret"`
	ExpiresAt time.Time `json:"expires_at"`
}

// credential returns a stored credential that is still valid, or makes one and
// stores it.
func (o *vercelOptions) credential(ctx context.Context, a *app, dir string) (*vercelCredential, error) {
	opts := a.options()
	conn, err := wire.Target{URL: opts.URL}.Resolve()
	if err != nil {
		return nil, err
	}
	who, err := a.accounts().WhoAmI(ctx)
	if err != nil {
		return nil, err
	}
	project, err := o.find(ctx, a.accounts(), who)
	if err != nil {
		return nil, err
	}
	want := vercelCredential{URL: conn.URL(), TeamID: who.Team.ID, ProjectID: project}
	sum := sha256.Sum256([]byte(want.URL + "\n" + want.TeamID + "\n" + want.ProjectID))
	file := filepath.Join(dir, hex.EncodeToString(sum[:16])+".json")
	if c := stored(ctx, file, want); c != nil {
		return c, nil
	}
	c, err := issue(ctx, a.accounts(), who, want)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return c, keepFile(file, string(text)+"\n", 0o600)
}

// find returns the id of the project that the program acts for.
func (o *vercelOptions) find(ctx context.Context, c *account.Client, who *account.Identity) (string, error) {
	switch {
	case o.project != "":
		return findProject(ctx, c, o.project)
	case who.Project != nil:
		return who.Project.ID, nil
	case who.Team.ID == account.DefaultTeam:
		return account.DefaultProject, nil
	}
	projects, err := all(func(p account.ListParams) (*account.Page[account.Project], error) { return c.ListProjects(ctx, p) })
	if err != nil {
		return "", err
	}
	if len(projects) != 1 {
		return "", cay.Errorf(cay.Invalid, "team %q has %d projects, and none is the default one", who.Team.Name, len(projects)).
			WithHint("choose one with --project; cay project list shows them")
	}
	return projects[0].ID, nil
}

// stored returns the credential in a file if it matches want and the daemon still
// accepts it.
func stored(ctx context.Context, file string, want vercelCredential) *vercelCredential {
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		return nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var c vercelCredential
	if json.Unmarshal(b, &c) != nil || c.URL != want.URL || c.TeamID != want.TeamID || c.ProjectID != want.ProjectID ||
		time.Until(c.ExpiresAt) < vercelTokenRest {
		return nil
	}
	who, err := (&account.Client{URL: c.URL, Token: c.Secret}).WhoAmI(ctx)
	if err != nil || who.Team.ID != c.TeamID || who.Project == nil || who.Project.ID != c.ProjectID {
		return nil
	}
	return &c
}

// issue makes a token for the project. A token of a project cannot make other
// tokens; the daemon issues that token itself in the form of a JWT.
func issue(ctx context.Context, c *account.Client, who *account.Identity, want vercelCredential) (*vercelCredential, error) {
	if who.Project != nil {
		jwt, err := c.CreateJWT(ctx, want.ProjectID)
		if err != nil {
			return nil, err
		}
		want.Secret, want.ExpiresAt = jwt.Secret, jwt.ExpiresAt
		return &want, nil
	}
	expires := time.Now().Add(vercelTokenLife)
	if e := who.Token.ExpiresAt; e != nil && e.Before(expires) {
		expires = *e
	}
	t, err := c.CreateToken(ctx, account.CreateTokenParams{Name: "cay vercel", ProjectID: want.ProjectID, JWT: true, ExpiresAt: &expires})
	if err != nil {
		return nil, err
	}
	want.Secret, want.ExpiresAt = t.Secret, expires
	return &want, nil
}

// vercelDir returns the directory of the user's files for such programs.
func vercelDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", cay.Errorf(cay.Invalid, "there is no cache directory: %w", err).WithHint("set HOME or XDG_CACHE_HOME")
	}
	return filepath.Join(dir, "cay", "vercel"), nil
}

// keepFile writes a file atomically, unless the file already has this content.
func keepFile(path, text string, mode fs.FileMode) error {
	if b, err := os.ReadFile(path); err == nil && string(b) == text {
		if info, err := os.Stat(path); err == nil && info.Mode().Perm() == mode {
			return nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // does nothing after the rename
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// fileURL returns a path as a URL without white space, for Node's options.
func fileURL(path string) string {
	u := url.URL{Scheme: "file", Path: path}
	return strings.ReplaceAll(u.String(), "'", "%27")
}
