package plan

import (
	"strconv"
	"strings"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// A model that the catalogue does not have is passed to the provider named before the
// slash, if that provider is Unlisted. Its price is unknown unless the operator has set
// one for the provider, and the gateway warns the client and logs that.

// NoModel returns the error for a name that stands for no model. The message says which
// settings add a model.
func (v *View) NoModel(name string) *hub.Error {
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

// ModelFor returns the model with a name that a request may be sent to.
func (v *View) ModelFor(rq *request.Request, name string) (*gateway.Model, *hub.Error) {
	m := v.Model(name)
	if m != nil && (m.Kind == rq.Route.Kind || m.Kind == "") { // the kind of an unlisted model is unknown
		return m, nil
	}
	e := v.NoModel(name)
	if m != nil {
		e.Message = name + " is no " + rq.Route.Kind + " model"
	}
	return nil, e
}

// CheckOnly distinguishes, for the option only, an unknown provider from a provider
// without the model.
func (v *View) CheckOnly(m *gateway.Model, only []string) *hub.Error {
	for _, name := range only {
		if v.Providers.Get(name) == nil {
			var has []string
			for _, o := range v.Offers(m) {
				has = append(has, o.Provider.Name)
			}
			return request.WrongOption("only", "providers that are configured, of which "+m.ID+" has: "+strings.Join(has, ", ")+"; there is no "+strconv.Quote(name))
		}
	}
	return nil
}

// At returns the model with a provider's own name, and its price there; nil if unknown.
func (v *View) At(provider, name string) (*gateway.Model, *gateway.Price) {
	all := v.Catalog.List()
	for i := range all {
		for j := range all[i].Endpoints {
			if ep := &all[i].Endpoints[j]; ep.Provider == provider && ep.Model == name {
				return &all[i], ep.Price
			}
		}
	}
	if m := v.Catalog.Lookup(name); m != nil {
		for j := range m.Endpoints {
			if m.Endpoints[j].Provider == provider {
				return m, m.Endpoints[j].Price
			}
		}
		return m, nil
	}
	return nil, nil
}
