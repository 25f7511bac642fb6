package main

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
)

const serveHelp = `Run the daemon until SIGTERM or Ctrl-C. It then stops taking requests, tells
streams to attach again later, lets other requests finish, and leaves sandboxes
running for the next start; a second signal ends it at once. SIGHUP makes a
daemon without a terminal read its configuration again: the log level, the
default quota and the gateway's file change at once, and the log names changed
settings that need a restart.

Settings come from the flags, else from the environment (--quota-sandboxes is
CAY_QUOTA_SANDBOXES), else from a YAML file (quota: {sandboxes: ...}), else are
as shown here.

Exit codes: 0 stopped as asked, 1 error, 2 wrong usage or configuration.`

// settingFlag remembers what was given for a setting on the command line. The value is
// checked at once, but config.Load merges it with the other sources.
type settingFlag struct {
	setting config.Setting
	given   map[string]string
}

func (f *settingFlag) String() string {
	if f.setting.Key == "" { // pflag asks zero values of the type for their text
		return ""
	}
	return f.setting.String()
}

func (f *settingFlag) Set(text string) error {
	if err := f.setting.Set(text); err != nil {
		return withHint(err)
	}
	f.given[f.setting.Key] = text
	return nil
}

func (f *settingFlag) Type() string { return f.setting.Type() }

// settingKey annotates a flag of serve with the key of its setting.
const settingKey = "setting"

type serveOptions struct {
	file  string
	given map[string]string
}

func newServeCommand(a *app) *cobra.Command {
	o := serveOptions{given: make(map[string]string)}
	c := &cobra.Command{
		Use: "serve", Short: "Run the daemon", Long: serveHelp,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	fl := c.Flags()
	fl.StringVar(&o.file, "config", "", "YAML file with settings (default $CAY_CONFIG)")
	shown := config.Default()
	for _, s := range shown.Settings() {
		flag := fl.VarPF(&settingFlag{s, o.given}, s.Flag(), "", s.Usage)
		flag.Annotations = map[string][]string{settingKey: {s.Key}}
		if s.Type() == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
	return a.verb(c, func(ctx context.Context, _ []string) error { return o.run(ctx, a) })
}

// started is the output of serve when the daemon answers.
type started struct {
	URL       string `json:"url"`
	TokenFile string `json:"token_file"`
	Data      string `json:"data"`
	// GatewayURL is the AI gateway's own origin; empty if it is off.
	GatewayURL string `json:"gateway_url,omitempty"`
}

func (o *serveOptions) run(ctx context.Context, a *app) error {
	if o.file == "" {
		o.file = os.Getenv("CAY_CONFIG")
	}
	load := func() (config.Config, error) {
		return config.Load(config.Sources{File: o.file, Env: os.Getenv, Flags: o.given})
	}
	cfg, err := load()
	if err != nil {
		return &exitError{exitUsage, err}
	}
	limit, err := raiseDescriptors()
	if err != nil {
		return err
	}
	if said := describeDescriptors(limit); said != "" {
		a.warn("%s", said)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopping := false
	// A daemon in a terminal ends with the terminal. One reload may wait: it reads all that
	// has changed until then.
	reload, reloads := make(chan func() (config.Config, error), 1), !isTerminal(a.stdin)
	release := a.signals.take(func(s syscall.Signal) {
		if s == syscall.SIGHUP && reloads {
			select {
			case reload <- load:
			default:
			}
			return
		}
		if stopping {
			a.signals.exit(s)
		}
		stopping = true
		cancel(&interruptError{s})
	})
	defer release()
	err = a.serve(ctx, cfg, reload, func(url, gatewayURL string) {
		s := started{url, cfg.AdminTokenFile(), cfg.Data, gatewayURL}
		if a.json {
			if err := a.printJSON(s); err != nil {
				a.warn("%v", err)
			}
			return
		}
		fmt.Fprintf(a.stdout, "cay listens on %s\nadmin token in %s\n", s.URL, s.TokenFile)
		if link := a.loginLink(ctx, cfg, s); link != "" {
			fmt.Fprintf(a.stdout, "web inspector, good for one login within 10 minutes:\n  %s\n", link)
		}
		if s.GatewayURL != "" {
			fmt.Fprintf(a.stdout, "AI gateway on %s\n", s.GatewayURL)
		}
	})
	if cay.CodeOf(err) == cay.Invalid { // a file that the settings name is invalid
		return &exitError{exitUsage, err}
	}
	return err
}
