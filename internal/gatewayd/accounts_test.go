package gatewayd_test

import (
	"context"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// holding knows no token of the daemon: callers have keys.
type holding struct{}

func (holding) Authenticate(context.Context, string) (api.Principal, error) {
	return api.Principal{}, cay.Errorf(cay.Unauthenticated, "the token is not valid")
}
