package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/compat/docker"
	"github.com/cayhq/cay/internal/dockerfile"
	"github.com/cayhq/cay/internal/template"
	"github.com/cayhq/cay/sandbox"
)

const dockerBuildHelp = `Build an image of a Dockerfile. Each RUN runs in a sandbox of the daemon at --url; the
results of steps are kept for 30 days and used again, as those of "cay image build -f".
docs/cloudflare.md says which instructions there are. Flags that this command does not
know are left out with a note.`

type dockerBuildOptions struct {
	file     string
	tags     []string
	args     []string
	target   string
	platform string
	network  string
	project  string
	noCache  bool
	quiet    bool
	timeout  time.Duration
}

// buildFlagsLeftOut are flags of docker build without a meaning here, with true for
// those that take no value.
var buildFlagsLeftOut = map[string]bool{
	"load": true, "pull": true, "rm": true, "force-rm": true, "provenance": false, "sbom": false, "progress": false,
	"cache-from": false, "cache-to": false, "builder": false, "attest": false, "metadata-file": false,
}

func newDockerBuild(a *app) *cobra.Command {
	var o dockerBuildOptions
	c := &cobra.Command{
		Use: "build [flags] DIRECTORY", Short: "Build an image of a Dockerfile", Long: dockerBuildHelp,
		Example:            "  cay docker build -t app:1 .\n  cay docker build -t app:1 --build-arg VERSION=2 -f - . <Dockerfile",
		DisableFlagParsing: true, // unknown ones are noted
	}
	fl := c.Flags()
	fl.StringVarP(&o.file, "file", "f", "", "the Dockerfile, or - for standard input (default Dockerfile in the directory)")
	fl.StringArrayVarP(&o.tags, "tag", "t", nil, "name of the image; may be repeated (required)")
	fl.StringArrayVar(&o.args, "build-arg", nil, "NAME=VALUE for an ARG, or NAME with the value of the environment; may be repeated")
	fl.StringVar(&o.target, "target", "", "stage to build (default the last one)")
	fl.StringVar(&o.platform, "platform", "", "must be the machine's own: linux/amd64")
	fl.StringVar(&o.network, "network", "", "default, or none for a build without a network; host is refused")
	fl.StringVar(&o.project, "project", os.Getenv("CAY_DOCKER_PROJECT"), "project to build in, by id (default $CAY_DOCKER_PROJECT)")
	fl.BoolVar(&o.noCache, "no-cache", false, "carry out all steps, whatever is known of them")
	fl.DurationVar(&o.timeout, "timeout", time.Hour, "how long the steps of a stage may take together")
	fl.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress, and print the digest of the image")
	for name, boolean := range buildFlagsLeftOut {
		if boolean {
			fl.Bool(name, false, "")
		} else {
			fl.String(name, "", "")
		}
		fl.Lookup(name).Hidden = true
	}
	return a.verb(c, func(ctx context.Context, args []string) error {
		args, err := o.parse(a, c, args)
		if err != nil || args == nil {
			return err
		}
		return o.run(ctx, a, c, args[0])
	})
}

// parse reads the flags, and returns the directory in a list; nil if help was asked for.
func (o *dockerBuildOptions) parse(a *app, c *cobra.Command, args []string) ([]string, error) {
	fl := c.Flags()
	fl.AddFlagSet(c.InheritedFlags())
	var known []string
	for i, arg := range args {
		if arg == "--" {
			known = append(known, args[i:]...)
			break
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		switch {
		case arg == "--help" || arg == "-h":
			return nil, c.Help()
		case strings.HasPrefix(arg, "--") && fl.Lookup(name) == nil:
			a.note(false, "flag --%s is left out: cay does not know it", clean(name))
			continue
		}
		known = append(known, arg)
	}
	if err := fl.Parse(known); err != nil {
		return nil, usage(c, "%v", err)
	}
	fl.Visit(func(f *pflag.Flag) {
		if _, ok := buildFlagsLeftOut[f.Name]; ok && f.Name != "load" {
			a.note(o.quiet, "flag --%s is left out", f.Name)
		}
	})
	switch {
	case len(o.tags) == 0:
		return nil, usage(c, "-t is missing: cay keeps images by their names")
	case fl.NArg() != 1:
		return nil, usage(c, "it takes one directory, not %d arguments", fl.NArg())
	case fl.Arg(0) == "-" || strings.Contains(fl.Arg(0), "://"):
		return nil, usage(c, "the context %q is not a directory of this machine", fl.Arg(0))
	case !slices.Contains([]string{"", "default", "bridge", "none"}, o.network):
		return nil, usage(c, "cay refuses --network %s: a build has the network of its sandboxes", o.network)
	}
	return fl.Args(), dockerfile.CheckPlatform(o.platform)
}

func (o *dockerBuildOptions) run(ctx context.Context, a *app, c *cobra.Command, dir string) error {
	p := dockerfile.Params{Context: dir, Name: o.tags[0], Target: o.target, Args: map[string]string{}}
	for _, arg := range o.args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok {
			if value, ok = os.LookupEnv(name); !ok {
				continue // as docker does
			}
		}
		p.Args[name] = value
	}
	if err := o.read(a, &p); err != nil {
		return err
	}
	client, stop, err := a.open(ctx)
	if err != nil {
		return err
	}
	img, err := o.build(ctx, a, client, p)
	if serr := stop(); serr != nil {
		a.warn("cleaning up failed: %v", serr)
	}
	if err != nil {
		return err
	}
	if !o.quiet && !a.json {
		a.note(false, "built %s, %s", clean(strings.Join(o.tags, ", ")), img.Digest)
		return nil
	}
	return a.show(img, func(w io.Writer) { fmt.Fprintln(w, img.Digest) })
}

// read reads the Dockerfile and the patterns of ignored files.
func (o *dockerBuildOptions) read(a *app, p *dockerfile.Params) (err error) {
	path := o.file
	switch path {
	case "-":
		path, p.File = "", "Dockerfile"
		p.Dockerfile, err = io.ReadAll(a.stdin)
	case "":
		path = filepath.Join(p.Context, "Dockerfile")
		fallthrough
	default:
		p.File = path
		p.Dockerfile, err = os.ReadFile(path)
	}
	if err != nil {
		return cay.Errorf(cay.Invalid, "cannot read the Dockerfile: %w", err)
	}
	p.Ignore, err = dockerfile.ReadIgnore(p.Context, path)
	return err
}

func (o *dockerBuildOptions) build(ctx context.Context, a *app, client *sandbox.Client, p dockerfile.Params) (*sandbox.Image, error) {
	quiet := o.quiet || a.json
	show := &buildProgress{app: a, quiet: quiet}
	b := &dockerfile.Builder{
		Sandboxes: client, Images: client.Images(), ProjectID: o.project, Timeout: o.timeout, NoCache: o.noCache, Progress: show.event,
		Ensure: func(ctx context.Context, ref string) error {
			return a.ensureImages(ctx, client, sandbox.CreateParams{Image: ref}, quiet)
		},
		Note: func(text string) { a.note(quiet, "%s", clean(text)) },
	}
	if o.network == "none" {
		b.Network.Mode = sandbox.DenyAll
	}
	r, err := b.Build(ctx, p)
	show.done()
	if err != nil {
		return nil, showFailed(a, quiet, err)
	}
	img := r.Image
	for _, tag := range o.tags[1:] {
		if img, err = client.Images().Tag(ctx, img.Digest, tag); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// buildForSocket builds an image for a client of the socket. The build's files come from
// the client, and are opened only within their directory: a client of the socket has the
// rights of the token, not the rights of this process.
func (a *app) buildForSocket(ctx context.Context, client *sandbox.Client, project string, p docker.Build) (*sandbox.Image, error) {
	root, err := os.OpenRoot(p.Context)
	if err != nil {
		return nil, err
	}
	defer root.Close() // it was only read
	text, err := root.ReadFile(p.File)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "cannot read the Dockerfile %s in the files of the build", p.File)
	}
	b := &dockerfile.Builder{
		Sandboxes: client, Images: client.Images(), ProjectID: project, NoCache: p.NoCache,
		Progress: func(e template.Event) {
			switch {
			case e.Output != nil:
				p.Say(string(e.Output))
			case e.Phase == template.PhaseStep:
				p.Say(fmt.Sprintf("Step %d/%d : %s\n", e.Step, e.Steps, e.Text))
			case e.Phase == template.PhaseCached:
				p.Say(fmt.Sprintf("Step %d/%d : %s\n ---> Using cache\n", e.Step, e.Steps, e.Text))
			case e.Phase == template.PhaseLeft:
				a.warn("not removed: %s", e.Text)
			}
		},
		Ensure: func(ctx context.Context, ref string) error {
			return a.ensureImages(ctx, client, sandbox.CreateParams{Image: ref}, true)
		},
		Note: func(text string) { p.Say(text + "\n") },
	}
	if p.Offline {
		b.Network.Mode = sandbox.DenyAll
	}
	r, err := b.Build(ctx, dockerfile.Params{Dockerfile: text, File: p.File, Context: p.Context, Name: p.Tags[0], Target: p.Target, Args: p.Args})
	var failed *template.StepError
	if errors.As(err, &failed) {
		return nil, cay.Errorf(cay.Invalid, "%s", failed.Error())
	}
	if err != nil {
		return nil, err
	}
	img := r.Image
	for _, tag := range p.Tags[1:] {
		if img, err = client.Images().Tag(ctx, img.Digest, tag); err != nil {
			return nil, err
		}
	}
	return img, nil
}
