package agent

import "context"

type modelsKey struct{}

// WithModels returns a context whose steps call models through m. Give it to
// Worker.Start:
//
//	err := worker.Start(agent.WithModels(ctx, &agent.Gateway{URL: url, Key: key}))
//
// Without WithModels, steps call the gateway that CAY_GATEWAY_URL and
// CAY_GATEWAY_KEY name, or the gateway of this machine.
func WithModels(ctx context.Context, m Models) context.Context {
	return context.WithValue(ctx, modelsKey{}, m)
}

var local Gateway

func modelsOf(ctx context.Context) Models {
	if m, ok := ctx.Value(modelsKey{}).(Models); ok {
		return m
	}
	return &local
}
