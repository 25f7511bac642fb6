package ledger

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
)

// A database with the tables of an earlier release, as a killed daemon leaves it, shows
// all its contents after the upgrade and its budgets continue to be charged.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.budget(gateway.ScopeTeam, "team", gateway.BudgetParams{Limit: gateway.Dollar})
	f.budget(gateway.ScopeUser, "u1", gateway.BudgetParams{Limit: 2 * gateway.Dollar})
	created, err := f.CreateKey(t.Context(), "team", gateway.CreateKeyParams{Name: "laptop"})
	checktest.OK(t, err)
	spendAll(f)
	held := f.admit(caller(), cost(cent)) // never settled
	defer held.Settle(request(caller(), 0))
	want := contents(f)
	for n := 1; n < len(migrations); n++ {
		t.Run(migrations[n].Name, func(t *testing.T) {
			old := &fixture{t: t, path: filepath.Join(t.TempDir(), "gateway.db"), clock: f.clock, opts: f.opts}
			spent := makeEarlier(t, f.path, old.path, n)
			old.open()
			t.Cleanup(old.close)
			got := contents(old)
			for name := range want {
				if !reflect.DeepEqual(got[name], want[name]) {
					t.Errorf("%s:\ngot  %+v\nwant %+v", name, got[name], want[name])
				}
			}
			who, err := old.Authenticate(t.Context(), created.Secret)
			checktest.OK(t, err)
			old.admit(who, cost(cent)).Settle(request(who, cent))
			old.spent(gateway.ScopeTeam, "team", spent+cent, 0)
			old.reopen()
			old.spent(gateway.ScopeTeam, "team", spent+cent, 0)
			page, err := old.Requests(t.Context(), "team", "", gateway.RequestFilter{User: who.User, KeyID: who.KeyID})
			checktest.OK(t, err)
			if len(page.Items) != 1 {
				t.Errorf("%d requests of the key, want the new one", len(page.Items))
			}
		})
	}
}

// contents returns all that users can see of a Book, except what its budgets have spent.
func contents(f *fixture) map[string]any {
	f.t.Helper()
	ctx, got := f.t.Context(), make(map[string]any)
	for name, filter := range map[string]gateway.RequestFilter{
		"all": {}, "of a user": {User: "u1"}, "of a session": {Session: "s2"}, "failed": {Status: gateway.Failed}, "with a tag": {Tag: "y"},
	} {
		page, err := f.Requests(ctx, "team", "", filter)
		checktest.OK(f.t, err)
		if len(page.Items) == 0 {
			f.t.Errorf("there are no requests: %s", name)
		}
		got["requests: "+name] = page.Items
	}
	spend, err := f.Spend(ctx, "team", "", gateway.SpendParams{
		Since: f.clock.Now().AddDate(0, 0, -2), Until: f.clock.Now().AddDate(0, 0, 2), By: []string{"user", "model"}, Latency: true,
	})
	checktest.OK(f.t, err)
	got["spend"] = spend
	keys, err := f.ListKeys(ctx, "team", "", 100, "")
	checktest.OK(f.t, err)
	got["keys"] = keys.Items
	budgets, err := f.ListBudgets(ctx, "team", false, 100, "")
	checktest.OK(f.t, err)
	params := make(map[gateway.BudgetID]gateway.BudgetParams)
	for _, b := range budgets.Items {
		params[b.BudgetID] = b.BudgetParams
	}
	got["budgets"] = params
	return got
}

// makeEarlier creates a database with the first n migrations and the rows of another
// database, and returns the team's spending, with held amounts counted as spent.
func makeEarlier(t *testing.T, from, to string, n int) (spent gateway.Money) {
	t.Helper()
	ctx := t.Context()
	d, err := db.Open(ctx, to, db.Options{})
	checktest.OK(t, err)
	checktest.OK(t, d.Migrate(ctx, "gateway", migrations[:n]))
	if n > 2 {
		checktest.OK(t, d.Migrate(ctx, "gateway-latency", latencyMigrations))
	}
	checktest.OK(t, d.Close())

	c, err := sql.Open("sqlite", "file:"+to)
	checktest.OK(t, err)
	c.SetMaxOpenConns(1)
	column := func(query string, args ...any) (all []string) {
		t.Helper()
		rows, err := c.QueryContext(ctx, query, args...)
		checktest.OK(t, err)
		for rows.Next() {
			var s string
			checktest.OK(t, rows.Scan(&s))
			all = append(all, s)
		}
		checktest.OK(t, errors.Join(rows.Err(), rows.Close()))
		return all
	}
	exec := func(query string, args ...any) {
		t.Helper()
		_, err := c.ExecContext(ctx, query, args...)
		checktest.OK(t, err)
	}
	exec(`ATTACH ? AS filled`, from)
	exec(`BEGIN`) // give all rows the same time
	tables := column(`SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name LIKE 'gateway%'`)
	if !slices.Contains(tables, "gateway_requests") {
		t.Fatalf("the tables are %v", tables)
	}
	for _, table := range tables {
		columns := strings.Join(column(`SELECT name FROM pragma_table_info(?, 'main')`, table), ", ")
		exec("DELETE FROM main." + table)
		exec(fmt.Sprintf("INSERT INTO main.%s (%s) SELECT %s FROM filled.%s", table, columns, columns, table))
	}
	if n == 1 { // see TestMigrate_Unpriced
		exec(`UPDATE main.gateway_budgets SET params = json_set(params, '$.refuse_unpriced', json('true'))`)
	}
	checktest.OK(t, c.QueryRowContext(ctx, `SELECT spent + held FROM main.gateway_spending WHERE team_id = 'team' AND scope = 'team'`).Scan(&spent))
	exec(`COMMIT`)
	checktest.OK(t, c.Close())
	return spent
}
