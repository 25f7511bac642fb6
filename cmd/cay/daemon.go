package main

import (
	"context"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/sandbox"
)

// serveDaemon runs a daemon until ctx ends.
func serveDaemon(context.Context, config.Config, func(url string)) error {
	return cay.Errorf(cay.NotSupported, "this build holds no daemon")
}

// startEphemeral starts an engine in this process. ctx bounds the start only.
func startEphemeral(context.Context, config.Config) (*sandbox.Client, func() error, error) {
	return nil, nil, cay.Errorf(cay.NotSupported, "this build holds no engine, and no daemon answers").
		WithHint("set CAY_URL and CAY_TOKEN to use a daemon elsewhere")
}
