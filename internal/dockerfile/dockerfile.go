package dockerfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/template"
	"github.com/cayhq/cay/sandbox"
)

// maxSize is the most bytes of a Dockerfile.
const maxSize = 1 << 20

// Params say what to build.
type Params struct {
	Dockerfile []byte
	File       string // its name in messages
	Context    string // the directory that COPY and ADD take files from
	// Ignore has the lines of a .dockerignore.
	Ignore []string
	Name   string            // of the image
	Target string            // stage by name or number; empty: the last one
	Args   map[string]string // of ARG
}

// Builder builds Dockerfiles.
type Builder struct {
	// As in template.Builder.
	Sandboxes template.Sandboxes
	Images    template.Images
	ProjectID string
	Timeout   time.Duration
	NoCache   bool
	Progress  func(template.Event)
	// Network is the policy of RUN. The zero value means the default policy of a
	// sandbox.
	Network sandbox.Network
	// Ensure pulls an image if it is missing. Errors: those of sandbox.Images.Pull.
	Ensure func(ctx context.Context, ref string) error
	// Note is called with a text about each instruction that was left out.
	Note func(text string)
}

// build is one build.
type build struct {
	*Builder
	p      Params
	lex    *shell.Lex
	stages []instructions.Stage
	meta   map[string]string // arguments before the first FROM
	ignore *ignore
	done   map[int]*stage
	used   map[string]bool // build arguments that are declared
}

// Build builds an image. Errors: invalid (the Dockerfile, with the line),
// not_supported (an instruction or flag), those of template.Builder.Build.
func (b *Builder) Build(ctx context.Context, p Params) (*template.Result, error) {
	if len(p.Dockerfile) > maxSize {
		return nil, cay.Errorf(cay.TooLarge, "%s has %d bytes, more than %d", p.File, len(p.Dockerfile), maxSize)
	}
	parsed, err := parser.Parse(bytes.NewReader(p.Dockerfile))
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "%s: %w", p.File, err)
	}
	for _, w := range parsed.Warnings {
		b.Note(w.Short)
	}
	stages, meta, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "%s: %w", p.File, err)
	}
	if len(stages) == 0 {
		return nil, cay.Errorf(cay.Invalid, "%s has no FROM", p.File)
	}
	ig, err := newIgnore(p.Ignore)
	if err != nil {
		return nil, err
	}
	u := &build{
		Builder: b, p: p, lex: shell.NewLex(parsed.EscapeToken), stages: stages, ignore: ig,
		meta: platformArgs(), done: map[int]*stage{}, used: map[string]bool{},
	}
	for _, arg := range meta {
		if err := u.declare(u.meta, arg.Args, func(word string) (string, error) { return u.expand(word, u.meta) }); err != nil {
			return nil, u.at(arg.Location(), err)
		}
	}
	target, err := u.target()
	if err != nil {
		return nil, err
	}
	st, err := u.stage(ctx, target, template.Image)
	if err != nil {
		return nil, err
	}
	for name := range p.Args {
		if !u.used[name] && !proxyArgs[name] {
			b.Note(fmt.Sprintf("build argument %s is declared by no ARG", name))
		}
	}
	return st.result, nil
}

// platformArgs are the arguments that BuildKit defines.
func platformArgs() map[string]string {
	platform := "linux/" + runtime.GOARCH
	return map[string]string{
		"TARGETPLATFORM": platform, "TARGETOS": "linux", "TARGETARCH": runtime.GOARCH, "TARGETVARIANT": "",
		"BUILDPLATFORM": platform, "BUILDOS": "linux", "BUILDARCH": runtime.GOARCH, "BUILDVARIANT": "",
	}
}

// proxyArgs are arguments that RUN gets without ARG, if the caller passes them.
var proxyArgs = map[string]bool{
	"HTTP_PROXY": true, "http_proxy": true, "HTTPS_PROXY": true, "https_proxy": true, "FTP_PROXY": true, "ftp_proxy": true,
	"NO_PROXY": true, "no_proxy": true, "ALL_PROXY": true, "all_proxy": true,
}

// target returns the number of the stage to build.
func (u *build) target() (int, error) {
	if u.p.Target == "" {
		return len(u.stages) - 1, nil
	}
	if i, ok := instructions.HasStage(u.stages, u.p.Target); ok {
		return i, nil
	}
	for i := range u.stages {
		if fmt.Sprint(i) == u.p.Target {
			return i, nil
		}
	}
	return 0, cay.Errorf(cay.Invalid, "%s has no stage %q", u.p.File, u.p.Target)
}

// stageNamed finds a stage before the stage with number before, by name or number.
func (u *build) stageNamed(name string, before int) (int, bool) {
	for i := before - 1; i >= 0; i-- {
		if strings.EqualFold(u.stages[i].Name, name) || fmt.Sprint(i) == name {
			return i, true
		}
	}
	return 0, false
}

// at adds the line number to an error.
func (u *build) at(where []parser.Range, err error) error {
	var failed *template.StepError
	if err == nil || len(where) == 0 || errors.As(err, &failed) {
		return err
	}
	code := cay.CodeOf(err)
	if coded := (*cay.Error)(nil); !errors.As(err, &coded) {
		code = cay.Invalid
	}
	return cay.Errorf(code, "%s:%d: %w", u.p.File, where[0].Start.Line, err)
}

// declare adds the variables that ARG declares to args.
func (u *build) declare(args map[string]string, declared []instructions.KeyValuePairOptional, expand func(string) (string, error)) error {
	for _, arg := range declared {
		given, ok := u.p.Args[arg.Key]
		u.used[arg.Key] = true
		switch {
		case ok:
			args[arg.Key] = given
		case arg.Value != nil:
			value, err := expand(*arg.Value)
			if err != nil {
				return err
			}
			args[arg.Key] = value
		}
	}
	return nil
}

// variables are the variables for expanding words.
type variables map[string]string

// Get implements shell.EnvGetter.
func (v variables) Get(name string) (string, bool) { value, ok := v[name]; return value, ok }

// Keys implements shell.EnvGetter.
func (v variables) Keys() []string {
	keys := make([]string, 0, len(v))
	for k := range v {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// expand replaces variables in a word, and removes its quotes.
func (u *build) expand(word string, vars map[string]string) (string, error) {
	text, _, err := u.lex.ProcessWord(word, variables(vars))
	return text, err
}

// stage is a stage that is built, or in progress.
type stage struct {
	n      int
	config sandbox.ImageConfig // without its Env
	env    map[string]string   // of ENV and of the base
	args   map[string]string   // of ARG
	shell  []string
	ownCmd bool                // CMD was given here
	root   sandbox.ImageConfig // of the image at the bottom of its bases
	steps  []template.Step
	from   template.From
	result *template.Result
}

// stage builds a stage, unless it is built already.
func (u *build) stage(ctx context.Context, n int, output template.Output) (*stage, error) {
	if st := u.done[n]; st != nil {
		return st, nil
	}
	src := u.stages[n]
	st, err := u.begin(ctx, n)
	if err != nil {
		return nil, u.at(src.Location, err)
	}
	for _, c := range src.Commands {
		if err := u.instruction(ctx, st, c); err != nil {
			return nil, u.at(c.Location(), err)
		}
	}
	t := template.Template{Name: u.p.Name, From: st.from, Steps: st.steps, Output: output, Ignored: u.ignore.ignored}
	if output == template.Image {
		if len(st.config.Entrypoint)+len(st.config.Cmd) == 0 && len(st.root.Entrypoint)+len(st.root.Cmd) > 0 {
			return nil, cay.Errorf(cay.NotSupported, "%s: an image without ENTRYPOINT and CMD cannot be made of one that has them: set one of them", u.p.File)
		}
		t.Config = &st.config
		for _, k := range variables(st.env).Keys() {
			t.Config.Env = append(t.Config.Env, k+"="+st.env[k])
		}
	}
	made, err := template.Make(t, u.p.File, u.p.Context)
	if err != nil {
		return nil, err
	}
	made.SetNetwork(u.Network)
	steps := &template.Builder{Sandboxes: u.Sandboxes, Images: u.Images, ProjectID: u.ProjectID, Timeout: u.Timeout, NoCache: u.NoCache, Progress: u.Progress}
	if st.result, err = steps.Build(ctx, made); err != nil {
		return nil, err
	}
	u.done[n] = st
	return st, nil
}

// begin finds the base of a stage.
func (u *build) begin(ctx context.Context, n int) (*stage, error) {
	src := u.stages[n]
	base, err := u.expand(src.BaseName, u.meta)
	if err != nil {
		return nil, err
	}
	platform, err := u.expand(src.Platform, u.meta)
	if err != nil {
		return nil, err
	}
	if err := CheckPlatform(platform); err != nil {
		return nil, err
	}
	st := &stage{n: n, env: map[string]string{}, args: map[string]string{}, shell: []string{"/bin/sh", "-c"}}
	for name, value := range u.p.Args {
		if proxyArgs[name] {
			st.args[name] = value
		}
	}
	switch i, ok := u.stageNamed(base, n); {
	case base == "":
		return nil, cay.Errorf(cay.Invalid, "FROM %s names nothing", src.BaseName)
	case ok:
		parent, err := u.stage(ctx, i, template.Layer)
		if err != nil {
			return nil, err
		}
		st.from = template.From{Snapshot: parent.result.Snapshot.ID}
		st.config, st.root, st.shell = clone(parent.config), parent.root, parent.shell
		for k, v := range parent.env {
			st.env[k] = v
		}
		return st, nil
	case base == "scratch":
		return nil, cay.Errorf(cay.NotSupported, "FROM scratch: cay builds upon an image; start from a small one")
	}
	if err := u.Ensure(ctx, base); err != nil {
		return nil, err
	}
	img, err := u.Images.Get(ctx, base)
	if err != nil {
		return nil, err
	}
	st.from = template.From{Image: base}
	st.config, st.root = clone(img.Config), img.Config
	for _, kv := range img.Config.Env {
		k, v, _ := strings.Cut(kv, "=")
		st.env[k] = v
	}
	return st, nil
}

// clone copies the parts of a configuration that a stage changes. The environment is
// kept separately.
func clone(c sandbox.ImageConfig) sandbox.ImageConfig {
	c.Env = nil
	labels := map[string]string{}
	for k, v := range c.Labels {
		labels[k] = v
	}
	c.Labels, c.ExposedPorts = labels, slices.Clone(c.ExposedPorts)
	return c
}

// CheckPlatform refuses a platform other than the machine's. Errors: not_supported.
func CheckPlatform(platform string) error {
	if platform == "" || platform == "linux" || platform == "linux/"+runtime.GOARCH {
		return nil
	}
	return cay.Errorf(cay.NotSupported, "platform %q is not linux/%s, the machine's own, for which images are built", platform, runtime.GOARCH)
}
