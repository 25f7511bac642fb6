package template

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// Sandboxes has the calls for sandboxes and snapshots that a build makes.
type Sandboxes interface {
	Create(ctx context.Context, p sandbox.CreateParams) (*sandbox.Sandbox, error)
	Delete(ctx context.Context, ref string) error
	Exec(ctx context.Context, ref string, p sandbox.CommandParams) (sandbox.Output, error)
	DialPort(ctx context.Context, ref string, port int) (net.Conn, error)

	Stat(ctx context.Context, ref, path string, follow bool) (*sandbox.FileInfo, error)
	Archive(ctx context.Context, ref, name string, format sandbox.ArchiveFormat) (io.ReadCloser, error)
	Mkdir(ctx context.Context, ref, path string, p sandbox.MkdirParams) error
	Extract(ctx context.Context, ref, dir string, r io.Reader, p sandbox.ExtractParams) error
	Watch(ctx context.Context, ref, path string, p sandbox.WatchParams) (sandbox.Watch, error)

	CreateSnapshot(ctx context.Context, ref string, p sandbox.SnapshotParams) (*sandbox.Snapshot, error)
	GetSnapshot(ctx context.Context, ref string) (*sandbox.Snapshot, error)
	DeleteSnapshot(ctx context.Context, ref string, p sandbox.DeleteSnapshotParams) (*sandbox.Snapshot, error)
}

// Images has the calls for images that a build makes.
type Images interface {
	Get(ctx context.Context, ref string) (*sandbox.Image, error)
	// FromSnapshot makes an image of the files of a snapshot.
	FromSnapshot(ctx context.Context, p sandbox.ImageSnapshotParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
}

var _ Sandboxes = (*sandbox.Client)(nil)
var _ Images = (*sandbox.Images)(nil)

// Builder builds templates. Sandboxes and Images are required, the other fields
// are optional.
type Builder struct {
	Sandboxes Sandboxes
	Images    Images
	// ProjectID is the project of the build's sandboxes, as in sandbox.CreateParams.
	ProjectID string
	// Timeout is how long each of the build's sandboxes may run. 0 means an hour.
	Timeout time.Duration
	// NoCache carries out all steps, and replaces their layers.
	NoCache bool
	// Keep leaves the sandbox of a build that failed running.
	Keep bool
	// Progress is called with each event, one call at a time.
	Progress func(Event)

	mu sync.Mutex // held while Progress runs
}

// Event is an event of a build. Exactly one of Phase, Output and Image is set.
type Event struct {
	// Phase begins: PhaseStep and so on.
	Phase Phase
	// Step is the number of the step, from 1 on, of Steps. 0 for events outside of
	// steps.
	Step, Steps int
	// Text describes the phase; for PhaseKept and PhaseLeft it names the object.
	Text string
	// Output is output of the step, the start command or the ready check.
	Output []byte
	// Image is a step of making the image.
	Image *sandbox.ImageProgress
}

// Phase is a part of a build.
type Phase string

// The phases of a build.
const (
	PhaseCached Phase = "cached" // a step whose result is known
	PhaseStep   Phase = "step"   // a step is carried out
	PhaseLayer  Phase = "layer"  // a layer is saved
	PhaseStart  Phase = "start"  // the start command is started
	PhaseReady  Phase = "ready"  // it is waited for
	PhaseSave   Phase = "save"   // the result is saved
	PhaseKept   Phase = "kept"   // the failed build's sandbox was left running
	PhaseLeft   Phase = "left"   // something could not be removed
)

// Result is the result of a build.
type Result struct {
	Image    *sandbox.Image    `json:"image,omitempty"`    // of the output image
	Snapshot *sandbox.Snapshot `json:"snapshot,omitempty"` // of the others
	Steps    int               `json:"steps"`
	Cached   int               `json:"cached"` // of the steps
	Took     sandbox.Duration  `json:"took_ms"`
}

// StepError says that a program of the template failed.
type StepError struct {
	Step   int // from 1 on; 0: the start command, or its ready check
	Text   string
	Exit   sandbox.Exit
	Output []byte // the end of the step's output
}

func (e *StepError) Error() string {
	what := e.Text
	if e.Step > 0 {
		what = fmt.Sprintf("step %d (%s)", e.Step, e.Text)
	}
	switch {
	case e.Exit.TimedOut:
		return what + " ran into its timeout"
	case e.Exit.Signal != 0:
		return fmt.Sprintf("%s was killed by signal %d", what, e.Exit.Signal)
	}
	return fmt.Sprintf("%s exited with status %d", what, e.Exit.Code)
}

const (
	buildTimeout  = time.Hour
	removeTimeout = 30 * time.Second
	// layerLife is how long a layer is kept.
	layerLife = sandbox.Duration(30 * 24 * time.Hour)
	// layerWorth is how long the steps since the last layer must have taken to get
	// another layer: saving costs time and, for all written files, space.
	layerWorth = time.Second
	// tailSize bounds the program output in an error, in bytes.
	tailSize = 4 << 10
)

// build is one build of a template.
type build struct {
	*Builder
	t      *Template
	root   *os.Root // that copies are taken from
	base   string   // see Builder.base
	digest string   // of the base image, unless the base is a snapshot

	copies [][]copied // of each step
	before key        // the first step
	keys   []key      // after each step
}

// Build carries out a template. Errors: *StepError if one of its programs failed;
// invalid; conflict if its files or its base changed meanwhile; the errors of
// Sandboxes.
func (b *Builder) Build(ctx context.Context, t *Template) (*Result, error) {
	r, err := b.build(ctx, t)
	if err != nil && ctx.Err() != nil { // whatever that made fail
		code := cay.Canceled
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			code = cay.DeadlineExceeded
		}
		return nil, cay.Errorf(code, "the build was given up: %w", err)
	}
	if cay.CodeOf(err) == cay.Stopped {
		return nil, cay.Errorf(cay.Stopped, "the sandbox of the build ended: %w", err).
			WithHint("it may have run out of the build's time, or of the memory in resources")
	}
	return r, err
}

func (b *Builder) build(ctx context.Context, t *Template) (*Result, error) {
	begun := time.Now()
	u := &build{Builder: b, t: t}
	if t.dir != "" {
		root, err := os.OpenRoot(t.dir)
		if err != nil {
			return nil, cay.Errorf(cay.Invalid, "cannot open the template's directory: %w", err)
		}
		defer root.Close() // it was only read
		u.root = root
	}
	if err := u.plan(ctx); err != nil {
		return nil, err
	}
	layer, cached, err := u.carryOut(ctx)
	if err != nil {
		return nil, err
	}
	r := &Result{Steps: len(t.Steps), Cached: cached}
	switch t.Output {
	case Image:
		r.Image, err = u.image(ctx, layer)
	case Layer:
		r.Snapshot = layer
	case Snapshot:
		r.Snapshot, err = u.snapshot(ctx, layer)
	default:
		r.Snapshot, err = u.memory(ctx, layer)
	}
	if err != nil {
		return nil, err
	}
	r.Took = sandbox.Duration(time.Since(begun).Truncate(time.Millisecond))
	return r, nil
}

// plan determines the base and the copied files, and with them all keys.
func (u *build) plan(ctx context.Context) (err error) {
	if u.base, u.digest, err = u.resolve(ctx, u.t.From); err != nil {
		return err
	}
	if u.before, err = u.t.baseKey(u.base); err != nil {
		return err
	}
	last := u.before
	for i, s := range u.t.Steps {
		var copies []copied
		source := ""
		switch {
		case s.Source != (From{}):
			if source, _, err = u.resolve(ctx, s.Source); err != nil {
				return u.stepError(i, err)
			}
		case len(s.Copy) > 0:
			if u.root == nil {
				return u.stepError(i, cay.Errorf(cay.Invalid, "the template has no directory to copy from"))
			}
			if copies, err = scan(ctx, u.root, s, u.t.Ignored); err != nil {
				return u.stepError(i, err)
			}
		}
		if last, err = u.t.stepKey(last, s, copies, source); err != nil {
			return err
		}
		u.copies, u.keys = append(u.copies, copies), append(u.keys, last)
	}
	return nil
}

// resolve returns the text for a base in keys, and the digest of its image.
func (u *build) resolve(ctx context.Context, from From) (base, digest string, err error) {
	if from.Snapshot != "" {
		s, err := u.Sandboxes.GetSnapshot(ctx, from.Snapshot)
		if err != nil {
			return "", "", err
		}
		return s.ID, "", nil
	}
	image, runtime := from.Image, from.Runtime
	if image == "" {
		image = defaultImage
		if runtime == "" {
			runtime = defaultRuntime
		}
	}
	img, err := u.Images.Get(ctx, image)
	if err != nil {
		return "", "", err
	}
	base = img.Digest
	if runtime != "" {
		rt, err := u.Images.Get(ctx, runtime)
		if err != nil {
			return "", "", err
		}
		base += " " + runtime + " " + rt.Digest
	}
	return base, img.Digest, nil
}

// The defaults of a template's base.
const (
	defaultImage   = "debian"
	defaultRuntime = "node24"
)

// carryOut makes the layer of the last step, from the last existing layer. Without
// steps the layer has the base alone, and is nil for the output Memory.
func (u *build) carryOut(ctx context.Context) (layer *sandbox.Snapshot, cached int, err error) {
	n := len(u.t.Steps)
	if n == 0 {
		layer, err := u.baseLayer(ctx)
		return layer, 0, err
	}
	layers, err := u.layers(ctx)
	if err != nil {
		return nil, 0, err
	}
	if last := len(layers) - 1; last >= 0 && layers[last].step == n {
		for i := range n {
			u.event(Event{Phase: PhaseCached, Step: i + 1, Text: u.t.Steps[i].String()})
		}
		return layers[last].snapshot, n, nil
	}
	box, cached, err := u.begin(ctx, layers)
	if err != nil {
		return nil, 0, err
	}
	defer func() { u.end(ctx, box, err) }()
	for i := range cached {
		u.event(Event{Phase: PhaseCached, Step: i + 1, Text: u.t.Steps[i].String()})
	}
	var spent time.Duration // since the last layer
	for i := cached; i < n; i++ {
		u.event(Event{Phase: PhaseStep, Step: i + 1, Text: u.t.Steps[i].String()})
		begun := time.Now()
		if err := u.step(ctx, box, i); err != nil {
			return nil, 0, err
		}
		if spent += time.Since(begun); i < n-1 && spent < layerWorth {
			continue
		}
		u.event(Event{Phase: PhaseLayer, Step: i + 1})
		if layer, err = u.save(ctx, box, u.keys[i].layer()); err != nil {
			return nil, 0, fmt.Errorf("save the layer of step %d: %w", i+1, err)
		}
		spent = 0
	}
	return layer, cached, nil
}

// baseLayer makes a layer without written files.
func (u *build) baseLayer(ctx context.Context) (*sandbox.Snapshot, error) {
	if u.t.Output == Memory {
		return nil, nil
	}
	s, err := u.Sandboxes.GetSnapshot(ctx, u.before.layer())
	if err == nil && s.Kind == sandbox.FilesystemSnapshot && s.Status == sandbox.SnapshotCreated {
		return s, nil
	}
	if err != nil && cay.CodeOf(err) != cay.NotFound {
		return nil, err
	}
	box, _, err := u.begin(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { u.end(ctx, box, err) }()
	s, err = u.save(ctx, box, u.before.layer())
	return s, err
}

// knownLayer is a layer that an earlier build has made.
type knownLayer struct {
	step     int // the last one in it, from 1 on
	snapshot *sandbox.Snapshot
}

// layers finds the last layer, or if it is missing all others, in order.
func (u *build) layers(ctx context.Context) ([]knownLayer, error) {
	if u.NoCache {
		return nil, nil
	}
	var known []knownLayer
	for i := len(u.keys) - 1; i >= 0; i-- {
		s, err := u.Sandboxes.GetSnapshot(ctx, u.keys[i].layer())
		if cay.CodeOf(err) == cay.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		if s.Kind == sandbox.FilesystemSnapshot && s.Status == sandbox.SnapshotCreated {
			known = append([]knownLayer{{i + 1, s}}, known...)
		}
		if i == len(u.keys)-1 {
			break
		}
	}
	return known, nil
}

// begin starts a sandbox from the last layer that can be used, or from the base.
// cached is the number of steps in that layer.
func (u *build) begin(ctx context.Context, layers []knownLayer) (box *sandbox.Sandbox, cached int, err error) {
	for i := len(layers) - 1; i >= 0; i-- {
		box, err := u.create(ctx, layers[i].snapshot)
		switch cay.CodeOf(err) {
		case cay.NotFound, cay.Conflict, cay.NotSupported: // expired this moment, damaged, or from elsewhere
			continue
		}
		return box, layers[i].step, err
	}
	if box, err = u.create(ctx, nil); err != nil {
		return nil, 0, err
	}
	if err := u.prepare(ctx, box); err != nil {
		u.end(ctx, box, err)
		return nil, 0, err
	}
	return box, 0, nil
}

// prepare carries out the work before the first step.
func (u *build) prepare(ctx context.Context, box *sandbox.Sandbox) error {
	if u.digest != "" && box.Digest != u.digest {
		return cay.Errorf(cay.Conflict, "the image %s was replaced during the build", box.Image).WithHint("build again")
	}
	if u.t.WorkDir == "" {
		return nil
	}
	if err := u.Sandboxes.Mkdir(ctx, box.ID, u.t.WorkDir, sandbox.MkdirParams{Parents: true}); err != nil {
		return fmt.Errorf("make the working directory: %w", err)
	}
	return nil
}

// create starts a sandbox from a layer, or with nil from the base.
func (u *build) create(ctx context.Context, layer *sandbox.Snapshot) (*sandbox.Sandbox, error) {
	t := u.t
	p := t.Base()
	p.Name = "build-" + strings.ToLower(rand.Text()[:16])
	p.VCPUs, p.MemoryMB, p.DiskMB = t.Resources.VCPUs, t.Resources.Memory.MiB(), t.Resources.Disk.MiB()
	p.User, p.WorkDir, p.Network, p.ProjectID = t.User, t.WorkDir, t.Network.WithDefaults(), u.ProjectID
	p.Persistent = new(false)
	if p.Timeout = sandbox.Duration(u.Timeout); p.Timeout == 0 {
		p.Timeout = sandbox.Duration(buildTimeout)
	}
	if layer != nil {
		p.Image, p.Runtime, p.Snapshot = "", "", layer.ID
	}
	// Start from the files of a memory snapshot, without its processes.
	p.FilesOnly = p.Snapshot != ""
	box, err := u.Sandboxes.Create(ctx, p)
	if err != nil && ctx.Err() != nil {
		u.remove(ctx, p.Name) // it may be there all the same
	}
	return box, err
}

// end removes a sandbox, unless it is one to keep.
func (u *build) end(ctx context.Context, box *sandbox.Sandbox, err error) {
	if err != nil && u.Keep {
		u.event(Event{Phase: PhaseKept, Text: box.Name})
		return
	}
	u.remove(ctx, box.ID)
}

// remove deletes a sandbox, also when ctx has ended.
func (u *build) remove(ctx context.Context, ref string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	if err := u.Sandboxes.Delete(ctx, ref); err != nil && cay.CodeOf(err) != cay.NotFound {
		u.event(Event{Phase: PhaseLeft, Text: fmt.Sprintf("sandbox %s: %v", ref, err)})
	}
}

// save makes a layer. Another build may have made the same layer first.
func (u *build) save(ctx context.Context, box *sandbox.Sandbox, name string) (*sandbox.Snapshot, error) {
	p := sandbox.SnapshotParams{Kind: sandbox.FilesystemSnapshot, Name: name, Expiration: new(layerLife), WithoutNetwork: true}
	if u.NoCache {
		return u.replace(ctx, box, p)
	}
	s, err := u.Sandboxes.CreateSnapshot(ctx, box.ID, p)
	if cay.CodeOf(err) != cay.AlreadyExists {
		return s, err
	}
	s, err = u.Sandboxes.GetSnapshot(ctx, name)
	if cay.CodeOf(err) == cay.NotFound { // and expired this moment
		return u.Sandboxes.CreateSnapshot(ctx, box.ID, p)
	}
	return s, err
}

// replace makes a snapshot under the name of an existing snapshot, which keeps the
// name until the new one is complete.
func (u *build) replace(ctx context.Context, box *sandbox.Sandbox, p sandbox.SnapshotParams) (*sandbox.Snapshot, error) {
	old, err := u.Sandboxes.GetSnapshot(ctx, p.Name)
	if err != nil && cay.CodeOf(err) != cay.NotFound {
		return nil, err
	}
	p.Replace = true
	s, err := u.Sandboxes.CreateSnapshot(ctx, box.ID, p)
	if err != nil || old == nil {
		return s, err
	}
	// The former snapshot cannot be found by name any more. A persistent sandbox
	// may still need it.
	if _, err := u.Sandboxes.DeleteSnapshot(ctx, old.ID, sandbox.DeleteSnapshotParams{}); err != nil && cay.CodeOf(err) != cay.NotFound {
		u.event(Event{Phase: PhaseLeft, Text: fmt.Sprintf("the former snapshot %s: %v", old.ID, err)})
	}
	return s, nil
}

// stepError adds the step to an error.
func (u *build) stepError(i int, err error) error {
	var failed *StepError
	if errors.As(err, &failed) {
		return err
	}
	return fmt.Errorf("step %d (%s): %w", i+1, u.t.Steps[i], err)
}

func (u *build) event(e Event) {
	e.Steps = len(u.t.Steps)
	if u.Progress == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.Progress(e)
}
