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
)

// books is the optional part of a ledger that answers AI SDK clients' questions about
// balances and records.
type books interface {
	Credits(ctx context.Context, c *ledger.Caller) (left, spent gateway.Money, ok bool, err error)
	Request(ctx context.Context, team, project, id string) (*gateway.Request, error)
	Spend(ctx context.Context, team, project string, p gateway.SpendParams) ([]gateway.Spend, error)
}

func (c *call) books() (books, *hub.Error) {
	if err := c.authenticate(); err != nil {
		return nil, err
	}
	b, ok := c.e.cfg.Ledger.(books)
	if !ok {
		return nil, &hub.Error{Kind: hub.BadRequest, Code: "not_supported", Message: "this gateway keeps no books"}
	}
	return b, nil
}

// boundless is the balance shown to a caller without a budget, because the client expects
// a number.
const boundless = 1_000_000 * gateway.Dollar

// credits serves GET /v1/credits.
func (c *call) credits() *hub.Error {
	b, e := c.books()
	if e != nil {
		return e
	}
	left, spent, ok, err := b.Credits(c.ctx, c.caller)
	if err != nil {
		return asError(err)
	}
	if !ok {
		left = boundless
	}
	c.out.whole(http.StatusOK, "application/json", aisdk.Credits(left, spent))
	return nil
}

// generation serves GET /v1/generation?id=.
func (c *call) generation() *hub.Error {
	b, e := c.books()
	if e != nil {
		return e
	}
	id := c.r.URL.Query().Get("id")
	r, err := b.Request(c.ctx, c.caller.TeamID, c.caller.ProjectID, id)
	if known, ok := errors.AsType[*cay.Error](err); ok && known.Code == cay.NotFound || err == nil && c.caller.Key != nil && r.KeyID != c.caller.KeyID {
		return &hub.Error{Kind: hub.NotFound, Code: "not_found", Param: "id", Message: "there is no generation " + clip(id)}
	}
	if err != nil {
		return asError(err)
	}
	c.out.whole(http.StatusOK, "application/json", aisdk.Generation(r))
	return nil
}

// report serves GET /v1/report.
func (c *call) report() *hub.Error {
	b, e := c.books()
	if e != nil {
		return e
	}
	report, err := aisdk.ReadReport(c.r.URL.Query())
	if err != nil {
		return asError(err)
	}
	if c.caller.Key != nil { // a key sees only its own requests
		report.Spend.KeyID = c.caller.KeyID
	}
	rows, err := b.Spend(c.ctx, c.caller.TeamID, c.caller.ProjectID, report.Spend)
	if known, ok := errors.AsType[*cay.Error](err); ok && known.Code == cay.Invalid {
		return &hub.Error{Kind: hub.BadRequest, Message: known.Message}
	}
	if err != nil {
		return asError(err)
	}
	c.out.whole(http.StatusOK, "application/json", report.Write(rows))
	return nil
}
