package docker

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// lease is how long a sandbox lives without a server that extends its time: what a
// server that was killed leaves behind ends by itself.
const lease = time.Hour

// words is a list of words, or one.
type words []string

// UnmarshalJSON implements json.Unmarshaler.
func (w *words) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*w = words{one}
		if one == "" {
			*w = nil
		}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(w))
}

// createBody is the body of a create.
type createBody struct {
	Image            string
	Cmd, Entrypoint  words
	Env              []string
	User, WorkingDir string
	Hostname         string
	Domainname       string
	MacAddress       string
	Labels           map[string]string
	ExposedPorts     map[string]struct{}
	Volumes          map[string]struct{}
	Tty              bool
	OpenStdin        bool
	StdinOnce        bool
	NetworkDisabled  bool
	StopSignal       string
	StopTimeout      *int
	Healthcheck      json.RawMessage
	HostConfig       map[string]json.RawMessage
	NetworkingConfig struct{ EndpointsConfig map[string]json.RawMessage }
}

// hostConfig are the fields of HostConfig that have an effect.
type hostConfig struct {
	NetworkMode         string
	AutoRemove          bool
	PublishAllPorts     bool
	Binds               []string
	Mounts              []mountBody
	PortBindings        map[string][]struct{ HostIP, HostPort string }
	Memory              int64 // bytes
	NanoCpus            int64
	CPUQuota, CPUPeriod int64 // microseconds
}

func (s *Server) handleCreate(w http.ResponseWriter, r *http.Request) error {
	var body createBody
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	name := strings.TrimPrefix(r.URL.Query().Get("name"), "/")
	if name != "" && !validName.MatchString(name) {
		return failf(http.StatusBadRequest, "Invalid container name (%.300s), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed, 255 at most", name)
	}
	c := &container{ID: newID(), Name: name, Created: time.Now().UTC()}
	if c.Name == "" {
		c.Name = "cay_" + c.ID[:12]
	}
	unlock := s.names.lock(c.Name)
	defer unlock()
	if other, err := s.find(r.Context(), c.Name); err == nil && other.Name == c.Name {
		return failf(http.StatusConflict, "Conflict. The container name %q is already in use by container %q. You have to remove (or rename) that container to be able to reuse that name.", "/"+c.Name, other.ID)
	} else if status, _ := shape(err); err != nil && status != http.StatusNotFound {
		return err
	}
	var warnings []string
	var err error
	if isSidecar(body.Image) && !body.helps() {
		err = s.createSidecar(r.Context(), c, &body)
	} else {
		warnings, err = s.createContainer(r.Context(), c, &body)
	}
	if err != nil {
		return err
	}
	if c.Spec.Labels[sessionLabel] != "" {
		v := s.lives.of(c.ID)
		v.set(func() { v.session = true })
	}
	s.attend(c)
	s.feed.tell("create", c)
	return writeJSON(w, http.StatusCreated, map[string]any{"Id": c.ID, "Warnings": append([]string{}, warnings...)})
}

func newID() string {
	var b [32]byte
	rand.Read(b[:]) // does not fail
	return hex.EncodeToString(b[:])
}

// createContainer makes the sandbox of a container.
func (s *Server) createContainer(ctx context.Context, c *container, body *createBody) (warnings []string, err error) {
	if warnings, err = judge(body.HostConfig); err != nil {
		return nil, err
	}
	host, err := body.host()
	if err != nil {
		return nil, err
	}
	img, err := s.image(ctx, body.Image)
	if err != nil {
		return nil, err
	}
	helper := isSidecar(body.Image)
	if helper {
		img = helperImage(body.Image)
	}
	p := sandbox.CreateParams{ProjectID: s.cfg.ProjectID, User: body.User, WorkDir: body.WorkingDir, Timeout: sandbox.Duration(lease), Persistent: new(bool)}
	*p.Persistent = !host.AutoRemove
	switch {
	case helper:
		p.User = cmp.Or(p.User, "root")
	case img.Source == "runtime":
		p.Runtime = img.Refs[0]
	default:
		p.Image = body.Image
		if bare := strings.TrimSuffix(body.Image, ":latest"); slices.Contains(img.Refs, bare) {
			p.Image = bare // cay's own images have no tags
		} else if strings.HasPrefix(body.Image, "sha256:") || isPrefix.MatchString(body.Image) {
			p.Image = img.Digest
		}
	}
	if err := host.limits(&p); err != nil {
		return nil, err
	}
	if c.Spec, err = body.spec(host, img); err != nil {
		return nil, err
	}
	c.Spec.Owner = peer(ctx)
	if c.Spec.Mounts, err = host.mounts(); err != nil {
		return nil, err
	}
	if p.Network, err = s.network(ctx, c, body, host); err != nil {
		return nil, err
	}
	var left []string
	if p.Env, left, err = environment(body.Env); err != nil {
		return nil, err
	}
	warnings = append(append(warnings, left...), body.leftOut()...)
	for port, b := range host.PortBindings {
		for _, to := range b {
			if to.HostIP == "0.0.0.0" || to.HostIP == "::" {
				warnings = append(warnings, fmt.Sprintf("port %s is published on 127.0.0.1 alone, not on %s", port, to.HostIP))
			}
		}
	}
	p.Tags = c.tags()
	if p.Annotations, err = c.notes(); err != nil {
		return nil, err
	}
	if p.Mounts, err = s.attachVolumes(ctx, c.Spec.Mounts); err != nil {
		return nil, err
	}
	c.box, err = s.cfg.Sandboxes.Create(ctx, p)
	if cay.CodeOf(err) == cay.Conflict && len(c.Spec.Mounts) > 0 {
		if err := s.awaitVolumes(ctx, c.Spec.Mounts); err != nil {
			return nil, err
		}
		c.box, err = s.cfg.Sandboxes.Create(ctx, p)
	}
	if err == nil && c.Spec.Sidecar != nil {
		s.attachSidecar(c.Spec.Sidecar.ID, c.box.ID)
	}
	return warnings, err
}

// helps reports whether a container of the image of sidecars is not a sidecar, but a
// helper of workerd that fills or copies volumes: a sidecar has none.
func (b *createBody) helps() bool {
	binds, mounts := b.HostConfig["Binds"], b.HostConfig["Mounts"]
	return len(binds) > 0 && set(binds) || len(mounts) > 0 && set(mounts)
}

// helperImage stands for the image of a helper, which runs cp at most. The sandbox has
// the default image.
func helperImage(ref string) *sandbox.Image {
	img := sidecarImage(ref)
	img.Config.Cmd = []string{"sleep", "infinity"}
	return img
}

// host reads the fields of HostConfig that have an effect.
func (b *createBody) host() (*hostConfig, error) {
	raw, err := json.Marshal(b.HostConfig)
	if err != nil {
		return nil, err
	}
	h := new(hostConfig)
	if err := json.Unmarshal(raw, h); err != nil {
		return nil, failf(http.StatusBadRequest, "HostConfig cannot be read: %v", err)
	}
	return h, nil
}

// limits translates the limits of CPU and memory.
func (h *hostConfig) limits(p *sandbox.CreateParams) error {
	switch {
	case h.Memory < 0 || h.NanoCpus < 0 || h.CPUPeriod < 0:
		return failf(http.StatusBadRequest, "limits of memory and CPU are not negative")
	case h.Memory > 0:
		p.MemoryMB = max(1, h.Memory>>20) // the service says what is too little
	}
	switch {
	case h.NanoCpus > 0:
		p.VCPUs = float64(h.NanoCpus) / 1e9
	case h.CPUQuota > 0:
		period := h.CPUPeriod
		if period == 0 {
			period = 100_000
		}
		p.VCPUs = float64(h.CPUQuota) / float64(period)
	}
	return nil
}

// spec makes what is recorded of a container.
func (b *createBody) spec(h *hostConfig, img *sandbox.Image) (spec, error) {
	s := spec{
		Image: b.Image, Cmd: b.Cmd, Entrypoint: b.Entrypoint, User: b.User, WorkingDir: b.WorkingDir, Labels: b.Labels,
		Tty: b.Tty, OpenStdin: b.OpenStdin, StdinOnce: b.StdinOnce, AutoRemove: h.AutoRemove, PublishAll: h.PublishAllPorts,
		Network: h.NetworkMode, StopSignal: b.StopSignal, StopAfter: b.StopTimeout,
		Exposed: slices.Sorted(maps.Keys(b.ExposedPorts)), Bindings: map[string][]string{},
	}
	entrypoint, cmd := img.Config.Entrypoint, img.Config.Cmd
	if b.Entrypoint != nil {
		entrypoint, cmd = b.Entrypoint, nil
		if len(entrypoint) == 1 && entrypoint[0] == "" {
			entrypoint = nil
		}
	}
	if len(b.Cmd) > 0 {
		cmd = b.Cmd
	}
	if s.Argv = slices.Concat(entrypoint, cmd); len(s.Argv) == 0 {
		return s, failf(http.StatusBadRequest, "no command specified: image %s has none, and the request neither", b.Image)
	}
	if s.StopSignal != "" {
		if _, err := signalOf(s.StopSignal); err != nil {
			return s, err
		}
	}
	for port, to := range h.PortBindings {
		n, err := tcpPort(port)
		if err != nil {
			return s, err
		}
		key := strconv.Itoa(n) + "/tcp"
		for _, at := range to {
			if !slices.Contains([]string{"", "0.0.0.0", "::", "127.0.0.1", "localhost"}, at.HostIP) {
				return s, failf(http.StatusBadRequest, "cay refuses to publish port %s on %s: ports are published on 127.0.0.1", port, at.HostIP)
			}
			if host, err := strconv.Atoi(at.HostPort); at.HostPort != "" && (err != nil || host < 0 || host > 65535) {
				return s, failf(http.StatusBadRequest, "invalid host port %q for %s: cay takes one number of 1 to 65535, or none", at.HostPort, port)
			}
			if at.HostPort == "0" {
				at.HostPort = ""
			}
			if !slices.Contains(s.Bindings[key], at.HostPort) { // the same of IPv4 and IPv6
				s.Bindings[key] = append(s.Bindings[key], at.HostPort)
			}
		}
		if len(to) == 0 {
			s.Bindings[key] = []string{""}
		}
	}
	for _, port := range s.Exposed {
		if _, err := tcpPort(port); err != nil && s.PublishAll {
			return s, err
		}
	}
	if n := len(s.Bindings) + len(s.Exposed); n > maxPublished {
		return s, failf(http.StatusBadRequest, "the container has %d ports, more than %d", n, maxPublished)
	}
	return s, nil
}

// network translates the network that a container asks for.
func (s *Server) network(ctx context.Context, c *container, b *createBody, h *hostConfig) (sandbox.Network, error) {
	for name := range b.NetworkingConfig.EndpointsConfig {
		if name != "bridge" && name != "default" && name != h.NetworkMode {
			return sandbox.Network{}, failf(http.StatusNotFound, "network %.100s not found", name)
		}
	}
	if other, ok := strings.CutPrefix(h.NetworkMode, "container:"); ok {
		side, err := s.find(ctx, other)
		if err != nil {
			return sandbox.Network{}, err
		}
		if side.side == nil {
			return sandbox.Network{}, failf(http.StatusBadRequest, "cay refuses the network of container %s: a sandbox has a network of its own", other)
		}
		c.Spec.Sidecar = side.side.record(side)
		return side.side.network(), nil
	}
	switch h.NetworkMode {
	case "", "default", "bridge":
		if b.NetworkDisabled {
			return sandbox.Network{Mode: sandbox.DenyAll}, nil
		}
		return sandbox.Network{}, nil
	case "none":
		return sandbox.Network{Mode: sandbox.DenyAll}, nil
	case "host":
		return sandbox.Network{}, failf(http.StatusBadRequest, "cay refuses the network of the host: a sandbox has a network of its own; publish its ports")
	}
	return sandbox.Network{}, failf(http.StatusNotFound, "network %.100s not found: cay has bridge and none", h.NetworkMode)
}

// environment reads a list of NAME=VALUE.
func environment(list []string) (env map[string]string, warnings []string, err error) {
	env = make(map[string]string, len(list))
	for _, kv := range list {
		k, v, ok := strings.Cut(kv, "=")
		switch {
		case k == "":
			return nil, nil, failf(http.StatusBadRequest, "invalid environment variable: %.100s", kv)
		case !ok:
			warnings = append(warnings, fmt.Sprintf("the variable %s of the image was not removed: cay can only set it to another value", k))
			continue
		}
		env[k] = v
	}
	return env, warnings, nil
}

// leftOut are warnings of fields beside HostConfig.
func (b *createBody) leftOut() (warnings []string) {
	for name, given := range map[string]bool{
		"Hostname": b.Hostname != "", "Domainname": b.Domainname != "", "MacAddress": b.MacAddress != "",
		"Healthcheck": len(b.Healthcheck) > 0 && set(b.Healthcheck),
	} {
		if given {
			warnings = append(warnings, name+" was left out: cay has its own, or none")
		}
	}
	if len(b.Volumes) > 0 {
		warnings = append(warnings, "Volumes were left out: what is written there is kept on the container's own disk")
	}
	slices.Sort(warnings)
	return warnings
}
