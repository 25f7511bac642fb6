package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/wire"
)

const uiHelp = `Print a link that opens the web inspector in a browser and logs it in. The link is
good for one login within 10 minutes; the login speaks for the token that made the
link, and ends when that is revoked.`

// loginURL is the output of cay ui.
type loginURL struct {
	URL string `json:"url"`
	*account.LoginLink
}

func newUICommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "ui", Short: "Print a link to the web inspector", Long: uiHelp,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, _ []string) error {
		link, err := a.accounts().CreateLoginLink(ctx)
		if err != nil {
			return err
		}
		u := loginURL{loginAddress(cmp.Or(a.url, os.Getenv("CAY_URL"), wire.DefaultURL), link), link}
		return a.show(u, func(w io.Writer) { fmt.Fprintln(w, u.URL) })
	})
}

// loginLink returns a link to the daemon that was just started, if it was started on a
// terminal, and "" otherwise: the link must not get into logs.
func (a *app) loginLink(ctx context.Context, cfg config.Config, s started) string {
	if !isTerminal(a.stdout) {
		return ""
	}
	secret, err := os.ReadFile(s.TokenFile)
	if err != nil {
		return ""
	}
	link, err := (&account.Client{URL: s.URL, Token: strings.TrimSpace(string(secret))}).CreateLoginLink(ctx)
	if err != nil {
		a.warn("no link to the web inspector was made: %v", err)
		return ""
	}
	if cfg.PublicURL != "" {
		return loginAddress(cfg.PublicURL, link)
	}
	address := s.URL
	if u, err := url.Parse(address); err == nil {
		if ip := net.ParseIP(u.Hostname()); ip != nil && ip.IsUnspecified() { // it listens on all; a browser needs one
			u.Host = net.JoinHostPort("127.0.0.1", u.Port())
			address = u.String()
		}
	}
	return loginAddress(address, link)
}

// loginAddress puts the code after a "#", so that no server and no log gets it.
func loginAddress(daemon string, link *account.LoginLink) string {
	return strings.TrimSuffix(daemon, "/") + "/ui/login#" + link.Code
}
