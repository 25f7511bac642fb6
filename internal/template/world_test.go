package template

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// world is a daemon in memory. A sandbox is a map of files; a program is a few
// words of its own:
//
//	write FILE TEXT    makes a file
//	say TEXT           writes output
//	exit N, hang       ends with a status; does not end
//	serve PORT         listens, writes "serving", makes /run/ready, does not end
type world struct {
	mu        sync.Mutex
	n         int
	boxes     map[string]*box
	snapshots map[string]*snap // by id
	images    map[string]*sandbox.Image
	ran       []string                // commands, in order
	created   []sandbox.CreateParams  // sandboxes
	calls     map[string]func() error // the error that a call fails with
	outputs   []sandbox.ImageSnapshotParams
}

type box struct {
	sandbox.Sandbox
	files map[string]string
	ports map[int]bool
	tries int // of DialPort
	moved chan struct{}
}

type snap struct {
	sandbox.Snapshot
	files map[string]string
	ports map[int]bool
	env   map[string]string
}

func newWorld() *world {
	return &world{
		boxes: map[string]*box{}, snapshots: map[string]*snap{}, calls: map[string]func() error{},
		images: map[string]*sandbox.Image{
			"debian": {Digest: "sha256:debian"}, "node24": {Digest: "sha256:node24"}, "alpine:3": {Digest: "sha256:alpine"},
		},
	}
}

// call counts a call of the method name, and holds mu meanwhile.
func (w *world) call(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if f := w.calls[name]; f != nil {
		return f()
	}
	return nil
}

func (w *world) Create(ctx context.Context, p sandbox.CreateParams) (*sandbox.Sandbox, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(w.call(ctx, "Create"), p.Validate()); err != nil {
		return nil, err
	}
	w.created = append(w.created, p)
	w.n++
	b := &box{files: map[string]string{}, ports: map[int]bool{}, moved: make(chan struct{})}
	b.ID, b.Name, b.User, b.WorkDir = fmt.Sprintf("sbx_%d", w.n), p.Name, "user", "/home"
	switch {
	case p.Snapshot != "":
		s, err := w.snapshot(p.Snapshot)
		if err != nil {
			return nil, err
		}
		b.Digest, b.SnapshotID, b.files = s.Digest, s.ID, maps.Clone(s.files)
		if s.Kind == sandbox.MemorySnapshot && !p.FilesOnly {
			b.ports = maps.Clone(s.ports)
		}
	case p.Image != "":
		b.Digest = w.images[p.Image].Digest
	default:
		b.Digest = w.images["debian"].Digest
	}
	w.boxes[b.ID] = b
	return &b.Sandbox, nil
}

func (w *world) Delete(ctx context.Context, ref string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.call(ctx, "Delete"); err != nil {
		return err
	}
	for id, b := range w.boxes {
		if id == ref || b.Name == ref {
			delete(w.boxes, id)
			close(b.moved)
			return nil
		}
	}
	return cay.Errorf(cay.NotFound, "sandbox %q not found", ref)
}

// output is a program's output, which may not end until closed.
type output struct {
	events chan sandbox.Event
	closed chan struct{}
	once   sync.Once
}

func (o *output) Next() (sandbox.Event, error) {
	select {
	case e, ok := <-o.events:
		if ok {
			return e, nil
		}
	case <-o.closed:
	}
	return sandbox.Event{}, io.EOF
}

func (o *output) Close() error {
	o.once.Do(func() { close(o.closed) })
	return nil
}

func (w *world) Exec(ctx context.Context, ref string, p sandbox.CommandParams) (sandbox.Output, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(w.call(ctx, "Exec"), p.Validate()); err != nil {
		return nil, err
	}
	b := w.boxes[ref]
	out := &output{events: make(chan sandbox.Event, 100), closed: make(chan struct{})}
	line := p.Argv[len(p.Argv)-1]
	env := ""
	for _, k := range slices.Sorted(maps.Keys(p.Env)) {
		env += k + "=" + p.Env[k] + " "
	}
	w.ran = append(w.ran, env+line)
	out.events <- sandbox.Event{Command: &sandbox.Command{ID: "cmd_1"}}
	say := func(text string) { out.events <- sandbox.Event{Stream: sandbox.Stdout, Data: []byte(text)} }
	exit := &sandbox.Exit{}
	for command := range strings.SplitSeq(line, ";") {
		word := strings.Fields(command)
		switch word[0] {
		case "write":
			b.files[word[1]] = word[2]
		case "say":
			say(word[1] + "\n")
		case "exit":
			fmt.Sscan(word[1], &exit.Code)
		case "hang":
			exit = nil
		case "serve":
			var port int
			fmt.Sscan(word[1], &port)
			b.ports[port] = true
			say("ser")
			say("ving\n")
			b.files["/run/ready"] = ""
			close(b.moved)
			b.moved = make(chan struct{})
			exit = nil
		}
	}
	if exit != nil {
		out.events <- sandbox.Event{Exit: exit}
		close(out.events)
		return out, nil
	}
	stop := context.AfterFunc(ctx, func() { out.Close() })
	_ = stop // ends with ctx
	return out, nil
}

func (w *world) DialPort(ctx context.Context, ref string, port int) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.call(ctx, "DialPort"); err != nil {
		return nil, err
	}
	if b := w.boxes[ref]; !b.ports[port] || b.tries < 2 {
		b.tries++
		return nil, cay.Errorf(cay.Unavailable, "nothing listens on port %d", port)
	}
	here, there := net.Pipe()
	there.Close()
	return here, nil
}

func (w *world) Stat(ctx context.Context, ref, p string, _ bool) (*sandbox.FileInfo, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.call(ctx, "Stat"); err != nil {
		return nil, err
	}
	if _, ok := w.boxes[ref].files[p+"/"]; ok { // of Mkdir
		return &sandbox.FileInfo{Path: p, Type: sandbox.TypeDir}, nil
	}
	if _, ok := w.boxes[ref].files[p]; !ok {
		return nil, cay.Errorf(cay.FileNotFound, "%q not found", p)
	}
	return &sandbox.FileInfo{Path: p, Type: sandbox.TypeFile}, nil
}

func (w *world) Mkdir(ctx context.Context, ref, p string, _ sandbox.MkdirParams) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.boxes[ref].files[p+"/"] = ""
	return w.call(ctx, "Mkdir")
}

// Archive returns all files below a directory.
func (w *world) Archive(ctx context.Context, ref, name string, _ sandbox.ArchiveFormat) (io.ReadCloser, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.call(ctx, "Archive"); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, f := range slices.Sorted(maps.Keys(w.boxes[ref].files)) {
		if f != name && !strings.HasPrefix(f, name+"/") || strings.HasSuffix(f, "/") {
			continue
		}
		content := w.boxes[ref].files[f]
		if err := tw.WriteHeader(&tar.Header{Name: path.Base(name) + strings.TrimPrefix(f, name), Mode: 0o644, Size: int64(len(content))}); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(tw, content); err != nil {
			return nil, err
		}
	}
	return io.NopCloser(&b), tw.Close()
}

func (w *world) Extract(ctx context.Context, ref, dir string, r io.Reader, _ sandbox.ExtractParams) error {
	w.mu.Lock()
	err, b := w.call(ctx, "Extract"), w.boxes[ref]
	w.mu.Unlock()
	if err != nil {
		return err
	}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			return err
		}
		w.mu.Lock()
		b.files[path.Join(dir, h.Name)] = string(content)
		w.mu.Unlock()
	}
}

type watch struct {
	ctx   context.Context
	moved chan struct{}
}

func (w *world) Watch(ctx context.Context, ref, _ string, _ sandbox.WatchParams) (sandbox.Watch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &watch{ctx, w.boxes[ref].moved}, w.call(ctx, "Watch")
}

func (w *watch) Next() (sandbox.FileEvent, error) {
	select {
	case <-w.moved:
		return sandbox.FileEvent{}, nil
	case <-w.ctx.Done():
		return sandbox.FileEvent{}, w.ctx.Err()
	}
}

func (w *watch) Close() error { return nil }

func (w *world) snapshot(ref string) (*snap, error) {
	for _, s := range w.snapshots {
		if s.ID == ref || s.Name == ref && s.Status == sandbox.SnapshotCreated {
			return s, nil
		}
	}
	return nil, cay.Errorf(cay.NotFound, "snapshot %q not found", ref)
}

func (w *world) CreateSnapshot(ctx context.Context, ref string, p sandbox.SnapshotParams) (*sandbox.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(w.call(ctx, "CreateSnapshot"), p.Validate()); err != nil {
		return nil, err
	}
	if old, err := w.snapshot(p.Name); err == nil {
		if !p.Replace {
			return nil, cay.Errorf(cay.AlreadyExists, "a snapshot named %q exists", p.Name)
		}
		old.Name = ""
	}
	b := w.boxes[ref]
	w.n++
	s := &snap{Snapshot: sandbox.Snapshot{
		ID: fmt.Sprintf("snap_%d", w.n), Name: p.Name, Kind: p.Kind, Status: sandbox.SnapshotCreated, Digest: b.Digest, ParentID: b.SnapshotID,
	}, files: maps.Clone(b.files), ports: maps.Clone(b.ports), env: p.Env}
	w.snapshots[s.ID] = s
	return &s.Snapshot, nil
}

func (w *world) GetSnapshot(ctx context.Context, ref string) (*sandbox.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.call(ctx, "GetSnapshot"); err != nil {
		return nil, err
	}
	s, err := w.snapshot(ref)
	if err != nil {
		return nil, err
	}
	return &s.Snapshot, nil
}

func (w *world) DeleteSnapshot(ctx context.Context, ref string, _ sandbox.DeleteSnapshotParams) (*sandbox.Snapshot, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.call(ctx, "DeleteSnapshot"); err != nil {
		return nil, err
	}
	s, err := w.snapshot(ref)
	if err != nil {
		return nil, err
	}
	delete(w.snapshots, s.ID)
	return &s.Snapshot, nil
}

// images is the world as Images.
type images struct{ *world }

func (i images) Get(_ context.Context, ref string) (*sandbox.Image, error) {
	if img := i.images[ref]; img != nil {
		return img, nil
	}
	return nil, cay.Errorf(cay.NotFound, "there is no image %q", ref)
}

func (i images) FromSnapshot(_ context.Context, p sandbox.ImageSnapshotParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	i.outputs = append(i.outputs, p)
	progress(sandbox.ImageProgress{Phase: "build"})
	return &sandbox.Image{Digest: "sha256:made", Refs: []string{p.Ref}}, nil
}

// names returns the snapshots with a name, without layers.
func (w *world) names() []string {
	var names []string
	for _, s := range w.snapshots {
		if !strings.HasPrefix(s.Name, layerPrefix) {
			names = append(names, s.Name)
		}
	}
	return names
}

// left fails the test if a sandbox still exists.
func (w *world) left(t *testing.T) {
	t.Helper()
	if len(w.boxes) > 0 {
		t.Errorf("%d sandboxes are left", len(w.boxes))
	}
}
