package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cayhq/cay/gateway"
)

// gatewayYAML configures the providers: one server, in two formats. The prices
// give the budget something to count.
const gatewayYAML = `environment: false
providers:
  field:
    format: chatcompletions
    base_url: %[1]s/v1
    key: %[2]s
  crossed:
    format: messages
    base_url: %[1]s/v1
    key: %[2]s
models:
  field/plain:
    context: 200000
    max_output: 1024
    endpoints: {field: {model: field, price: {input: 1, output: 4}}}
  field/crossed:
    context: 200000
    max_output: 1024
    endpoints: {crossed: {model: field, price: {input: 1, output: 4}}}
`

// startCay starts a daemon with a key that has a budget.
func (g *gatewayBench) startCay(ctx context.Context, f *fieldPeer) (_ *gatewayPeer, err error) {
	dir, err := os.MkdirTemp(g.o.WorkDir, "gateway-")
	if err != nil {
		return nil, fmt.Errorf("make directory of the daemon: %w", err)
	}
	p := &gatewayPeer{name: Cay, model: "field/plain", cross: "field/crossed"}
	p.close = func() error { return os.RemoveAll(dir) }
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	settings := filepath.Join(dir, "gateway.yaml")
	if err := os.WriteFile(settings, fmt.Appendf(nil, gatewayYAML, f.provider, fieldKey), 0o600); err != nil {
		return nil, fmt.Errorf("configure the gateway: %w", err)
	}
	apiPort, err := freePort()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	address := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	p.cmd = pinned(gatewayCore, append(g.o.Serve, "--data", dir, "--listen", address(apiPort), "--gateway-listen", address(port), "--gateway-config", settings, "--log-level", "warn")...)
	p.cmd.Stderr, p.cmd.SysProcAttr = g.o.Stderr, newSession()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start cay: %w", err)
	}
	p.close = func() error {
		p.cmd.Process.Signal(os.Interrupt) // it may be gone
		return errors.Join(p.end(), os.RemoveAll(dir))
	}
	p.url = "http://" + address(port)
	if err := answers(ctx, p.url); err != nil {
		return nil, err
	}
	token, err := os.ReadFile(filepath.Join(dir, "admin.token"))
	if err != nil {
		return nil, fmt.Errorf("read the admin's token: %w", err)
	}
	// None of these limits is reached.
	c := gateway.Client{URL: "http://" + address(apiPort), Token: strings.TrimSpace(string(token))}
	key, err := c.CreateKey(ctx, gateway.CreateKeyParams{
		Name: "bench", Budget: &gateway.BudgetParams{Limit: 1_000_000 * gateway.Dollar, Period: gateway.Monthly},
		KeyScope: gateway.KeyScope{RequestsPerMinute: 1e9, Concurrency: 100_000},
	})
	if err != nil {
		return nil, err
	}
	p.head = map[string]string{"Authorization": "Bearer " + key.Secret}
	return p, nil
}
