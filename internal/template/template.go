package template

import (
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/sandbox"
)

// Template is a build. Its fields are the keys of a cay.yaml.
type Template struct {
	// Name is the name of the result: for a snapshot as in sandbox.SnapshotParams,
	// for an image a reference.
	Name string `yaml:"name"`
	// From defaults to the default image with the default runtime.
	From      From      `yaml:"from"`
	Resources Resources `yaml:"resources"`
	// Env is the environment of the steps, of the start command, and later of all
	// commands in sandboxes of the result. Env is part of the result, so it must not
	// have secrets.
	Env map[string]string `yaml:"env"`
	// User and WorkDir default to the base's; WorkDir is created if missing.
	User    string  `yaml:"user"`
	WorkDir string  `yaml:"workdir"`
	Network network `yaml:"network"` // of the build, not of the sandboxes made of its result
	Steps   []Step  `yaml:"steps"`   // at most 200
	Start   *Start  `yaml:"start"`
	Output  Output  `yaml:"output"` // defaults to Image

	// Config replaces Start, Env, User and WorkDir in the configuration of the image.
	// Only templates of Make have one.
	Config *sandbox.ImageConfig `yaml:"-"`
	// Ignored reports whether a path below the template's directory does not exist
	// for copies, and whether no path below it does. nil means that all paths exist.
	// Only for Make.
	Ignored func(path string) (ignored, all bool) `yaml:"-"`

	file string // it was read from, for messages
	dir  string // that copies are taken from
	made bool   // by Make
}

// From is the base of a template: at most one field is set.
type From struct {
	Image    string `yaml:"image"`
	Runtime  string `yaml:"runtime"`
	Snapshot string `yaml:"snapshot"` // id or name
}

// Resources of the build's sandboxes; a memory snapshot keeps them. Zero fields mean
// the daemon's defaults.
type Resources struct {
	VCPUs  float64     `yaml:"vcpus"`
	Memory config.Size `yaml:"memory"`
	Disk   config.Size `yaml:"disk"`
}

// Output is the kind of a template's result.
type Output string

// The outputs.
const (
	Image    Output = "image"    // an image, which takes an operator's token
	Snapshot Output = "snapshot" // a snapshot of the files
	Memory   Output = "memory"   // a snapshot with the start command running and ready
	// Layer is the layer of the last step alone, for templates of Make.
	Layer Output = "layer"
)

// Step runs a program or copies files.
type Step struct {
	Run Command `yaml:"run"`
	// Copy are paths below the template's directory.
	Copy texts `yaml:"copy"`
	// To is the destination of the copies, relative to the working directory: a
	// directory if it ends in a slash, else the name of the single copy. Empty means
	// "./".
	To string `yaml:"to"`
	// Exclude are patterns of files that are not copied: patterns with a slash match
	// paths below the template's directory, patterns without a slash match names in
	// any directory.
	Exclude []string `yaml:"exclude"`

	User    string            `yaml:"user"` // runs the step, or owns the copies
	WorkDir string            `yaml:"workdir"`
	Env     map[string]string `yaml:"env"`     // added to the template's
	Timeout time.Duration     `yaml:"timeout"` // 0: none but the build's

	// The fields below are for Make alone.

	// Mkdir is an absolute path: a directory to create, with its parents, if it is
	// missing. Its owner is root.
	Mkdir string `yaml:"-"`
	// Merge copies as a Dockerfile does: Copy has patterns, directories are replaced
	// by their content, and a file goes into To if To is a directory at the time of
	// the step.
	Merge bool `yaml:"-"`
	// Source, unless zero, is an image or a snapshot: Copy then has absolute paths in
	// it, instead of paths in the template's directory. Source requires Merge.
	Source From `yaml:"-"`
	// Mode, unless nil, is the permission bits of all copies except links.
	Mode *fs.FileMode `yaml:"-"`
	// Text replaces the text that describes the step, which is otherwise made of the
	// other fields.
	Text string `yaml:"-"`
}

// Start is the program that runs in a memory snapshot, or that is the image's
// command.
type Start struct {
	Command Command           `yaml:"command"`
	Env     map[string]string `yaml:"env"` // added to the template's
	User    string            `yaml:"user"`
	WorkDir string            `yaml:"workdir"`
	Ready   *Ready            `yaml:"ready"`
}

// Ready is the condition for the start command to be ready: exactly one of Port,
// File, Log and Command is set.
type Ready struct {
	Port int `yaml:"port"` // it listens there
	// File must exist. Its directory has to exist from the beginning.
	File    string        `yaml:"file"`
	Log     string        `yaml:"log"`     // a log with this text
	Command Command       `yaml:"command"` // exits with status 0; it may wait
	Timeout time.Duration `yaml:"timeout"` // 0: 1 minute
}

const (
	maxSteps     = 200
	readyTimeout = time.Minute
	// layerPrefix begins the names of layers.
	layerPrefix = "tmpl-"
)

// snapshotName is the daemon's rule for names. It is compiled on first use, because
// every sandbox waits for this program to start.
var snapshotName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)
})

// Command is a program with its arguments. In a template it may be a line for the
// shell, which stops at the first command that fails.
type Command []string

// UnmarshalYAML takes a string or a list.
func (c *Command) UnmarshalYAML(unmarshal func(any) error) error {
	var line string
	if unmarshal(&line) == nil {
		if line != "" {
			*c = Command{"/bin/sh", "-ec", line}
		}
		return nil
	}
	return unmarshal((*[]string)(c))
}

func (c Command) String() string {
	if len(c) == 3 && c[0] == "/bin/sh" && c[1] == "-ec" {
		return oneLine(c[2])
	}
	return oneLine(strings.Join(c, " "))
}

// oneLine is the first line of s, with a mark if there is more.
func oneLine(s string) string {
	first, rest, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if rest != "" {
		first += " …"
	}
	return first
}

// texts are one string, or several.
type texts []string

// UnmarshalYAML takes a string or a list.
func (t *texts) UnmarshalYAML(unmarshal func(any) error) error {
	var one string
	if unmarshal(&one) == nil {
		*t = texts{one}
		return nil
	}
	return unmarshal((*[]string)(t))
}

// network is a policy in the API's form, or only its mode.
type network struct{ sandbox.Network }

// UnmarshalYAML takes a string or a policy.
func (n *network) UnmarshalYAML(unmarshal func(any) error) error {
	var mode string
	if unmarshal(&mode) == nil {
		n.Mode = sandbox.NetworkMode(mode)
		return nil
	}
	return unmarshal(&n.Network)
}

func (s Step) String() string {
	switch {
	case s.Text != "":
		return oneLine(s.Text)
	case len(s.Run) > 0:
		return "run " + s.Run.String()
	case s.Mkdir != "":
		return "make " + s.Mkdir
	}
	return "copy " + strings.Join(s.Copy, ", ") + " to " + s.to()
}

func (s Step) to() string {
	if s.To == "" {
		return "./"
	}
	return s.To
}

// Base returns the parameters of the template's sandboxes that name their base.
func (t *Template) Base() sandbox.CreateParams {
	return sandbox.CreateParams{Image: t.From.Image, Runtime: t.From.Runtime, Snapshot: t.From.Snapshot}
}

// fault is an error in the value at a path of the file, "$.name".
type fault struct {
	path string
	err  error
}

func wrong(path, format string, args ...any) *fault {
	return &fault{path, fmt.Errorf(format, args...)}
}

// Check returns an error for an invalid template, with the line if the template was
// read from a file. Errors: invalid.
func (t *Template) check() *fault {
	if f := t.checkName(); f != nil {
		return f
	}
	given := 0
	for _, base := range []string{t.From.Image, t.From.Runtime, t.From.Snapshot} {
		if base != "" {
			given++
		}
	}
	switch {
	case given > 1:
		return wrong("$.from", "image, runtime and snapshot are given together: choose one")
	case t.Output == Layer && t.made:
	case !slices.Contains([]Output{Image, Snapshot, Memory}, t.Output):
		return wrong("$.output", "output %q is not %s, %s or %s", t.Output, Image, Snapshot, Memory)
	}
	switch {
	case len(t.Steps) > maxSteps:
		return wrong("$.steps", "there are %d steps, more than %d", len(t.Steps), maxSteps)
	case len(t.Steps) == 0 && t.Output != Memory && !t.made:
		return wrong("$.steps", "there are no steps, so there is nothing to make of the base")
	}
	p := t.Base()
	p.VCPUs, p.MemoryMB, p.DiskMB = t.Resources.VCPUs, t.Resources.Memory.MiB(), t.Resources.Disk.MiB()
	p.Env, p.User, p.WorkDir, p.Network = t.Env, t.User, t.WorkDir, t.Network.Network
	if err := p.Validate(); err != nil {
		return &fault{"$", err}
	}
	for i, s := range t.Steps {
		if f := s.check(t.Env); f != nil {
			return &fault{fmt.Sprintf("$.steps[%d]%s", i, f.path), f.err}
		}
	}
	return t.checkStart()
}

func (t *Template) checkName() *fault {
	switch {
	case t.Output == Layer:
	case t.Name == "":
		return wrong("$", "name is missing")
	case t.Output == Image:
	case !snapshotName().MatchString(t.Name):
		return wrong("$.name", "name %q is not 1 to 128 of A-Z a-z 0-9 _ -", t.Name)
	case strings.HasPrefix(t.Name, "snap_") || strings.HasPrefix(t.Name, layerPrefix):
		return wrong("$.name", "name %q begins with snap_ or %s, as ids and layers do", t.Name, layerPrefix)
	}
	return nil
}

// check returns an error for an invalid step, at a path relative to the step's.
func (s Step) check(env map[string]string) *fault {
	p := sandbox.CommandParams{Argv: s.Run, User: s.User, WorkDir: s.WorkDir, Env: merge(env, s.Env), Timeout: sandbox.Duration(s.Timeout)}
	switch {
	case len(s.Run) > 0 && len(s.Copy) > 0:
		return wrong("", "a step either runs or copies: make it two")
	case len(s.Run) > 0 && (s.To != "" || len(s.Exclude) > 0):
		return wrong("", "to and exclude are for steps that copy")
	case len(s.Run) > 0:
		if s.Timeout < 0 {
			return wrong(".timeout", "timeout %v is negative", s.Timeout)
		}
		if err := p.Validate(); err != nil {
			return &fault{"", err}
		}
		return nil
	case s.Mkdir != "" && len(s.Copy) == 0:
		if err := sandbox.CheckPath("directory", s.Mkdir); err != nil {
			return &fault{"", err}
		}
		return nil
	case len(s.Copy) == 0:
		return wrong("", "a step says run or copy")
	case len(s.Env) > 0 || s.WorkDir != "" || s.Timeout != 0:
		return wrong("", "env, workdir and timeout are for steps that run")
	case len(s.Copy) > 1 && !strings.HasSuffix(s.to(), "/"):
		return wrong(".to", "%d copies cannot all be called %q: end it in a slash to copy them into it", len(s.Copy), s.To)
	}
	if err := (sandbox.ExtractParams{User: s.User}).Validate(); err != nil {
		return &fault{".user", err}
	}
	if err := sandbox.CheckPath("to", s.to()); err != nil {
		return &fault{".to", err}
	}
	for i, src := range s.Copy {
		if s.Source != (From{}) {
			if !path.IsAbs(src) || strings.ContainsAny(src, "*?[\x00") {
				return wrong(fmt.Sprintf(".copy[%d]", i), "%q is not an absolute path without wildcards, as copies from another image are", src)
			}
			continue
		}
		if src == "" || strings.ContainsRune(src, 0) || !filepath.IsLocal(src) {
			return wrong(fmt.Sprintf(".copy[%d]", i), "%q is not a path below the template's directory", src)
		}
	}
	for i, pattern := range s.Exclude {
		if pattern == "" || !doublestar.ValidatePattern(pattern) {
			return wrong(fmt.Sprintf(".exclude[%d]", i), "%q is not a pattern", pattern)
		}
	}
	return nil
}

func (t *Template) checkStart() *fault {
	s := t.Start
	switch {
	case s == nil && t.Output == Memory:
		return wrong("$", "start is missing: a memory snapshot is of a program that runs")
	case s == nil:
		return nil
	case t.Output == Snapshot:
		return wrong("$.start", "nothing runs in a snapshot of files: choose the output %s, or leave start out", Memory)
	case t.Output == Image && s.Ready != nil:
		return wrong("$.start.ready", "nothing runs in an image: choose the output %s, or leave ready out", Memory)
	case t.Output == Image && (s.User != "" || s.WorkDir != "" || len(s.Env) > 0):
		return wrong("$.start", "an image has one user, workdir and env: set the template's instead")
	}
	p := sandbox.CommandParams{Argv: s.Command, Env: merge(t.Env, s.Env), User: s.User, WorkDir: s.WorkDir}
	if err := p.Validate(); err != nil {
		return &fault{"$.start", err}
	}
	if t.Output == Image {
		return nil
	}
	if s.Ready == nil {
		return wrong("$.start", "ready is missing: say how to tell that the command is ready")
	}
	return s.Ready.check()
}

func (r *Ready) check() *fault {
	given := 0
	for _, set := range []bool{r.Port != 0, r.File != "", r.Log != "", len(r.Command) > 0} {
		if set {
			given++
		}
	}
	switch {
	case given != 1:
		return wrong("$.start.ready", "ready takes exactly one of port, file, log and command")
	case r.Port < 0 || r.Port > 65535:
		return wrong("$.start.ready.port", "port %d is not 1 to 65535", r.Port)
	case r.Timeout < 0:
		return wrong("$.start.ready.timeout", "timeout %v is negative", r.Timeout)
	case len(r.Log) > maxLog:
		return wrong("$.start.ready.log", "log has %d bytes, more than %d", len(r.Log), maxLog)
	}
	if len(r.Command) > 0 {
		if err := (sandbox.CommandParams{Argv: r.Command}).Validate(); err != nil {
			return &fault{"$.start.ready.command", err}
		}
	}
	return nil
}

func (r *Ready) timeout() time.Duration {
	if r.Timeout == 0 {
		return readyTimeout
	}
	return r.Timeout
}

// SetNetwork replaces the policy of the build by a valid one.
func (t *Template) SetNetwork(n sandbox.Network) { t.Network = network{n} }

// Rename changes the name of the result. Errors: invalid.
func (t *Template) Rename(name string) error {
	t.Name = name
	if f := t.checkName(); f != nil {
		return cay.Errorf(cay.Invalid, "%w", f.err)
	}
	return nil
}
