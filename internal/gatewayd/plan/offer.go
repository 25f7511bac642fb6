package plan

import (
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// ModelFor returns the credential's account's name for the model.
func (o *Candidate) ModelFor(cred provider.Credential) string {
	if m, ok := cred.(provider.Mapped); ok {
		if name := m.ModelFor(o.Model.ID); name != "" {
			return name
		}
	}
	return o.Endpoint.Model
}

// TargetFor returns the target with the account's model name.
func (o *Candidate) TargetFor(cred provider.Credential) *hub.Target {
	name := o.ModelFor(cred)
	if name == o.Target.Model {
		return o.Target
	}
	t := *o.Target
	t.Model = name
	return &t
}

// Unlisted reports whether the price of the offer's model is unknown, because the
// catalogue does not have the model.
func (o *Offer) Unlisted() bool { return o.Model.Kind == "" && o.Endpoint.Price == nil }

// Warning returns the warning about an unlisted model for clients.
func (o *Offer) Warning() string {
	return "The catalogue does not know " + o.Model.ID + ": it passes to " + o.Provider.Name + " by its name, and what it costs is unknown"
}
