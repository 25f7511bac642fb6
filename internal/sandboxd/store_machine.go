package sandboxd

import (
	"context"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// SandboxOf returns the sandbox that a machine is of, whoever asks: a machine has
// the id of its session. Errors: not_found.
func (e *Engine) SandboxOf(ctx context.Context, machine string) (*sandbox.Sandbox, error) {
	rows, err := e.store.all(ctx, `SELECT `+columns+` FROM sandboxes
		WHERE id = (SELECT sandbox_id FROM sandbox_sessions v WHERE v.id = ?)`, machine)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, cay.Errorf(cay.NotFound, "machine %q is no sandbox's", machine)
	}
	return &rows[0].Sandbox, nil
}
