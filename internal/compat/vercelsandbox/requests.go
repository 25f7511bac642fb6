package vercelsandbox

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// settings are the common fields of create, fork and patch. A field that is absent or
// null is left unchanged, except for fields that null clears.
type settings struct {
	Ports              *[]int              `json:"ports"`
	Timeout            *sandbox.Duration   `json:"timeout"`
	Resources          *resources          `json:"resources"`
	Persistent         *bool               `json:"persistent"`
	NetworkPolicy      jsontext.Value      `json:"networkPolicy"`
	NetworkID          jsontext.Value      `json:"networkId"`
	Env                map[string]string   `json:"env"`
	Tags               map[string]string   `json:"tags"`
	SnapshotExpiration *sandbox.Duration   `json:"snapshotExpiration"`
	KeepLastSnapshots  jsontext.Value      `json:"keepLastSnapshots"`
	Mounts             map[string]mountAsk `json:"mounts"`
	Region             string              `json:"region"`
	FailoverRegions    *[]string           `json:"failoverRegions"`
}

type resources struct {
	VCPUs  *float64 `json:"vcpus"`
	Memory *int64   `json:"memory"` // MB
}

type mountAsk struct {
	Drive string            `json:"drive"`
	Mode  sandbox.MountMode `json:"mode"`
}

// createRequest is the body of a request to create, or fork, a sandbox.
type createRequest struct {
	settings
	ProjectID   string         `json:"projectId"`
	Name        string         `json:"name"`
	Source      *sourceRequest `json:"source"`
	Runtime     string         `json:"runtime"`
	Image       string         `json:"image"`
	OldImage    string         `json:"__image"`
	Interactive bool           `json:"__interactive"`

	run, step string // of the workflow that sends the request, if one does
}

// The headers in which the preload names the step of a workflow that makes a call.
const (
	runHeader  = "X-Cay-Workflow-Run"
	stepHeader = "X-Cay-Workflow-Step"
)

// validStep matches the ids of runs and steps.
var validStep = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`) })

// readStep reads the step from the headers of a request. Invalid ids are ignored, as
// nothing depends on them.
func (r *createRequest) readStep(h http.Header) {
	if run, step := h.Get(runHeader), h.Get(stepHeader); validStep().MatchString(run) && validStep().MatchString(step) {
		r.run, r.step = run, step
	}
}

type sourceRequest struct {
	Type       string `json:"type"`
	URL        string `json:"url"`
	Depth      int    `json:"depth"`
	Revision   string `json:"revision"`
	Username   string `json:"username"`
	Password   string `json:"password"`
	SnapshotID string `json:"snapshotId"`
}

// annotateStep records the step that creates a sandbox, instead of the step that created
// its source.
func (r *createRequest) annotateStep(notes map[string]string) {
	delete(notes, noteRun)
	delete(notes, noteStep)
	if r.run != "" {
		notes[noteRun], notes[noteStep] = r.run, r.step
	}
}

// isNull reports whether a member is present and null.
func isNull(v jsontext.Value) bool { return v.Kind() == 'n' }

// given reports whether a member is present and not null.
func given(v jsontext.Value) bool { return len(v) > 0 && !isNull(v) }

// machine returns the requested vCPUs and memory; nil if not requested. Memory follows
// the CPUs.
func (s *settings) machine() (vcpus *float64, memoryMB *int64, err error) {
	if s.Resources == nil {
		return nil, nil, nil
	}
	vcpus, memoryMB = s.Resources.VCPUs, s.Resources.Memory
	if vcpus != nil {
		if n := *vcpus; n != 1 && (n < 2 || n > 1024 || n != float64(int(n)) || int(n)%2 != 0) {
			return nil, nil, cay.Errorf(cay.Invalid, "resources.vcpus %v is neither 1 nor an even number", n)
		}
		if memoryMB == nil {
			memory := int64(*vcpus) * 2048
			memoryMB = &memory
		}
	}
	if memoryMB != nil && *memoryMB <= 0 {
		return nil, nil, cay.Errorf(cay.Invalid, "resources.memory %d is not a number of MB", *memoryMB)
	}
	return vcpus, memoryMB, nil
}

// checkTimeout refuses values that the services would take for a missing timeout.
func (s *settings) checkTimeout() error {
	if s.Timeout != nil && *s.Timeout < sandbox.Duration(time.Second) {
		return cay.Errorf(cay.Invalid, "timeout %d is less than 1000 ms", inMS(*s.Timeout))
	}
	return nil
}

func (s *settings) network() (*sandbox.Network, error) {
	if !given(s.NetworkPolicy) {
		return nil, nil
	}
	n, err := NetworkFromRequest(s.NetworkPolicy)
	if err != nil {
		return nil, err
	}
	return &n, nil
}

// ports returns the requested ports, nil if the request has none.
func (s *settings) ports() []sandbox.PortParams {
	if s.Ports == nil {
		return nil
	}
	all := make([]sandbox.PortParams, 0, len(*s.Ports)+1)
	for _, p := range *s.Ports {
		all = append(all, sandbox.PortParams{Port: p, Access: sandbox.Public})
	}
	return all
}

// withInteractive adds the port for terminals to ports, unless ports has it, and writes
// its number into notes.
func withInteractive(ports []sandbox.PortParams, port int, notes map[string]string) []sandbox.PortParams {
	if port == 0 {
		port = 23456
	}
	for slices.ContainsFunc(ports, func(p sandbox.PortParams) bool { return p.Port == port }) {
		port++
	}
	notes[noteInteractivePort] = strconv.Itoa(port)
	return append(ports, sandbox.PortParams{Port: port, Access: sandbox.Public})
}

func (s *settings) mounts() []sandbox.Mount {
	if s.Mounts == nil {
		return nil
	}
	all := []sandbox.Mount{}
	for _, at := range slices.Sorted(maps.Keys(s.Mounts)) {
		all = append(all, sandbox.Mount{Path: at, Drive: s.Mounts[at].Drive, Mode: s.Mounts[at].Mode})
	}
	return all
}

// keepAll is the retention of sandboxes without keepLastSnapshots: each stop makes a
// snapshot, and all stay until they expire.
var keepAll = sandbox.Retention{All: true, EachStop: true}

// retention returns the retention of keepLastSnapshots: nil if absent, keepAll if null.
func (s *settings) retention() (*sandbox.Retention, error) {
	switch {
	case len(s.KeepLastSnapshots) == 0:
		return nil, nil
	case isNull(s.KeepLastSnapshots):
		r := keepAll
		return &r, nil
	}
	var k struct {
		Count         int               `json:"count"`
		Expiration    *sandbox.Duration `json:"expiration"`
		DeleteEvicted *bool             `json:"deleteEvicted"`
	}
	if err := json.Unmarshal(s.KeepLastSnapshots, &k); err != nil {
		return nil, cay.Errorf(cay.Invalid, "keepLastSnapshots is not {count, expiration?, deleteEvicted?} of a number, milliseconds and a boolean")
	}
	r := &sandbox.Retention{EachStop: true, Keep: k.Count, Expiration: k.Expiration, KeepEvicted: k.DeleteEvicted != nil && !*k.DeleteEvicted}
	if k.Count < 1 {
		return nil, cay.Errorf(cay.Invalid, "keepLastSnapshots.count %d is less than 1", k.Count).WithHint("set keepLastSnapshots to null to keep all")
	}
	return r, nil
}

var validRegion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9-]{1,32}$`) })

// annotate writes the settings that only clients read into notes. The notes of a sandbox
// that is being created have no region yet.
func (s *settings) annotate(notes map[string]string) error {
	if s.Region != "" {
		notes[noteRegion] = s.Region
	}
	if s.FailoverRegions != nil {
		others := *s.FailoverRegions
		if notes[noteRegion] == "" { // a client that sets no region need not know the default one
			others = slices.DeleteFunc(slices.Clone(others), func(r string) bool { return r == defaultRegion })
		}
		delete(notes, noteFailover)
		if len(others) > 0 {
			notes[noteFailover] = strings.Join(others, ",")
		}
	}
	region, failover := regionOf(notes), notes[noteFailover]
	all := []string{region}
	if failover != "" {
		all = append(all, strings.Split(failover, ",")...)
	}
	for i, r := range all {
		switch {
		case !validRegion().MatchString(r):
			return cay.Errorf(cay.Invalid, "region %.50q is not at most 32 of a-z 0-9 -", r)
		case i > 0 && r == region:
			return cay.Errorf(cay.Invalid, "failoverRegions has %q, which is the region itself", r)
		case i > 32:
			return cay.Errorf(cay.Invalid, "failoverRegions has more than 32 regions")
		}
	}
	switch {
	case isNull(s.NetworkID):
		delete(notes, noteNetworkID)
	case given(s.NetworkID):
		var id string
		if err := json.Unmarshal(s.NetworkID, &id); err != nil || id == "" || len(id) > 255 {
			return cay.Errorf(cay.Invalid, "networkId is not a text of 1 to 255 characters")
		}
		notes[noteNetworkID] = id
	}
	if s.SnapshotExpiration != nil {
		delete(notes, noteExpiration)
	}
	return nil
}

// params converts a create request. byImage says that the request is of the newer kind,
// which uses images by default, not runtimes.
func (h *handler) params(ctx context.Context, r *createRequest, byImage bool) (sandbox.CreateParams, error) {
	var p sandbox.CreateParams
	vcpus, memory, err := r.machine()
	if err != nil {
		return p, err
	}
	if err := r.checkTimeout(); err != nil {
		return p, err
	}
	network, err := r.network()
	if err != nil {
		return p, err
	}
	retention, err := r.retention()
	if err != nil {
		return p, err
	}
	notes := map[string]string{noteExpiration: "default"}
	if err := r.annotate(notes); err != nil {
		return p, err
	}
	notes[noteRegion] = regionOf(notes)
	r.annotateStep(notes)
	p = sandbox.CreateParams{
		Name: r.Name, Env: r.Env, Tags: r.Tags, Annotations: notes, Ports: r.ports(), Mounts: r.mounts(),
		SnapshotExpiration: r.SnapshotExpiration, Retention: retention, Persistent: r.Persistent,
	}
	if p.Persistent == nil {
		p.Persistent = new(true)
	}
	if p.Retention == nil {
		all := keepAll
		p.Retention = &all
	}
	set(&p.VCPUs, vcpus)
	set(&p.MemoryMB, memory)
	set(&p.Timeout, r.Timeout)
	set(&p.Network, network)
	if err := h.begin(ctx, r, &p, byImage); err != nil {
		return p, err
	}
	if r.Interactive {
		p.Ports = withInteractive(p.Ports, 0, notes)
	}
	return p, nil
}

// set sets a field to a value, unless that is nil.
func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// begin sets the base of a new sandbox: a snapshot, or an image and possibly the source
// to put into it.
func (h *handler) begin(ctx context.Context, r *createRequest, p *sandbox.CreateParams, byImage bool) error {
	image := r.Image
	if image == "" {
		image = r.OldImage
	}
	if image != "" && r.Runtime != "" {
		return cay.Errorf(cay.Invalid, "runtime %.50q and image %.100q are given together", r.Runtime, image).WithHint("leave one of the two out")
	}
	if r.Source != nil && r.Source.Type == "snapshot" {
		if r.Source.SnapshotID == "" {
			return cay.Errorf(cay.Invalid, "source.snapshotId is missing")
		}
		p.Snapshot, p.Image, p.Runtime = r.Source.SnapshotID, image, r.Runtime // at most one of them may be set
		return nil
	}
	if image == "" && r.Runtime == "" && byImage {
		image = defaultImage
	}
	p.Runtime = r.Runtime
	if image != "" {
		if err := h.image(ctx, image, p); err != nil {
			return err
		}
		p.Annotations[noteImage] = image
	}
	if r.Source == nil {
		return nil
	}
	switch t := sandbox.SourceType(r.Source.Type); t {
	case sandbox.GitSource:
		p.Source = &sandbox.Source{
			Type: t, URL: r.Source.URL, Depth: r.Source.Depth, Revision: r.Source.Revision,
			Username: r.Source.Username, Password: r.Source.Password,
		}
		if image != "" { // where clones are below the working directory
			p.Source.Dir = cloneDir(r.Source.URL)
		}
	case sandbox.TarballSource:
		p.Source = &sandbox.Source{Type: t, URL: r.Source.URL}
	default:
		return cay.Errorf(cay.Invalid, "source.type %.50q is not one of git, tarball, snapshot", r.Source.Type)
	}
	return nil
}

// cloneDir returns the directory that git would clone a URL into.
func cloneDir(url string) string {
	url, _, _ = strings.Cut(url, "?")
	dir := strings.TrimSuffix(path.Base(strings.TrimRight(url, "/")), ".git")
	if dir == "." || dir == ".." || dir == "/" {
		return ""
	}
	return dir
}

// The vendor's images; the ones that are like our own are replaced by our own.
const (
	vendorImages = "vercel/sandbox/"
	defaultImage = vendorImages + "universal:latest"
)

var runtimesOfImages = map[string]string{
	"universal": "node24", "universal:latest": "node24",
	"node": "node24", "node:22": "node22", "node:24": "node24", "node:26": "node26",
}

// image converts a client's image reference to the service's image or runtime.
func (h *handler) image(ctx context.Context, ref string, p *sandbox.CreateParams) error {
	if len(ref) > 255 {
		return cay.Errorf(cay.Invalid, "image %.60q... is longer than 255 characters", ref)
	}
	name, ours := strings.CutPrefix(ref, vendorImages)
	if !ours {
		p.Image = ref
		return nil
	}
	has, err := h.HasImage(ctx, ref)
	if err != nil {
		return err
	}
	runtime, like := runtimesOfImages[name]
	switch {
	case has:
		p.Image = ref
	case like:
		p.Runtime = runtime
	default:
		return cay.Errorf(cay.Invalid, "there is no image %.100q here", ref).
			WithHint("import one under that name, or use %snode:24, or a runtime", vendorImages)
	}
	return nil
}

// readPolicy reads a request whose body is a network policy.
func readPolicy(w http.ResponseWriter, r *http.Request) (sandbox.Network, error) {
	var raw jsontext.Value
	if err := readJSON(w, r, &raw); err != nil {
		return sandbox.Network{}, err
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return sandbox.Network{}, cay.Errorf(cay.Invalid, "network policy: the request body is empty")
	}
	return NetworkFromRequest(raw)
}
