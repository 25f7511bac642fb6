package accountd_test

import (
	"testing"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/dbtest"
)

// A team, a token or a quota is on the disk when the call returns, and a revoked token
// is not valid again after a power cut.
func TestPowerCut(t *testing.T) {
	b := &bundle{dir: t.TempDir(), log: &checktest.Log{}, now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)}
	var power *dbtest.Power
	b.db, power = dbtest.OpenPower(t)
	b.open(t)
	check := func(op string) {
		t.Helper()
		power.Check(t, op, "account_tokens.last_used_at", "account_sessions.used_at")
	}
	check("first start")
	admin := b.as(t.Context(), b.secret(t), "")
	team := checktest.Must(b.CreateTeam(admin, account.CreateTeamParams{Name: "one"}))(t)
	check("create team")
	checktest.Must(b.SetQuota(admin, team.ID, account.Quota{Sandboxes: 7}))(t)
	check("set quota")
	ctx := b.as(t.Context(), b.secret(t), team.ID)
	project := checktest.Must(b.CreateProject(ctx, account.CreateProjectParams{Name: "p"}))(t)
	check("create project")
	token := checktest.Must(b.CreateToken(ctx, account.CreateTokenParams{Name: "t"}))(t)
	check("create token")
	checktest.OK(t, b.DeleteToken(ctx, token.ID))
	check("revoke token")
	checktest.OK(t, b.DeleteProject(ctx, project.ID))
	check("delete project")
	checktest.OK(t, b.DeleteTeam(admin, team.ID))
	check("delete team")
}
