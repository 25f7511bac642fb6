package docker

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// Tags by which the sandbox of a container is found.
const (
	tagKind = "docker"
	tagID   = "docker.id"
	tagName = "docker.name"

	kindContainer = "container"
)

// Annotations that hold the rest of a container.
const (
	noteState = "docker.state"
	noteSpec  = "docker.spec." // and the number of the part
)

const (
	maxNote  = 1024 // bytes of an annotation
	maxParts = 28   // annotations of a spec
	maxSpec  = 1 << 20
)

// container is a container as its sandbox records it, or a sidecar.
type container struct {
	ID      string // 64 hexadecimal digits
	Name    string
	Created time.Time
	Spec    spec
	State   state

	box  *sandbox.Sandbox // nil for a sidecar
	side *sidecarOf       // nil for a sandbox
}

// spec is what a container was created with, and does not change.
type spec struct {
	Image      string              `json:"image"`
	Argv       []string            `json:"argv"` // entrypoint and command, those of the image included
	Cmd        []string            `json:"cmd,omitempty"`
	Entrypoint []string            `json:"entrypoint,omitempty"`
	User       string              `json:"user,omitempty"`
	WorkingDir string              `json:"workdir,omitempty"`
	Labels     map[string]string   `json:"labels,omitempty"`
	Exposed    []string            `json:"exposed,omitempty"`  // "3000/tcp"
	Bindings   map[string][]string `json:"bindings,omitempty"` // host ports asked for, by port; "" for any
	Tty        bool                `json:"tty,omitempty"`
	OpenStdin  bool                `json:"open_stdin,omitempty"`
	StdinOnce  bool                `json:"stdin_once,omitempty"`
	AutoRemove bool                `json:"auto_remove,omitempty"`
	PublishAll bool                `json:"publish_all,omitempty"`
	Network    string              `json:"network,omitempty"`
	StopSignal string              `json:"stop_signal,omitempty"`
	StopAfter  *int                `json:"stop_after,omitempty"` // seconds
	Owner      process             `json:"owner,omitzero"`       // that created it
	Mounts     []mount             `json:"mounts,omitempty"`
	Sidecar    *sidecarRecord      `json:"sidecar,omitempty"` // that it shares its network with
}

// state is what changes while a container lives.
type state struct {
	Command  string         `json:"command,omitempty"` // that runs or ran last, by id
	Started  time.Time      `json:"started,omitzero"`
	Finished time.Time      `json:"finished,omitzero"`
	Exited   bool           `json:"exited,omitempty"`
	Code     int            `json:"code,omitempty"`
	Ports    map[string]int `json:"ports,omitempty"` // published on 127.0.0.1, by port: "3000/tcp"
}

// killed is the exit code of a container that ended with its sandbox.
const killed = 137

// running reports whether the command of the container runs.
func (c *container) running() bool {
	if c.State.Started.IsZero() || c.State.Exited {
		return false
	}
	return c.box == nil || !c.box.Status.Final()
}

// unfinished reports whether the end of the container's command is not recorded: it
// runs, or has ended while no server looked.
func (c *container) unfinished() bool {
	return c.box != nil && !c.State.Started.IsZero() && !c.State.Exited
}

// status is the word that the API has for the state of the container.
func (c *container) status() string {
	switch {
	case c.running() && c.box != nil && (c.box.Status == sandbox.Paused || c.box.Status == sandbox.Hibernated):
		return "paused"
	case c.running():
		return "running"
	case c.State.Started.IsZero():
		return "created"
	}
	return "exited"
}

// exitCode is the code of a container that has ended, 0 otherwise.
func (c *container) exitCode() int {
	if !c.State.Started.IsZero() && !c.State.Exited && !c.running() {
		return killed
	}
	return c.State.Code
}

// tags returns the tags of the container's sandbox.
func (c *container) tags() map[string]string {
	return map[string]string{tagKind: kindContainer, tagID: c.ID, tagName: c.Name}
}

// notes returns the annotations of the container's sandbox. Errors: 400 if they
// are too long.
func (c *container) notes() (map[string]string, error) {
	text, err := pack(c.Spec)
	if err != nil {
		return nil, err
	}
	if len(text) > maxNote*maxParts {
		return nil, failf(http.StatusBadRequest, "command, labels and ports of the container have %d bytes when compressed; cay keeps at most %d with a sandbox: put long scripts into a file", len(text), maxNote*maxParts)
	}
	notes := map[string]string{}
	for i := 0; len(text) > 0; i++ {
		n := min(len(text), maxNote)
		notes[fmt.Sprint(noteSpec, i)], text = text[:n], text[n:]
	}
	st, err := json.Marshal(c.State)
	if err != nil {
		return nil, err
	}
	if len(st) > maxNote {
		return nil, failf(http.StatusBadRequest, "the container publishes %d ports, more than cay keeps with a sandbox", len(c.State.Ports))
	}
	notes[noteState] = string(st)
	return notes, nil
}

// pack makes a spec text.
func pack(s spec) (string, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.BestCompression)
	if err != nil {
		return "", err
	}
	if _, err := w.Write(b); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(packed.Bytes()), nil
}

// unpack reads what pack wrote.
func unpack(text string) (s spec, err error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return s, err
	}
	b, err = io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(b)), maxSpec))
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(b, &s)
}

// read makes a container of its sandbox.
func read(box *sandbox.Sandbox) (*container, error) {
	c := &container{ID: box.Tags[tagID], Name: box.Tags[tagName], Created: box.CreatedAt, box: box}
	var text strings.Builder
	for i := range maxParts {
		part, ok := box.Annotations[fmt.Sprint(noteSpec, i)]
		if !ok {
			break
		}
		text.WriteString(part)
	}
	var err error
	if c.Spec, err = unpack(text.String()); err == nil {
		err = json.Unmarshal([]byte(box.Annotations[noteState]), &c.State)
	}
	if err == nil && (!isID.MatchString(c.ID) || !validName.MatchString(c.Name)) {
		err = fmt.Errorf("id %.70q or name %.70q is not one", c.ID, c.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("the tags and annotations of sandbox %s are no container's: %w", box.ID, err)
	}
	return c, nil
}

// save records the state and the name of a container.
func (s *Server) save(ctx context.Context, c *container) error {
	if c.side != nil {
		s.sides.save(c)
		return nil
	}
	notes, err := c.notes()
	if err != nil {
		return err
	}
	_, err = s.cfg.Sandboxes.Update(ctx, c.box.ID, sandbox.UpdateParams{Tags: c.tags(), Annotations: notes})
	return err
}

var (
	isID      = regexp.MustCompile(`^[0-9a-f]{64}$`)
	isPrefix  = regexp.MustCompile(`^[0-9a-f]{1,64}$`)
	validName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}$`)
)

// find returns the container that a name, an id, or the beginning of an id names.
func (s *Server) find(ctx context.Context, ref string) (*container, error) {
	ref = strings.TrimPrefix(ref, "/")
	if c := s.sides.find(ref); c != nil {
		return c, nil
	}
	if validName.MatchString(ref) {
		for _, key := range []string{tagName, tagID} {
			if key == tagID && !isID.MatchString(ref) {
				continue
			}
			found, err := s.listed(ctx, map[string]string{tagKind: kindContainer, key: ref})
			if err != nil {
				return nil, err
			}
			if len(found) > 0 {
				return s.reread(ctx, found[0])
			}
		}
	}
	if isPrefix.MatchString(ref) && !isID.MatchString(ref) {
		all, err := s.all(ctx)
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(c *container) bool { return !strings.HasPrefix(c.ID, ref) })
		if len(all) > 1 {
			return nil, failf(http.StatusBadRequest, "multiple IDs found with provided prefix: %s", ref)
		}
		if len(all) == 1 && all[0].side != nil {
			return all[0], nil
		}
		if len(all) == 1 {
			return s.reread(ctx, all[0])
		}
	}
	return nil, failf(http.StatusNotFound, "No such container: %.300s", ref)
}

// reread returns a container as it is now, with the environment of its sandbox,
// which lists leave out.
func (s *Server) reread(ctx context.Context, c *container) (*container, error) {
	if c.side != nil {
		if now := s.sides.find(c.ID); now != nil {
			return now, nil
		}
		return nil, failf(http.StatusNotFound, "No such container: %s", c.ID)
	}
	box, err := s.cfg.Sandboxes.Get(ctx, c.box.ID)
	if cay.CodeOf(err) == cay.NotFound {
		return nil, failf(http.StatusNotFound, "No such container: %s", c.ID)
	}
	if err != nil {
		return nil, err
	}
	return read(box)
}

// all returns all containers of the project, newest first.
func (s *Server) all(ctx context.Context) ([]*container, error) {
	all, err := s.listed(ctx, map[string]string{tagKind: kindContainer})
	if err != nil {
		return nil, err
	}
	all = append(all, s.sides.all()...)
	slices.SortStableFunc(all, func(a, b *container) int { return b.Created.Compare(a.Created) })
	return all, nil
}

// listed returns the containers whose sandboxes have tags.
func (s *Server) listed(ctx context.Context, tags map[string]string) ([]*container, error) {
	var out []*container
	p := sandbox.ListParams{ProjectID: s.cfg.ProjectID, Tags: maps.Clone(tags), Limit: 200}
	for {
		page, err := s.cfg.Sandboxes.List(ctx, p)
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			c, err := read(&page.Items[i])
			if err != nil {
				s.cfg.Logger.WarnContext(ctx, "a sandbox is tagged as a container", "error", err)
				continue
			}
			out = append(out, c)
		}
		if p.Cursor = page.Next; p.Cursor == "" {
			return out, nil
		}
	}
}
