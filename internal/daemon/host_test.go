package daemon_test

import (
	"errors"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/testenv"
)

// Operators can read the machine's load; tokens of a team or a project cannot,
// because the load shows the activity of others.
func TestDaemon_Host(t *testing.T) {
	t.Parallel()
	env := testenv.Start(t)
	admin := &account.Client{URL: env.URL, Token: env.Token}
	h, err := admin.Host(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h.Version != cay.Version() || h.UptimeMS < 0 || time.Since(h.StartedAt) > time.Hour || h.CPUs <= 0 || h.MemoryTotalBytes <= 0 || h.DiskFreeBytes <= 0 || h.DaemonMemoryBytes <= 0 {
		t.Errorf("%+v", h)
	}
	for i, name := range []string{"workflows", "gateway", "flows", "cay"} {
		if len(h.Databases) <= i || h.Databases[i].Name != name || h.Databases[i].SizeBytes <= 0 {
			t.Errorf("databases %+v, want the size of %s", h.Databases, name)
		}
	}
	project, err := admin.CreateProject(t.Context(), account.CreateProjectParams{Name: "theirs"})
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]account.CreateTokenParams{"a team": {Name: "team"}, "a project": {Name: "project", ProjectID: project.ID}} {
		token, err := admin.CreateToken(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		other := &account.Client{URL: env.URL, Token: token.Secret}
		if h, err := other.Host(t.Context()); !errors.Is(err, &cay.Error{Code: cay.PermissionDenied}) {
			t.Errorf("a token of %s is told %+v, %v", name, h, err)
		}
	}
}
