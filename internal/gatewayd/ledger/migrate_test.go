package ledger

import (
	"testing"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/db/dbtest"
)

// Budgets created before allow_unpriced defaulted to false still allow unpriced models.
func TestMigrate_Unpriced(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	checktest.OK(t, d.Migrate(t.Context(), "gateway", migrations[:1]))
	checktest.OK(t, d.Write(t.Context(), func(tx *db.Tx) error {
		for ref, params := range map[string]string{
			"said nothing": `{"limit":"1","period":"daily"}`,
			"refused":      `{"limit":"2","period":"daily","refuse_unpriced":true}`,
			"said no":      `{"limit":"3","period":"daily","refuse_unpriced":false}`,
		} {
			if _, err := tx.Exec(t.Context(), `INSERT INTO gateway_budgets (team_id, scope, ref, params, created_at) VALUES ('t', 'user', ?, ?, 1)`, ref, params); err != nil {
				return err
			}
		}
		return nil
	}))
	s, err := openStore(t.Context(), d)
	checktest.OK(t, err)
	all, err := s.definitions(t.Context())
	checktest.OK(t, err)
	for ref, want := range map[string]bool{"said nothing": true, "refused": false, "said no": true} {
		def := all[spender{"t", gateway.ScopeUser, ref}]
		if def == nil || def.AllowUnpriced != want || def.Limit == 0 || def.Period != gateway.Daily {
			t.Errorf("%s: %+v, want AllowUnpriced %v", ref, def, want)
		}
	}
}
