package accountd_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/accountd"
	"github.com/cayhq/cay/internal/accountd/accounttest"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/secret"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var defaultQuota = account.Quota{Sandboxes: 20, VCPUs: 40, MemoryMB: 1 << 16, DiskMB: 1 << 17, CreatesPerMinute: 60, SnapshotMB: 1 << 18}

// bundle is an engine on a fresh data directory, with a fake clock.
type bundle struct {
	*accountd.Engine
	dir       string
	log       *checktest.Log
	publicURL string
	db        *db.DB // nil: one in dir

	mu    sync.Mutex
	now   time.Time
	inUse string
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{dir: t.TempDir(), log: &checktest.Log{}, now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	b.open(t)
	return b
}

// open starts an engine on the directory, as a restart of the daemon does.
func (b *bundle) open(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	d := b.db
	if d == nil {
		d = dbtest.OpenFile(t, filepath.Join(b.dir, "cay.db"))
	}
	secrets, err := secret.Open(filepath.Join(b.dir, "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	b.Engine, err = accountd.NewEngine(ctx, accountd.Config{
		DB:             d,
		Secrets:        secrets,
		PublicURL:      b.publicURL,
		ListenURL:      func() string { return "http://127.0.0.1:7070" },
		Logger:         slog.New(slog.NewJSONHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		DefaultQuota:   defaultQuota,
		AdminTokenFile: b.tokenFile(),
		InUse: func(ctx context.Context, teamID, projectID string) (string, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.inUse != "" && (projectID == "" || projectID == b.inUse) {
				return "1 sandbox", nil
			}
			return "", nil
		},
		Now: b.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Start(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Engine.Stop)
}

// loseSecrets gives the next engine another secret key.
func (b *bundle) loseSecrets(t *testing.T) {
	t.Helper()
	checktest.OK(t, os.Remove(filepath.Join(b.dir, "secret.key")))
}

func (b *bundle) tokenFile() string { return filepath.Join(b.dir, "admin.token") }

func (b *bundle) secret(t *testing.T) string {
	t.Helper()
	s, err := os.ReadFile(b.tokenFile())
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(s), "\n")
}

func (b *bundle) Now() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *bundle) Advance(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
}

func (b *bundle) SetInUse(projectID string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inUse = projectID
}

func (b *bundle) env(t *testing.T, as func(secret, team string) (accountd.Service, context.Context)) *accounttest.Env {
	return &accounttest.Env{
		AdminSecret: b.secret(t), DefaultQuota: defaultQuota,
		SetInUse: b.SetInUse, Now: b.Now, Advance: b.Advance, Login: b.client(t).login, As: as,
	}
}

// as returns a context for the caller with a secret, without a principal if the
// engine refuses the secret.
func (b *bundle) as(ctx context.Context, secret, team string) context.Context {
	p, err := b.Authenticate(ctx, secret)
	if err != nil {
		return ctx
	}
	if team != "" {
		p.TeamID = team
	}
	return api.WithPrincipal(ctx, p)
}

// A token of a whole team may write images, also as a JWT for one project.
func TestAuthenticate_WritesImages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := b.as(t.Context(), b.secret(t), "")
	secretOf := func(p account.CreateTokenParams) string {
		t.Helper()
		made, err := b.CreateToken(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		return made.Secret
	}
	team := secretOf(account.CreateTokenParams{})
	jwt, err := b.CreateJWT(b.as(t.Context(), team, ""), account.DefaultProject)
	if err != nil {
		t.Fatal(err)
	}
	project, right := account.DefaultProject, []account.Right{account.ImagesWrite}
	for _, tt := range []struct {
		name, secret string
		want         bool
	}{
		{"admin", b.secret(t), true}, {"team", team, true}, {"JWT of the team's token", jwt.Secret, true},
		{"project", secretOf(account.CreateTokenParams{ProjectID: project}), false},
		{"project with the right", secretOf(account.CreateTokenParams{ProjectID: project, Rights: right}), true},
		{"JWT", secretOf(account.CreateTokenParams{JWT: true}), false},
		{"JWT with the right", secretOf(account.CreateTokenParams{JWT: true, Rights: right}), true},
	} {
		if p, err := b.Authenticate(t.Context(), tt.secret); err != nil || p.WritesImages() != tt.want {
			t.Errorf("%s: %+v, %v", tt.name, p, err)
		}
	}
}

func TestEngine(t *testing.T) {
	t.Parallel()
	accounttest.Run(t, func(t *testing.T) *accounttest.Env {
		b := setup(t)
		return b.env(t, func(secret, team string) (accountd.Service, context.Context) {
			return b.Engine, b.as(t.Context(), secret, team)
		})
	})
}

func TestEngine_AdminToken(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		spoil   func(t *testing.T, path string)
		replace bool
	}{
		{"Kept", func(*testing.T, string) {}, false},
		{"Missing", func(t *testing.T, path string) { checktest.OK(t, os.Remove(path)) }, true},
		{"Empty", func(t *testing.T, path string) { checktest.OK(t, os.WriteFile(path, nil, 0o600)) }, true},
		{"Foreign", func(t *testing.T, path string) {
			checktest.OK(t, os.WriteFile(path, []byte("cay_"+strings.Repeat("A", 43)), 0o600))
		}, true},
		{"Readable", func(t *testing.T, path string) { checktest.OK(t, os.Chmod(path, 0o644)) }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			before := b.secret(t)
			b.Engine.Stop()
			tc.spoil(t, b.tokenFile())
			b.open(t)
			after := b.secret(t)
			if (before != after) != tc.replace {
				t.Fatalf("replaced: %v, want %v", before != after, tc.replace)
			}
			if _, err := b.Authenticate(t.Context(), after); err != nil {
				t.Fatalf("the token in the file is refused: %v", err)
			}
			if tc.replace {
				if _, err := b.Authenticate(t.Context(), before); cay.CodeOf(err) != cay.Unauthenticated {
					t.Fatalf("the old admin token: %v, want unauthenticated", err)
				}
			}
			fi, err := os.Stat(b.tokenFile())
			checktest.OK(t, err)
			if fi.Mode().Perm() != 0o600 {
				t.Fatalf("mode %v, want 0600", fi.Mode())
			}
			entries, err := filepath.Glob(filepath.Join(b.dir, ".*"))
			if err != nil || len(entries) != 0 {
				t.Fatalf("left behind: %v %v", entries, err)
			}
		})
	}
}

func TestEngine_LastUsed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := b.as(t.Context(), b.secret(t), "")
	made, err := b.CreateToken(admin, account.CreateTokenParams{})
	checktest.OK(t, err)
	b.Advance(90 * time.Second)
	for range 3 {
		_, err = b.Authenticate(t.Context(), made.Secret)
		checktest.OK(t, err)
	}
	used := b.Now().Truncate(time.Minute)
	b.Engine.Stop() // waits until all is written
	b.open(t)
	got, err := b.GetToken(admin, made.ID)
	checktest.OK(t, err)
	if got.LastUsedAt == nil || !got.LastUsedAt.Equal(used) {
		t.Fatalf("last used at %v, want %v", got.LastUsedAt, used)
	}
}

// A second process on the database revokes a token: this one may use its cache
// for 30 s and not a moment longer.
func TestEngine_CacheExpires(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.Engine
	ctx := b.as(t.Context(), b.secret(t), "")
	made := bothKinds(t, first, ctx)
	for _, m := range made {
		_, err := first.Authenticate(t.Context(), m.Secret)
		checktest.OK(t, err)
	}

	b.open(t)
	for _, m := range made {
		checktest.OK(t, b.DeleteToken(ctx, m.ID))
	}
	b.Advance(29 * time.Second)
	for _, m := range made {
		if _, err := first.Authenticate(t.Context(), m.Secret); err != nil {
			t.Fatalf("after 29 s: %v", err)
		}
	}
	b.Advance(time.Second)
	for _, m := range made {
		if _, err := first.Authenticate(t.Context(), m.Secret); cay.CodeOf(err) != cay.Unauthenticated {
			t.Fatalf("after 30 s: %v, want unauthenticated", err)
		}
	}
}

// bothKinds makes an opaque token and a JWT.
func bothKinds(t *testing.T, e *accountd.Engine, ctx context.Context) (made []*account.Token) {
	t.Helper()
	for _, jwt := range []bool{false, true} {
		m, err := e.CreateToken(ctx, account.CreateTokenParams{JWT: jwt})
		checktest.OK(t, err)
		made = append(made, m)
	}
	return made
}

// In whatever order lookups and a revocation happen, a lookup that starts after
// DeleteToken returned is refused.
func TestEngine_RevokeRace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := b.as(t.Context(), b.secret(t), "")
	for i := range 20 {
		made, err := b.CreateToken(admin, account.CreateTokenParams{JWT: i%2 == 1})
		checktest.OK(t, err)
		var wg sync.WaitGroup
		stop := make(chan struct{})
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						if _, err := b.Authenticate(t.Context(), made.Secret); err != nil && cay.CodeOf(err) != cay.Unauthenticated {
							t.Error(err)
							return
						}
					}
				}
			})
		}
		checktest.OK(t, b.DeleteToken(admin, made.ID))
		_, err = b.Authenticate(t.Context(), made.Secret)
		close(stop)
		wg.Wait()
		if cay.CodeOf(err) != cay.Unauthenticated {
			t.Fatalf("after the revocation: %v", err)
		}
		if _, err := b.Authenticate(t.Context(), made.Secret); cay.CodeOf(err) != cay.Unauthenticated {
			t.Fatalf("a lookup put a revoked token back: %v", err)
		}
	}
}

func TestEngine_NoSecretIsLoggedOrStored(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := b.as(t.Context(), b.secret(t), "")
	made, err := b.CreateToken(admin, account.CreateTokenParams{Name: "ci"})
	checktest.OK(t, err)
	jwt, err := b.CreateToken(admin, account.CreateTokenParams{JWT: true})
	checktest.OK(t, err)
	c := b.client(t)
	a := c.begin(t)
	_, err = b.ApproveDeviceLogin(admin, a.UserCode, account.ApproveParams{})
	checktest.OK(t, err)
	login := c.poll(t, a.DeviceCode)
	waiting := c.begin(t)
	bad := "cay_" + strings.Repeat("B", 43)
	for _, s := range []string{made.Secret, bad, "cay_short"} {
		_, err := b.Authenticate(t.Context(), s)
		if err != nil && strings.Contains(err.Error(), s) {
			t.Errorf("the error repeats the secret: %v", err)
		}
	}
	checktest.OK(t, b.DeleteToken(admin, made.ID))
	var secrets [][]byte
	for _, s := range []string{b.secret(t), made.Secret, bad, jwt.Secret, login.AccessToken, login.RefreshToken, a.DeviceCode, waiting.DeviceCode} {
		secrets = append(secrets, []byte(s[5:]))
	}
	parts := strings.Split(jwt.Secret, ".")
	secrets = append(secrets, []byte(parts[1]), []byte(parts[2]), []byte(waiting.UserCode), []byte(strings.ReplaceAll(waiting.UserCode, "-", "")))
	b.Engine.Stop()

	places := map[string][]byte{"the log": []byte(b.log.String())}
	files, err := filepath.Glob(filepath.Join(b.dir, "cay.db*"))
	checktest.OK(t, err)
	for _, f := range files {
		places[f], err = os.ReadFile(f)
		checktest.OK(t, err)
	}
	for name, content := range places {
		if len(content) == 0 {
			continue
		}
		for _, s := range secrets {
			if bytes.Contains(content, s) {
				t.Errorf("%s holds a secret", name)
			}
		}
	}
	if b.log.String() == "" || len(files) == 0 {
		t.Fatal("nothing was looked at")
	}
}

func TestEngine_Quota(t *testing.T) {
	t.Parallel()
	b := setup(t)
	q, err := b.Quota(t.Context(), account.DefaultTeam)
	if err != nil || q != defaultQuota {
		t.Fatalf("got %+v, %v", q, err)
	}
	if _, err := b.Quota(t.Context(), "team_none"); cay.CodeOf(err) != cay.NotFound {
		t.Fatalf("got %v, want not_found", err)
	}
	if err := b.CheckProject(t.Context(), account.DefaultTeam, account.DefaultProject); err != nil {
		t.Fatal(err)
	}
	if err := b.CheckProject(t.Context(), "team_other", account.DefaultProject); cay.CodeOf(err) != cay.NotFound {
		t.Fatalf("got %v, want not_found", err)
	}
}

func TestEngine_TokensAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	admin := b.as(t.Context(), b.secret(t), "")
	var err error
	for i := 0; i <= 1000 && err == nil; i++ {
		_, err = b.CreateToken(admin, account.CreateTokenParams{})
	}
	if cay.CodeOf(err) != cay.QuotaExceeded {
		t.Fatalf("got %v, want quota_exceeded", err)
	}
}
