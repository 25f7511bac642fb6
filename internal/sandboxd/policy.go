package sandboxd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// sealPolicy returns the stored form of a policy of the sandbox id.
func (e *Engine) sealPolicy(id string, n sandbox.Network) (store.Policy, error) {
	if !n.HasSecrets() {
		return store.Policy{Shown: n}, nil
	}
	whole, err := json.Marshal(n)
	if err != nil {
		return store.Policy{}, fmt.Errorf("encode network: %w", err)
	}
	return store.Policy{Shown: n.Redacted(), Sealed: e.cfg.Secrets.Seal(whole, sealOwner(id))}, nil
}

// network returns the whole policy of a sandbox. It refuses a sandbox whose row is
// unreadable.
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
		// The cause is left out, as it could quote a secret.
		return sandbox.Network{}, fmt.Errorf("network policy of sandbox %s cannot be read", r.ID)
	}
	return n, nil
}

// withoutSecrets returns n without the headers that its rules set, for a snapshot: a
// credential is for the sandbox it was given to, and a copy would outlive its rotation.
// Requests that match such a rule pass without the header.
func withoutSecrets(n sandbox.Network) *sandbox.Network {
	n.Allow = slices.Clone(n.Allow)
	for i, d := range n.Allow {
		rules := slices.Clone(d.Rules)
		for j := range rules {
			rules[j].SetHeaders, rules[j].Scrub = nil, false
		}
		n.Allow[i].Rules = rules
	}
	return &n
}

// samePolicy reports whether two policies of snapshots are equal. Nil means none.
func samePolicy(a, b *sandbox.Network) bool {
	one, err := json.Marshal(a)
	if err != nil {
		return false
	}
	two, err := json.Marshal(b)
	return err == nil && bytes.Equal(one, two)
}

// inherited returns the policy of a sandbox that starts from a snapshot: the snapshot's
// policy with the limits of asked, or asked itself if it names a mode or has lists.
func (e *Engine) inherited(snap *store.SnapshotRow, asked sandbox.Network) (sandbox.Network, error) {
	if !asked.Unspecified() || snap.Extra.Network == nil {
		return asked.WithDefaults(), nil
	}
	n := *snap.Extra.Network
	if asked.Limits != (sandbox.NetworkLimits{}) {
		n.Limits = asked.Limits
	}
	return n, n.Limits.Within(e.cfg.Limits.Network)
}

func sealOwner(id string) string { return "the network policy of sandbox " + id }
