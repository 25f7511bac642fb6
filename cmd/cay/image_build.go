package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/internal/template"
	"github.com/cayhq/cay/sandbox"
)

var imageBuildHelp = `Make images, and print their digests.

With NAME, one that cay knows how to make: the default image "` + defaultImage + `", and the
runtimes ` + strings.Join(sandbox.Runtimes, ", ") + `. Without NAME: ` + defaultImage + ` and ` + defaultRuntime + `,
which sandboxes use unless told otherwise.

With --package, Debian packages are added to the image "` + defaultImage + `", until it is made anew
without them: cay image build --package ffmpeg --package jq. Sandboxes that exist keep
their image. It takes an admin token.

With -f, what a template says: a base, steps that run programs in a sandbox and copy
files from the template's directory into it, and what is to come of them. That is an
image, a snapshot of files, or a memory snapshot in which a program has started
already; of a snapshot the id is printed. docs/templates.md has all that a template may
say.

The results of steps are kept for 30 days, as snapshots whose names begin with tmpl-,
and used again as long as the steps, the files they copy, and all before them are the
same.`

type imageBuildOptions struct {
	file, name    string
	policy        networkFlags
	project       string
	timeout       time.Duration
	noCache, keep bool
	quiet         bool
	packages      []string
}

func newImageBuild(a *app) *cobra.Command {
	var o imageBuildOptions
	names := append([]string{defaultImage}, sandbox.Runtimes...)
	c := &cobra.Command{
		Use: "build [NAME]... | -f FILE", Short: "Make the default image, language runtimes, or what a template says",
		Long:      imageBuildHelp,
		Example:   "  cay image build -f cay.yaml\n  cay image build python3.13\n  cay image build --package ffmpeg,jq",
		ValidArgs: names,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(o.packages) > 0 && (o.file != "" || len(args) > 1 || len(args) == 1 && args[0] != defaultImage) {
				return usage(cmd, "--package adds to the image %q, and to nothing else", defaultImage)
			}
			if o.file != "" {
				if len(args) > 0 {
					return usage(cmd, "%q does not go together with -f: a template has its name in it, or in --name", args[0])
				}
				return nil
			}
			for _, flag := range []string{"name", "policy", "allow", "deny", "no-cache", "keep", "timeout", "project"} {
				if cmd.Flags().Changed(flag) {
					return usage(cmd, "--%s is for templates: give one with -f", flag)
				}
			}
			for _, arg := range args {
				if !slices.Contains(names, arg) {
					return usage(cmd, "%q is not one of %s", arg, strings.Join(names, ", "))
				}
			}
			return nil
		},
	}
	fl := c.Flags()
	fl.StringVarP(&o.file, "file", "f", "", "template to build, such as cay.yaml")
	fl.StringVar(&o.name, "name", "", "name of the result (default the template's)")
	o.policy.register(c, "policy")
	fl.BoolVar(&o.noCache, "no-cache", false, "carry out all steps, whatever is known of them")
	fl.BoolVar(&o.keep, "keep", false, "leave the sandbox of a build that failed running, to look into it")
	fl.DurationVar(&o.timeout, "timeout", time.Hour, "how long the steps may take together, and again the start command")
	fl.StringVar(&o.project, "project", "", "project to build in, by id")
	fl.StringSliceVar(&o.packages, "package", nil, "Debian package to add to "+defaultImage+" (repeatable, or comma-separated)")
	fl.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
	return a.verb(c, func(ctx context.Context, args []string) error {
		if o.file != "" {
			return o.run(ctx, a)
		}
		if len(o.packages) > 0 {
			return a.getImages(ctx, []string{defaultImage}, o.quiet, func(i *sandbox.Images, _ string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
				return i.BuildDefault(ctx, o.packages, progress)
			})
		}
		if len(args) == 0 {
			args = []string{defaultImage, defaultRuntime}
		}
		return a.getImages(ctx, args, o.quiet, func(i *sandbox.Images, ref string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
			return i.Build(ctx, ref, progress)
		})
	})
}

// run builds a template.
func (o *imageBuildOptions) run(ctx context.Context, a *app) error {
	t, err := template.Read(o.file)
	if err == nil && o.name != "" {
		err = t.Rename(o.name)
	}
	if err == nil {
		var given bool
		var n sandbox.Network
		if n, given, err = o.policy.network(a.stdin, "", "policy"); given {
			t.SetNetwork(n)
		}
	}
	if err == nil {
		_, err = durationValue("--timeout", o.timeout, true)
	}
	if err != nil {
		return &exitError{exitUsage, err}
	}
	// Snapshots need a daemon: an engine in this process would delete them when it
	// ends.
	c, stop := a.sandboxes(), func() error { return nil }
	if t.Output == template.Image {
		if c, stop, err = a.open(ctx); err != nil {
			return err
		}
	}
	r, err := o.build(ctx, a, c, t)
	if serr := stop(); serr != nil {
		a.warn("cleaning up failed: %v", serr)
	}
	if err != nil {
		return err
	}
	return a.show(r, func(w io.Writer) {
		if r.Image != nil {
			fmt.Fprintln(w, r.Image.Digest)
		} else {
			fmt.Fprintln(w, r.Snapshot.ID)
		}
	})
}

func (o *imageBuildOptions) build(ctx context.Context, a *app, c *sandbox.Client, t *template.Template) (*template.Result, error) {
	quiet := o.quiet || a.json
	if err := a.ensureImages(ctx, c, t.Base(), quiet); err != nil {
		return nil, err
	}
	show := &buildProgress{app: a, quiet: quiet}
	b := &template.Builder{
		Sandboxes: c, Images: c.Images(), ProjectID: o.project, Timeout: o.timeout, NoCache: o.noCache, Keep: o.keep, Progress: show.event,
	}
	r, err := b.Build(ctx, t)
	show.done()
	if err != nil {
		return nil, showFailed(a, quiet, err)
	}
	a.note(quiet, "built %s in %v; %d of %d steps were known", t.Name, r.Took, r.Cached, r.Steps)
	return r, nil
}

// showFailed shows the output of a failed step, unless it was shown already, and
// returns err.
func showFailed(a *app, quiet bool, err error) error {
	var failed *template.StepError
	if quiet && errors.As(err, &failed) {
		fmt.Fprint(a.stderr, string(failed.Output))
	}
	return err
}

// buildProgress shows a build on standard error.
type buildProgress struct {
	app   *app
	quiet bool
	open  bool      // the last output has not ended its line
	image *progress // of making the image
}

func (p *buildProgress) event(e template.Event) {
	switch {
	case e.Phase == template.PhaseKept:
		p.endLine()
		p.app.warn("sandbox %s is kept; look into it with \"cay sandbox shell %s\"", e.Text, e.Text)
		return
	case e.Phase == template.PhaseLeft:
		p.endLine()
		p.app.warn("not removed: %s", e.Text)
		return
	case p.quiet:
		return
	case e.Output != nil:
		// As with the output of cay run, the program's output is not cleaned.
		if _, err := p.app.stderr.Write(e.Output); err != nil {
			p.quiet = true // nobody looks any more
		}
		p.open = e.Output[len(e.Output)-1] != '\n'
		return
	case e.Image != nil:
		if p.image == nil {
			p.image = p.app.newProgress(false)
		}
		p.image.image(*e.Image)
		return
	}
	text := clean(e.Text)
	switch e.Phase {
	case template.PhaseCached:
		text = fmt.Sprintf("[%d/%d] %s (known)", e.Step, e.Steps, text)
	case template.PhaseStep:
		text = fmt.Sprintf("[%d/%d] %s", e.Step, e.Steps, text)
	case template.PhaseLayer:
		return // it takes less time than reading that it does
	case template.PhaseStart:
		text = "starting " + text
	case template.PhaseReady:
		text = "waiting: " + text
	case template.PhaseSave:
		text = "saving the " + text
	}
	p.endLine()
	fmt.Fprintln(p.app.stderr, text)
}

func (p *buildProgress) endLine() {
	if p.open {
		fmt.Fprintln(p.app.stderr)
	}
	p.open = false
}

func (p *buildProgress) done() {
	p.endLine()
	p.image.done()
}
