package daemon

import (
	"context"

	"github.com/cayhq/cay/internal/oidc"
)

// forwardTokens returns the tokens that tell receivers of forwarded requests the
// sandbox that a request comes from.
func (d *Daemon) forwardTokens() *oidc.Forwards {
	return &oidc.Forwards{
		Sign:   d.accounts.Sign,
		Issuer: d.accounts.Issuer,
		Sandbox: func(ctx context.Context, machine string) (oidc.Sandbox, error) {
			sb, err := d.sandboxes.SandboxOf(ctx, machine)
			if err != nil {
				return oidc.Sandbox{}, err
			}
			return oidc.Sandbox{TeamID: sb.TeamID, ProjectID: sb.ProjectID, ID: sb.ID, Name: sb.Name}, nil
		},
	}
}
