package ledger

import (
	"testing"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/dbtest"
)

// Keys and budgets are on disk when the call returns: a deleted key is not valid again
// after a power cut. Spending is written behind.
func TestPowerCut(t *testing.T) {
	d, power := dbtest.OpenPower(t)
	book := checktest.Must(Open(t.Context(), d, Options{}))(t)
	defer func() { checktest.OK(t, book.Close()) }()
	check := func(op string) { t.Helper(); power.Check(t, op, "gateway_keys.last_used_at") }
	check("open")
	ctx := t.Context()
	key := checktest.Must(book.CreateKey(ctx, "team", gateway.CreateKeyParams{Name: "k"}))(t)
	check("create key")
	off := true
	checktest.Must(book.UpdateKey(ctx, "team", "", key.ID, gateway.UpdateKeyParams{Disabled: &off}))(t)
	check("disable key")
	id := gateway.BudgetID{Scope: gateway.ScopeTeam}
	checktest.Must(book.SetBudget(ctx, "team", id, gateway.BudgetParams{Limit: 1 << 40, Period: gateway.Daily}))(t)
	check("set budget")
	checktest.OK(t, book.DeleteBudget(ctx, "team", id))
	check("delete budget")
	checktest.OK(t, book.DeleteKey(ctx, "team", "", key.ID))
	check("delete key")
}
