package sandboxd

import (
	"encoding/json"
	"fmt"

	"github.com/cayhq/cay/sandbox"
)

// policy is an egress policy as it is kept. The whole of it is only ever in the
// memory of the daemon.
type policy struct {
	shown  sandbox.Network // secrets redacted; all that API answers hold
	sealed []byte          // JSON of the whole, sealed for its sandbox; nil if shown is the whole
}

// keep returns a policy of the sandbox id as it is kept.
func (e *Engine) keep(id string, n sandbox.Network) (policy, error) {
	if !n.HasSecrets() {
		return policy{shown: n}, nil
	}
	whole, err := json.Marshal(n)
	if err != nil {
		return policy{}, fmt.Errorf("encode network: %w", err)
	}
	return policy{n.Redacted(), e.cfg.Secrets.Seal(whole, sealOwner(id))}, nil
}

// network returns the whole policy of a sandbox, which can be read as a whole.
func (e *Engine) network(r *row) (sandbox.Network, error) {
	if r.unreadable != nil {
		return sandbox.Network{}, r.unreadable
	}
	if r.sealed == nil {
		return r.Network, nil
	}
	whole, err := e.cfg.Secrets.Open(r.sealed, sealOwner(r.ID))
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
