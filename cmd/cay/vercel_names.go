package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/compat/vercelsandbox/names"
	"github.com/cayhq/cay/internal/sandboxd/network/trust"
	"github.com/cayhq/cay/internal/wire"
)

const serveNamesHelp = `Serve vercel.com, api.vercel.com, oidc.vercel.com, *.vercel.run, vercel-workflow.com
and *.vercel-queue.com in front of the daemon, and ai-gateway.vercel.sh in front of
its AI gateway, by TLS, until interrupted. Programs that resolve these names to it and trust its authority need no
preload, and previews open at the URLs their clients make up. It prints what to set.

It serves what Vercel Sandbox and the Workflow SDK need of these names, and nothing
else of them: take them over for a process, a container or a machine that needs
nothing else either. Without the preload nobody tells the daemon where an app with
workflows listens; docs/vercel.md has the call that does.
The certificate authority is made once. It is for these names alone.

Ports below 1024 take root, or the capability CAP_NET_BIND_SERVICE.`

func newVercelServeNames(a *app) *cobra.Command {
	var listen, dir string
	c := &cobra.Command{
		Use: "serve-names", Short: "Serve the names the clients know, instead of a preload", Long: serveNamesHelp,
		Example: "  cay vercel serve-names &\n  cay vercel exec --no-preload -- node app.mjs",
		Args:    none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:443", "address to listen on")
	c.Flags().StringVar(&dir, "dir", "", "directory of the authority (default names, in the data directory)")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		if dir == "" {
			dir = filepath.Join(wire.DataDir(), "names")
		}
		return a.serveNames(ctx, listen, dir)
	})
}

// servedNames is the output of serve-names when it serves.
type servedNames struct {
	Listen      string `json:"listen"`
	Daemon      string `json:"daemon"`
	Certificate string `json:"certificate"` // of the authority
	Bundle      string `json:"bundle"`      // with all that this machine trusts
}

func (a *app) serveNames(ctx context.Context, listen, dir string) error {
	conn, err := wire.Target{URL: a.url}.Resolve()
	if err != nil {
		return err
	}
	daemon, err := url.Parse(conn.URL())
	if err != nil {
		return err
	}
	authority, err := names.OpenAuthority(dir)
	if err != nil {
		return err
	}
	trusted, err := trust.Load()
	if err != nil {
		return err
	}
	bundle, err := authority.WriteBundle(append(slices.Clip(trusted.Extra()), trust.Public()...))
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		e := cay.Errorf(cay.Unavailable, "cannot listen on %s: %w", listen, err)
		if errors.Is(err, fs.ErrPermission) {
			e = e.WithHint("run it as root, or give the program the capability: setcap cap_net_bind_service+ep")
		}
		return e
	}
	models := func(ctx context.Context) (*url.URL, error) {
		at, err := a.gatewayURL(ctx)
		if err != nil {
			return nil, err
		}
		return url.Parse(at)
	}
	server := names.New(daemon, models, authority, slog.New(slog.DiscardHandler))
	if err := a.printNames(servedNames{l.Addr().String(), daemon.String(), authority.File(), bundle}); err != nil {
		return errors.Join(err, l.Close())
	}
	if err := server.Serve(ctx, l); err != nil {
		return err
	}
	return cay.Errorf(cay.Canceled, "interrupted")
}

func (a *app) printNames(s servedNames) error {
	if a.json {
		return a.printJSON(s)
	}
	host, _, err := net.SplitHostPort(s.Listen)
	if err != nil {
		return err
	}
	w := &errWriter{w: a.stdout}
	fmt.Fprintf(w, `cay serves the names of Vercel Sandbox on %[1]s for %[2]s

for dnsmasq, which knows names of previews, too:
  host-record=vercel.com,%[3]s
  host-record=api.vercel.com,%[3]s
  host-record=oidc.vercel.com,%[3]s
  host-record=ai-gateway.vercel.sh,%[3]s
  host-record=vercel-workflow.com,%[3]s
  address=/vercel.run/%[3]s
  address=/vercel-queue.com/%[3]s
for /etc/hosts, without previews:
  %[3]s vercel.com api.vercel.com oidc.vercel.com ai-gateway.vercel.sh vercel-workflow.com iad1.vercel-queue.com
for Node:
  export NODE_EXTRA_CA_CERTS=%[4]s
for Python, curl and others:
  export SSL_CERT_FILE=%[5]s
`, s.Listen, s.Daemon, host, s.Certificate, s.Bundle)
	return w.err
}
