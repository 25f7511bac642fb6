package gatewayd

import (
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// A model that the catalogue does not know passes to the provider whose name comes before
// the slash, if that provider is Unlisted. Its price is unknown, unless the operator has
// given the provider one, and the client and the log are warned of that.

// noModel is the error of a name that stands for no model. It says how a model becomes
// one that can be called.
func (v *view) noModel(name string) *hub.Error {
	message := "there is no model " + strconv.Quote(clip(name))
	first, rest, ok := strings.Cut(name, "/")
	p := v.Providers.Get(first)
	switch {
	case ok && rest != "" && p != nil: // which serves listed models only
		message += ": the provider " + first + " serves the models of the catalogue only. The gateway's settings can change that with \"unlisted: true\" for " + first + ", or have the model under \"models:\""
	case ok && rest != "":
		message += " and no provider " + strconv.Quote(clip(first)) + " that is configured. The gateway's settings add models under \"models:\"; a provider with \"unlisted: true\" is asked for any model as provider/model"
	default:
		message += ". A model that the catalogue does not know is called as provider/model at a provider with \"unlisted: true\", or is added under \"models:\" in the gateway's settings"
	}
	return &hub.Error{Kind: hub.ModelNotFound, Code: "model_not_found", Param: "model", Model: name, Message: message}
}

// unlisted reports whether nobody knows what the offer's model costs, because the
// catalogue does not know the model.
func (o *offer) unlisted() bool { return o.model.Kind == "" && o.endpoint.Price == nil }

// logUnlisted logs once that a model is called of which nobody knows the price.
func (c *call) logUnlisted(o *offer) {
	if o.unlisted() && !o.health.warned.Swap(true) {
		c.e.log.WarnContext(c.ctx, "a model that the catalogue does not know is called; its price is unknown", "provider", o.provider.Name, "model", clip(o.model.ID))
	}
}

// warning is what clients are told of an unlisted model.
func (o *offer) warning() string {
	return "The catalogue does not know " + o.model.ID + ": it passes to " + o.provider.Name + " by its name, and what it costs is unknown"
}
