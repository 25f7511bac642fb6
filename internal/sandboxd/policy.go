package sandboxd

import (
	"encoding/json"
	"fmt"

	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// keep returns a policy of the sandbox id as it is kept.
func (e *Engine) keep(id string, n sandbox.Network) (store.Policy, error) {
	if !n.HasSecrets() {
		return store.Policy{Shown: n}, nil
	}
	whole, err := json.Marshal(n)
	if err != nil {
		return store.Policy{}, fmt.Errorf("encode network: %w", err)
	}
	return store.Policy{Shown: n.Redacted(), Sealed: e.cfg.Secrets.Seal(whole, sealOwner(id))}, nil
}

// network returns the whole policy of a sandbox, which can be read as a whole.
func (e *Engine) network(r *store.Row) (sandbox.Network, error) {
	if r.Unreadable != nil {
		return sandbox.Network{}, r.Unreadable
	}
	if r.Sealed == nil {
		return r.Network, nil
	}
	whole, err := e.cfg.Secrets.Open(r.Sealed, sealOwner(r.ID))
	if err != nil {
		return sandbox.Network{}, fmt.Errorf("open network policy: %w", err)
	}
	var n sandbox.Network
	if err := json.Unmarshal(whole, &n); err != nil {
		// The cause could quote a secret.
		return sandbox.Network{}, fmt.Errorf("network policy of sandbox %s cannot be read", r.ID)
	}
	return n, nil
}

func sealOwner(id string) string { return "the network policy of sandbox " + id }
