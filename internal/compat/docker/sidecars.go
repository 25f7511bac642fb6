package docker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/compat/docker/sidecar"
	"github.com/cayhq/cay/sandbox"
)

// sidecarImageID stands for the image of sidecars, which is a part of this program.
const sidecarImageID = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

// ingressPort is where sidecars serve workerd, if their command says no other.
const ingressPort = "39001/tcp"

// maxSidecars is how many sidecars there are at a time.
const maxSidecars = 512

// isSidecar reports whether an image is that of workerd's sidecar, for which this
// program takes its place.
func isSidecar(ref string) bool {
	repository, _, _ := strings.Cut(familiar(ref), "@")
	if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') {
		repository = repository[:i]
	}
	return repository == "cloudflare/proxy-everything"
}

// sidecarImage describes the image of a sidecar.
func sidecarImage(ref string) *sandbox.Image {
	return &sandbox.Image{Digest: sidecarImageID, Refs: []string{ref}, Source: "cay", Arch: runtime.GOARCH}
}

// sidecarOf is the running part of a container that is a sidecar.
type sidecarOf struct {
	mu      sync.Mutex // guards what follows
	proxy   *sidecar.Proxy
	box     string // of the container that shares its network; empty while there is none
	egress  sidecar.Egress
	handler *egressHandler // of box; nil: none
}

// sidecarRecord is a sidecar as the container that shares its network keeps it, so
// that a later server can serve it again at the same port.
type sidecarRecord struct {
	ID      string            `json:"id"`
	Name    string            `json:"name"`
	Image   string            `json:"image"`
	Cmd     []string          `json:"cmd,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
	Ports   map[string]int    `json:"ports,omitempty"`
	Created time.Time         `json:"created"`
	Owner   process           `json:"owner,omitzero"`
}

func (o *sidecarOf) record(c *container) *sidecarRecord {
	return &sidecarRecord{c.ID, c.Name, c.Spec.Image, c.Spec.Cmd, c.Spec.Labels, c.State.Ports, c.Created, c.Spec.Owner}
}

// network is the network of the container that shares a sidecar's.
func (o *sidecarOf) network() sandbox.Network {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := sandbox.Network{Handled: o.egress.Names}
	if o.egress.Offline {
		n.Mode = sandbox.DenyAll
	}
	return n
}

func (o *sidecarOf) target() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.box
}

// sidecars are those of a server.
type sidecars struct {
	mu   sync.Mutex // guards what follows
	byID map[string]*container
	over bool // no more are started
}

// find returns a copy of a sidecar, by its name or id.
func (x *sidecars) find(ref string) *container {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range x.byID {
		if c.ID == ref || c.Name == ref {
			found := *c
			return &found
		}
	}
	return nil
}

func (x *sidecars) all() []*container {
	x.mu.Lock()
	defer x.mu.Unlock()
	var all []*container
	for _, c := range x.byID {
		found := *c
		all = append(all, &found)
	}
	return all
}

// save replaces what is known of a sidecar, which may be new.
func (x *sidecars) save(c *container) {
	x.mu.Lock()
	defer x.mu.Unlock()
	kept := *c
	if x.byID == nil {
		x.byID = map[string]*container{}
	}
	x.byID[c.ID] = &kept
}

// remove ends a sidecar and forgets it.
func (x *sidecars) remove(c *container) {
	x.mu.Lock()
	delete(x.byID, c.ID)
	x.mu.Unlock()
	c.side.stop()
}

// close ends all sidecars.
func (x *sidecars) close() {
	x.mu.Lock()
	x.over = true
	x.mu.Unlock()
	for _, c := range x.all() {
		c.side.stop()
	}
}

func (o *sidecarOf) stop() {
	o.mu.Lock()
	p, h := o.proxy, o.handler
	o.proxy, o.handler = nil, nil
	o.mu.Unlock()
	if h != nil {
		h.cancel()
	}
	if p != nil {
		p.Close()
	}
}

// createSidecar makes a container that is a proxy in this process. Its HostConfig is
// for a network and for capabilities that no proxy in this process has or needs.
func (s *Server) createSidecar(ctx context.Context, c *container, body *createBody) error {
	if n := len(s.sides.all()); n >= maxSidecars {
		return failf(http.StatusTooManyRequests, "there are %d sidecars; remove some", n)
	}
	c.Spec = spec{
		Image: body.Image, Argv: append([]string{"proxy-everything"}, body.Cmd...), Cmd: body.Cmd, Labels: body.Labels,
		Exposed: []string{ingressPort}, PublishAll: true, StopAfter: body.StopTimeout, Owner: peer(ctx),
	}
	c.side = new(sidecarOf)
	s.sides.save(c)
	return nil
}

// startSidecar serves workerd. The change of c is locked.
func (s *Server) startSidecar(v *live, c *container) error {
	port := c.State.Ports[ingressPort]
	p, err := sidecar.Listen(s.ctx, port, sidecar.Config{
		Dial: func(ctx context.Context, port int) (net.Conn, error) {
			box := c.side.target()
			if box == "" {
				return nil, cay.Errorf(cay.Unavailable, "no container shares the network of %s", c.Name)
			}
			return s.cfg.Sandboxes.DialPort(ctx, box, port)
		},
		SetEgress:  func(ctx context.Context, e sidecar.Egress) error { return s.setEgress(ctx, c.side, e) },
		Authority:  s.cfg.Sandboxes.Authority,
		Egress:     c.side.egress,
		EgressPort: egressPort(c.Spec.Cmd),
	})
	if err != nil {
		return failf(http.StatusInternalServerError, "a sidecar cannot listen: %v", err)
	}
	s.sides.mu.Lock()
	over := s.sides.over
	c.side.mu.Lock()
	if !over {
		c.side.proxy = p
	}
	c.side.mu.Unlock()
	s.sides.mu.Unlock()
	if over {
		p.Close()
		return failf(http.StatusServiceUnavailable, "the server ends")
	}
	c.State = state{Started: time.Now().UTC(), Ports: map[string]int{ingressPort: p.Port()}}
	s.sides.save(c)
	v.set(func() { v.starts++ })
	s.feed.tell("start", c)
	return nil
}

// stopSidecar ends what serves workerd; the container stays.
func (s *Server) stopSidecar(ctx context.Context, c *container) error {
	return s.changing(ctx, c, func(v *live, c *container) error {
		if !c.running() {
			return nil
		}
		c.side.stop()
		c.State.Exited, c.State.Code, c.State.Finished = true, killed, time.Now().UTC()
		s.sides.save(c)
		v.set(func() {
			v.exits++
			v.code = killed
		})
		s.feed.tell("die", c)
		return nil
	})
}

// restore serves a sidecar again that a server before this one had.
func (x *sidecars) restore(srv *Server, r *sidecarRecord, main *container) error {
	c := &container{ID: r.ID, Name: r.Name, Created: r.Created, side: &sidecarOf{box: main.box.ID}}
	c.side.egress = sidecar.Egress{Names: main.box.Network.Handled, Offline: main.box.Network.Mode == sandbox.DenyAll}
	c.Spec = spec{
		Image: r.Image, Argv: append([]string{"proxy-everything"}, r.Cmd...), Cmd: r.Cmd, Labels: r.Labels,
		Exposed: []string{ingressPort}, PublishAll: true, Owner: r.Owner,
	}
	c.State.Ports = r.Ports
	if x.find(c.Name) != nil {
		return errors.New("there is one of that name already")
	}
	x.save(c)
	if len(r.Ports) == 0 { // it had not been started
		return nil
	}
	if err := srv.startSidecar(srv.lives.of(c.ID), c); err != nil {
		return err
	}
	srv.handleEgress(c.side)
	return nil
}
