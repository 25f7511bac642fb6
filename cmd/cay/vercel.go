package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/compat/vercelsandbox/preload"
	"github.com/cayhq/cay/internal/wire"
)

const vercelHelp = `Run programs written for Vercel Sandbox on this daemon: its SDKs for JavaScript and
Python, and the command line "sandbox", without a change to them. Models that the
AI SDK calls at ai-gateway.vercel.sh are those of the daemon's AI gateway, and
workflows of the Workflow SDK live in the daemon.
docs/vercel.md has all of it.`

func newVercelCommand(a *app) *cobra.Command {
	return newNoun("vercel", "Run programs written for Vercel Sandbox", vercelHelp, newVercelExec(a), newVercelEnv(a), newVercelServeNames(a))
}

const vercelEnvHelp = `Print the variables with which programs written for Vercel Sandbox speak to this
daemon: credentials, and what points clients at it. eval takes what is printed.

Models that programs for Node ask of ai-gateway.vercel.sh are called at the AI gateway
at CAY_GATEWAY_URL, by default the daemon's. It takes the token. A program that has
AI_GATEWAY_API_KEY sends that instead: set it to a key of "cay gateway keys create".

Apps of the Workflow SDK (npm workflow) keep their workflows in the daemon, which
delivers to the app wherever its server listens. A run is delivered to the build that
started it: VERCEL_DEPLOYMENT_ID names the build in the working directory (of Next.js,
Nitro, SvelteKit or "workflow build"), or the directory if there is none, or if the
command of "cay vercel exec" has the word dev. It stays as the user has set it. Where
the daemon cannot reach the app at the address it listens on, CAY_APP_URL is another
one. With WORKFLOW_TARGET_WORLD=local workflows stay in the app.

The token among them is for one project and good for 30 days, or for 12 hours if the
one it is made with is bound to a project. It is kept in the user's cache directory,
and printed again while it is good.`

// vercelOptions name the team and project that a program acts for.
type vercelOptions struct {
	project    string
	deployment string
	noPreload  bool
}

func (o *vercelOptions) register(c *cobra.Command) {
	c.Flags().StringVar(&o.project, "project", "", "project to speak for, by id or name (default the token's, else the team's default one)")
	c.Flags().StringVar(&o.deployment, "deployment", "", "id of this build of an app with workflows (default $CAY_DEPLOYMENT, else derived from the build)")
	c.Flags().BoolVar(&o.noPreload, "no-preload", false, "leave out what points clients at the daemon: \"cay vercel serve-names\" does")
}

func newVercelEnv(a *app) *cobra.Command {
	var o vercelOptions
	var shell string
	c := &cobra.Command{
		Use: "env", Short: "Print the variables such a program needs", Long: vercelEnvHelp,
		Example: `  eval "$(cay vercel env)" && node app.mjs
  cay vercel env --shell fish | source`,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	o.register(c)
	c.Flags().StringVar(&shell, "shell", "sh", "whose language to print in: sh, fish or json")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		if a.json {
			shell = "json"
		}
		write, ok := shells[shell]
		if !ok {
			return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--shell is %q; it is sh, fish or json", shell)}
		}
		vars, err := o.variables(ctx, a, nil)
		if err != nil {
			return err
		}
		if write == nil {
			object := make(map[string]string, len(vars))
			for _, v := range vars {
				object[v.name] = v.value
			}
			return a.printJSON(object)
		}
		w := &errWriter{w: a.stdout}
		for _, v := range vars {
			write(w, v)
		}
		return w.err
	})
}

// variable is a variable of a program's environment.
type variable struct{ name, value string }

// shells write a variable in the languages of shells; json is written as a whole.
var shells = map[string]func(w io.Writer, v variable){
	"sh": func(w io.Writer, v variable) {
		fmt.Fprintf(w, "export %s='%s'\n", v.name, strings.ReplaceAll(v.value, "'", `'\''`))
	},
	"fish": func(w io.Writer, v variable) {
		fmt.Fprintf(w, "set -gx %s '%s'\n", v.name, strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(v.value))
	},
	"json": nil,
}

const vercelExecHelp = `Run a program written for Vercel Sandbox with the variables "cay vercel env" prints.
It takes the place of this process, so its exit code and signals are its own.

Exit codes: the program's own; 125 cay failed before it ran; 127 there is no such program.`

func newVercelExec(a *app) *cobra.Command {
	var o vercelOptions
	c := &cobra.Command{
		Use: "exec [flags] [--] COMMAND [ARG...]", Short: "Run such a program on this daemon", Long: vercelExecHelp,
		Example: `  cay vercel exec -- node app.mjs
  cay vercel exec -- npx sandbox create --name web
  cay vercel exec -- npm start
  cay vercel exec --project web -- python3 app.py`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(splitDash(args)) == 0 {
				return usage(cmd, "there is no command to run")
			}
			return nil
		},
	}
	c.Flags().SetInterspersed(false)
	o.register(c)
	return a.verb(c, func(ctx context.Context, args []string) error {
		argv := splitDash(args)
		path, err := exec.LookPath(argv[0])
		if err != nil {
			return &exitError{exitNotFound, cay.Errorf(cay.ExecutableMissing, "%v", err)}
		}
		vars, err := o.variables(ctx, a, argv)
		if err != nil {
			return before(ctx, err)
		}
		env := os.Environ()
		for _, v := range vars {
			env = append(env, v.name+"="+v.value)
		}
		// os/exec uses the last value of a name; not every program does.
		cmd := exec.Cmd{Env: env}
		if err := syscall.Exec(path, argv, cmd.Environ()); err != nil {
			return &exitError{exitFailed, cay.Errorf(cay.Invalid, "%s cannot be run: %w", path, err)}
		}
		return nil // not reached
	})
}

// variables returns the environment variables for a program. argv is its command, nil if
// unknown.
func (o *vercelOptions) variables(ctx context.Context, a *app, argv []string) ([]variable, error) {
	workflows, err := o.workflowVariables(argv)
	if err != nil {
		return nil, err
	}
	dir, err := vercelDir()
	if err != nil {
		return nil, err
	}
	c, err := o.credential(ctx, a, filepath.Join(dir, "tokens"))
	if err != nil {
		return nil, err
	}
	vars := []variable{
		{"VERCEL_OIDC_TOKEN", c.Secret}, // JavaScript and Python
		{"VERCEL_AUTH_TOKEN", c.Secret}, // the command line
		{"VERCEL_TOKEN", c.Secret},      // programs that pass all three
		{"VERCEL_TEAM_ID", c.TeamID},
		{"VERCEL_PROJECT_ID", c.ProjectID},
		{"VERCEL_TELEMETRY_DISABLED", "1"}, // telemetry would go to the vendor
		{"VERCEL_SANDBOX_TELEMETRY_DISABLED", "1"},
		{"SANDBOX_SKIP_VERSION_CHECK", "1"},
	}
	vars = append(vars, workflows...)
	if len(workflows) > 0 {
		vars = append(vars, // for the SDK's own command line: npx workflow inspect runs
			variable{"WORKFLOW_VERCEL_AUTH_TOKEN", c.Secret},
			variable{"WORKFLOW_VERCEL_TEAM", c.TeamID},
			variable{"WORKFLOW_VERCEL_PROJECT", c.ProjectID},
			variable{"WORKFLOW_VERCEL_PROJECT_NAME", c.ProjectID},
			variable{"WORKFLOW_LOCAL_UI", "1"}) // npx workflow web would open the vendor's pages
	}
	if o.noPreload {
		return vars, nil
	}
	models, err := a.gatewayVariable(ctx)
	if err != nil {
		return nil, err
	}
	module, path := filepath.Join(dir, "preload.mjs"), filepath.Join(dir, "python")
	if err := errors.Join(
		keepFile(module, preload.Module("", ""), 0o644),
		keepFile(filepath.Join(path, "sitecustomize.py"), preload.Sitecustomize, 0o644),
	); err != nil {
		return nil, err
	}
	if models != "" {
		vars = append(vars, variable{"CAY_VERCEL_GATEWAY_URL", models})
	}
	return append(vars,
		variable{"CAY_VERCEL_URL", c.URL},
		variable{"NODE_OPTIONS", withOption(os.Getenv("NODE_OPTIONS"), "--import="+fileURL(module))},
		variable{"PYTHONPATH", withDir(os.Getenv("PYTHONPATH"), path)},
	), nil
}

// gatewayURL returns the AI gateway's URL for programs that call models: the user's
// setting, else the daemon's answer. Errors are those of gateway.Client.Address.
func (a *app) gatewayURL(ctx context.Context) (string, error) {
	at := os.Getenv("CAY_GATEWAY_URL")
	if at == "" {
		return gatewayClient(a).Address(ctx)
	}
	conn, err := wire.Target{URL: at, Token: a.token}.Resolve()
	if err != nil {
		return "", &exitError{exitUsage, cay.Errorf(cay.Invalid, "CAY_GATEWAY_URL: %w", err)}
	}
	return conn.URL(), nil
}

// gatewayVariable returns the gateway's address for the preload: preload.Off if the
// gateway is off, "" if it cannot be reached from here.
func (a *app) gatewayVariable(ctx context.Context) (string, error) {
	at, err := a.gatewayURL(ctx)
	var wrong *exitError
	if errors.As(err, &wrong) {
		return "", err
	}
	switch cay.CodeOf(err) {
	case cay.NotFound:
		return preload.Off, nil
	case cay.Invalid:
		return "", nil
	}
	return at, err
}

// withOption adds an option to a list of options, once.
func withOption(options, option string) string {
	for o := range strings.FieldsSeq(options) {
		if o == option {
			return options
		}
	}
	return strings.TrimSpace(options + " " + option)
}

// withDir puts a directory in front of a list of directories, once.
func withDir(list, dir string) string {
	dirs := []string{dir}
	for _, d := range filepath.SplitList(list) {
		if d != dir {
			dirs = append(dirs, d)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}
