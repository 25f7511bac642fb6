package gatewayd

import (
	"context"
	"errors"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/aisdk"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/plan"
	"github.com/cayhq/cay/internal/gatewayd/request"
)

// reporter is the optional part of a ledger that answers AI SDK clients' questions about
// balances and records.
type reporter interface {
	Credits(ctx context.Context, c *ledger.Caller) (left, spent gateway.Money, ok bool, err error)
	Request(ctx context.Context, team, project, id string) (*gateway.Request, error)
	Spend(ctx context.Context, team, project string, p gateway.SpendParams) ([]gateway.Spend, error)
}

// lookup is a call that calls no model: it reads what the gateway knows for its caller.
type lookup struct {
	e      *Engine
	v      *plan.View
	caller *ledger.Caller
	http   *http.Request
}

// lookUp serves a lookup; read returns the answer, which is JSON.
func lookUp(read func(*lookup) ([]byte, *hub.Error)) func(*call) *hub.Error {
	return func(c *call) *hub.Error {
		if err := c.authenticated(); err != nil {
			return err
		}
		body, err := read(&lookup{c.e, c.v, c.caller, c.rq.HTTP})
		if err != nil {
			return err
		}
		c.out.whole(http.StatusOK, "application/json", body)
		return nil
	}
}

// reporter returns the ledger's reporter.
func (l *lookup) reporter() (reporter, *hub.Error) {
	b, ok := l.e.cfg.Ledger.(reporter)
	if !ok {
		return nil, &hub.Error{Kind: hub.BadRequest, Code: "not_supported", Message: "this gateway keeps no books"}
	}
	return b, nil
}

// boundless is the balance shown to a caller without a budget, because the client expects
// a number.
const boundless = 1_000_000 * gateway.Dollar

// credits serves GET /v1/credits.
func (l *lookup) credits() ([]byte, *hub.Error) {
	b, e := l.reporter()
	if e != nil {
		return nil, e
	}
	left, spent, ok, err := b.Credits(l.http.Context(), l.caller)
	if err != nil {
		return nil, hub.AsError(err)
	}
	if !ok {
		left = boundless
	}
	return aisdk.Credits(left, spent), nil
}

// generation serves GET /v1/generation?id=.
func (l *lookup) generation() ([]byte, *hub.Error) {
	b, e := l.reporter()
	if e != nil {
		return nil, e
	}
	id := l.http.URL.Query().Get("id")
	r, err := b.Request(l.http.Context(), l.caller.TeamID, l.caller.ProjectID, id)
	if known, ok := errors.AsType[*cay.Error](err); ok && known.Code == cay.NotFound || err == nil && l.caller.Key != nil && r.KeyID != l.caller.KeyID {
		return nil, &hub.Error{Kind: hub.NotFound, Code: "not_found", Param: "id", Message: "there is no generation " + request.Clip(id)}
	}
	if err != nil {
		return nil, hub.AsError(err)
	}
	return aisdk.Generation(r), nil
}

// report serves GET /v1/report.
func (l *lookup) report() ([]byte, *hub.Error) {
	b, e := l.reporter()
	if e != nil {
		return nil, e
	}
	report, err := aisdk.ReadReport(l.http.URL.Query())
	if err != nil {
		return nil, hub.AsError(err)
	}
	if l.caller.Key != nil { // a key sees only its own requests
		report.Spend.KeyID = l.caller.KeyID
	}
	rows, err := b.Spend(l.http.Context(), l.caller.TeamID, l.caller.ProjectID, report.Spend)
	if known, ok := errors.AsType[*cay.Error](err); ok && known.Code == cay.Invalid {
		return nil, &hub.Error{Kind: hub.BadRequest, Message: known.Message}
	}
	if err != nil {
		return nil, hub.AsError(err)
	}
	return report.Write(rows), nil
}
