package gatewayd

import (
	"context"
	"fmt"

	"github.com/cayhq/cay/internal/gatewayd/asks"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/plan"
	"github.com/cayhq/cay/internal/gatewayd/provider"
	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// Many projects share a provider account, and objects that the provider keeps under an id
// (answers, files, containers) belong to the account. A request may name only objects
// that its own project created: the gateway stores the owner of ids in answers, and looks
// up ids in requests before it sends them. A request that brings a credential uses its
// own account, so its ids are not checked.

// keeper is a ledger that stores the owners of providers' ids.
type keeper interface {
	Keep(c *ledger.Caller, provider string, tokens int64, ids []string)
	Whose(ctx context.Context, provider, id string) (*ledger.Kept, error)
}

// owned checks that the caller's project owns the ids in a body, and returns how many tokens they
// add to the prompt; -1 if the number is unknown.
func (e *Engine) owned(ctx context.Context, caller *ledger.Caller, body *scan.Object, o *plan.Offer, cred provider.Credential) (int64, *hub.Error) {
	k, ok := e.cfg.Ledger.(keeper)
	all, bad := asks.NamedIn(body)
	if bad != nil || len(all) == 0 {
		return 0, bad
	}
	tokens := int64(0)
	free := !ok || o.Provider.ForeignIDs || cred != nil && cred.BYOK()
	for _, n := range all {
		var kept *ledger.Kept
		if ok {
			var err error
			if kept, err = k.Whose(ctx, o.Provider.Name, n.ID); err != nil {
				return 0, hub.AsError(err)
			}
		}
		mine := kept != nil && kept.TeamID == caller.TeamID && kept.ProjectID == caller.ProjectID
		switch {
		case !mine && !free:
			return 0, &hub.Error{Kind: hub.NotFound, Code: "not_found", Param: n.Member,
				Message: fmt.Sprintf("there is no %.100q of this project (%s); what was made elsewhere can be named if the operator allows foreign_ids of %s", n.ID, n.Member, o.Provider.Name)}
		case !n.Conversation():
		case mine && tokens >= 0:
			tokens += kept.Tokens
		default:
			tokens = -1
		}
	}
	return tokens, nil
}

// keep stores the caller as the owner of the ids in an answer: of the answer itself and of
// more.
func (x *exchange) keep(r hub.Response, more []string) {
	k, ok := x.e.cfg.Ledger.(keeper)
	if !ok || x.record.BYOK || r.ID == "" && len(more) == 0 {
		return
	}
	ids := more
	if r.ID != "" && x.stores {
		ids = append(ids[:len(ids):len(ids)], r.ID)
	}
	if len(ids) == 0 {
		return
	}
	var tokens int64
	if u := x.Usage; u != nil {
		tokens = hub.Count(u.Input) + hub.Count(u.Output)
	}
	k.Keep(x.cl.caller, x.o.Provider.Name, tokens, ids[:min(len(ids), maxKept)])
}

// maxKept is the maximum number of ids stored per answer.
const maxKept = 256

// stores reports whether the provider will keep the answer to a Responses request.
func stores(body *scan.Object) bool {
	return string(body.Get("store")) != "false"
}

var _ keeper = (*ledger.Book)(nil)
