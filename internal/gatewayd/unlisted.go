package gatewayd

import (
	"context"
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// A model that the catalogue does not have is passed to the provider named before the
// slash, if that provider is Unlisted. Its price is unknown unless the operator has set
// one for the provider, and the gateway warns the client and logs that.

// noModel returns the error for a name that stands for no model. The message says which
// settings add a model.
func (v *view) noModel(name string) *hub.Error {
	message := "there is no model " + strconv.Quote(request.Clip(name))
	first, rest, ok := strings.Cut(name, "/")
	p := v.Providers.Get(first)
	switch {
	case ok && rest != "" && p != nil: // the provider serves listed models only
		message += ": the provider " + first + " serves the models of the catalogue only. The gateway's settings can change that with \"unlisted: true\" for " + first + ", or have the model under \"models:\""
	case ok && rest != "":
		message += " and no provider " + strconv.Quote(request.Clip(first)) + " that is configured. The gateway's settings add models under \"models:\"; a provider with \"unlisted: true\" is asked for any model as provider/model"
	default:
		message += ". A model that the catalogue does not know is called as provider/model at a provider with \"unlisted: true\", or is added under \"models:\" in the gateway's settings"
	}
	return &hub.Error{Kind: hub.ModelNotFound, Code: "model_not_found", Param: "model", Model: name, Message: message}
}

// unlisted reports whether the price of the offer's model is unknown, because the
// catalogue does not have the model.
func (o *offer) unlisted() bool { return o.model.Kind == "" && o.endpoint.Price == nil }

// logUnlisted logs once per endpoint that an unpriced model is called.
func (e *Engine) logUnlisted(ctx context.Context, o *offer) {
	if o.unlisted() && o.health.WarnOnce() {
		e.log.WarnContext(ctx, "a model that the catalogue does not know is called; its price is unknown", "provider", o.provider.Name, "model", request.Clip(o.model.ID))
	}
}

// warning returns the warning about an unlisted model for clients.
func (o *offer) warning() string {
	return "The catalogue does not know " + o.model.ID + ": it passes to " + o.provider.Name + " by its name, and what it costs is unknown"
}
