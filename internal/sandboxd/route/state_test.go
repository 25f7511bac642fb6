package route_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

func someSnapshot() *sandbox.Snapshot {
	return &sandbox.Snapshot{
		ID: "snap_01234567890123456789", Name: "ready", TeamID: "team_default", ProjectID: "prj_default",
		Kind: sandbox.MemorySnapshot, Status: sandbox.SnapshotCreated, Automatic: true,
		ParentID: "snap_parent", SandboxID: "sbx_01234567890123456789", SandboxName: "brave-otter", SessionID: "ses_01234567890123456789",
		Image: "debian", Digest: "sha256:00", Runtime: "node24", User: "u", WorkDir: "/w", DiskMB: 8192, VCPUs: 2, MemoryMB: 4096,
		Annotations: map[string]string{"a": "b"}, Build: "v1", SizeBytes: 1 << 40, CreatedAt: someTime, UpdatedAt: someTime, LastUsedAt: &someTime, ExpiresAt: &someTime,
		Duration: sandbox.Duration(time.Second), Paused: sandbox.Duration(20 * time.Millisecond),
	}
}

func somePrune() *sandbox.SnapshotPrune {
	return &sandbox.SnapshotPrune{Snapshots: []sandbox.Snapshot{*someSnapshot()}, Count: 1000, SizeBytes: 1 << 40}
}

func someTree() *sandbox.SnapshotTree {
	node := sandbox.SnapshotNode{Snapshot: *someSnapshot(), Siblings: []sandbox.Snapshot{*someSnapshot()}, Count: 2}
	alone := sandbox.SnapshotNode{Snapshot: *someSnapshot(), Siblings: []sandbox.Snapshot{}, Count: 1}
	return &sandbox.SnapshotTree{Anchor: alone, Nodes: []sandbox.SnapshotNode{node, alone}, Next: "snap_next"}
}

func someFork() *sandbox.Fork {
	return &sandbox.Fork{
		Sandboxes: []sandbox.Sandbox{*someSandbox()}, Kind: sandbox.MemorySnapshot, SnapshotID: "snap_0", CopiedBytes: 1 << 28, SharedBytes: 7,
		Phases: sandbox.ForkPhases{Paused: sandbox.Duration(time.Millisecond), Start: sandbox.Duration(time.Second), Ready: sandbox.Duration(time.Minute)},
	}
}

func someSession() sandbox.Session {
	return sandbox.Session{
		ID: "ses_01234567890123456789", SandboxID: "sbx_01234567890123456789", Status: sandbox.Stopped, Reason: sandbox.ReasonIdle, Message: "It was idle.",
		SourceID: "snap_0", SnapshotID: "snap_1", VCPUs: 2, MemoryMB: 4096, Timeout: sandbox.Duration(time.Minute),
		CreatedAt: someTime, StartedAt: &someTime, StoppedAt: &someTime, Usage: sandbox.Usage{ActiveCPU: sandbox.Duration(time.Second)},
	}
}

func someDrive() *sandbox.Drive {
	return &sandbox.Drive{
		ID: "drv_01234567890123456789", Name: "data", TeamID: "team_default", ProjectID: "prj_default", MaxMB: 1024, SizeBytes: 5,
		SandboxID: "sbx_0", SandboxName: "brave-otter", ParentID: "drv_1", Annotations: map[string]string{"a": "b"}, CreatedAt: someTime, UpdatedAt: someTime, SavedAt: &someTime,
	}
}

func somePool() sandbox.Pool {
	return sandbox.Pool{Image: "debian", Runtime: "node24", VCPUs: 2, MemoryMB: 4096, DiskMB: 8192, Target: 4, Ready: 3, Starting: 1, Claims: 9, Misses: 2, Problem: "no space"}
}

// stateCalls are the calls of TestClient_Calls for snapshots, drives and other stored
// state.
func stateCalls() []clientCall {
	no, age, forever := false, sandbox.Duration(time.Hour), sandbox.Duration(0)
	vcpus, mem := 0.5, int64(512)
	network := someNetwork()
	mounts := []sandbox.Mount{{Path: "/data", Drive: "data", Mode: sandbox.MountCopy}}
	retention := &sandbox.Retention{Keep: 3, MaxAge: age, Expiration: &forever, KeepEvicted: true}
	fork := sandbox.ForkParams{
		Count: 2, Names: []string{"a", "b"}, Kind: sandbox.FilesystemSnapshot, Env: map[string]string{}, Tags: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
		Network: &network, Ports: []sandbox.PortParams{}, Mounts: mounts, VCPUs: &vcpus, MemoryMB: &mem, Timeout: &age, IdleTimeout: &forever,
		Persistent: &no, SnapshotExpiration: &forever, Retention: retention,
	}
	snapshot := sandbox.SnapshotParams{Kind: sandbox.MemorySnapshot, Name: "n", Expiration: &forever, Replace: true, Env: map[string]string{"A": "b"}, Stop: true, WithoutNetwork: true}
	list := sandbox.SnapshotListParams{ProjectID: "*", Sandbox: "s", Name: "n", Deleted: true, CreatedAfter: someTime, CreatedBefore: someTime.Add(time.Millisecond), Ascending: true, Limit: 7, Cursor: "c"}
	drives := sandbox.DriveListParams{ProjectID: "prj_x", NamePrefix: "d", Order: sandbox.ByUpdate, Ascending: true, Limit: 2, Cursor: "c"}
	drive := sandbox.CreateDriveParams{Name: "data", MaxMB: 64, From: "drv_1", ProjectID: "prj_x", Annotations: map[string]string{"a": "b"}}
	sessions := sandbox.SessionListParams{ProjectID: "*", Ascending: true, Limit: 7, Cursor: "c"}
	return []clientCall{
		{"Hibernate", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.Hibernate(ctx, "s") }, []any{"s"}, someSandbox()},
		{"Fork", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.Fork(ctx, "s", fork) }, []any{"s", fork}, someFork()},
		{"Sessions", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return c.Sessions(ctx, "s", sandbox.SessionParams{Ascending: true, Limit: 3, Cursor: "c"})
		}, []any{"s", sandbox.SessionParams{Ascending: true, Limit: 3, Cursor: "c"}}, &sandbox.Page[sandbox.Session]{Items: []sandbox.Session{someSession()}, Next: "n"}},
		{"ListSessions", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.ListSessions(ctx, sessions) }, []any{sessions}, &sandbox.Page[sandbox.Session]{Items: []sandbox.Session{someSession()}, Next: "n"}},
		{"GetSession", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.GetSession(ctx, "ses_0") }, []any{"ses_0"}, new(someSession())},
		{"CreateSnapshot", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return c.CreateSnapshot(ctx, "s", snapshot)
		}, []any{"s", snapshot}, someSnapshot()},
		{"GetSnapshot", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.GetSnapshot(ctx, "n") }, []any{"n"}, someSnapshot()},
		{"ListSnapshots", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.ListSnapshots(ctx, list) }, []any{list}, &sandbox.Page[sandbox.Snapshot]{Items: []sandbox.Snapshot{*someSnapshot()}, Next: "n"}},
		{"SnapshotTree", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return c.SnapshotTree(ctx, "n", sandbox.SnapshotTreeParams{Descendants: true, Limit: 100})
		}, []any{"n", sandbox.SnapshotTreeParams{Descendants: true, Limit: 100}}, someTree()},
		{"DeleteSnapshot", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return c.DeleteSnapshot(ctx, "n", sandbox.DeleteSnapshotParams{Force: true})
		}, []any{"n", sandbox.DeleteSnapshotParams{Force: true}}, someSnapshot()},
		{"PruneSnapshots", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return c.PruneSnapshots(ctx, sandbox.PruneSnapshotsParams{ProjectID: "prj_x", OlderThan: age, DryRun: true})
		}, []any{sandbox.PruneSnapshotsParams{ProjectID: "prj_x", OlderThan: age, DryRun: true}}, somePrune()},
		{"ExportSnapshot", func(ctx context.Context, c *sandbox.Client) (any, error) {
			r, err := c.ExportSnapshot(ctx, "n")
			if err != nil {
				return nil, err
			}
			defer r.Close()
			b, err := io.ReadAll(r)
			return string(b), err
		}, []any{"n"}, "exported"},
		{"ImportSnapshot", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return c.ImportSnapshot(ctx, strings.NewReader("exported"), sandbox.ImportParams{ProjectID: "prj_x", Name: "n", Memory: true, Expiration: &age})
		}, []any{"exported", sandbox.ImportParams{ProjectID: "prj_x", Name: "n", Memory: true, Expiration: &age}}, someSnapshot()},

		{"CreateDrive", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.CreateDrive(ctx, drive) }, []any{drive}, someDrive()},
		{"GetDrive", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.GetDrive(ctx, "d") }, []any{"d"}, someDrive()},
		{"ListDrives", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.ListDrives(ctx, drives) }, []any{drives}, &sandbox.Page[sandbox.Drive]{Items: []sandbox.Drive{*someDrive()}, Next: "n"}},
		{"SaveDrive", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.SaveDrive(ctx, "d") }, []any{"d"}, someDrive()},
		{"DeleteDrive", func(ctx context.Context, c *sandbox.Client) (any, error) { return nil, c.DeleteDrive(ctx, "d") }, []any{"d"}, nil},
		{"Pools", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.Pools(ctx) }, []any(nil), []sandbox.Pool{somePool()}},
	}
}

func (s *recorder) Hibernate(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	return someSandbox(), s.note(ctx, "Hibernate", ref)
}

func (s *recorder) Fork(ctx context.Context, ref string, p sandbox.ForkParams) (*sandbox.Fork, error) {
	return someFork(), s.note(ctx, "Fork", ref, p)
}

func (s *recorder) Sessions(ctx context.Context, ref string, p sandbox.SessionParams) (*sandbox.Page[sandbox.Session], error) {
	return &sandbox.Page[sandbox.Session]{Items: []sandbox.Session{someSession()}, Next: "n"}, s.note(ctx, "Sessions", ref, p)
}

func (s *recorder) CreateSnapshot(ctx context.Context, ref string, p sandbox.SnapshotParams) (*sandbox.Snapshot, error) {
	return someSnapshot(), s.note(ctx, "CreateSnapshot", ref, p)
}

func (s *recorder) GetSnapshot(ctx context.Context, ref string) (*sandbox.Snapshot, error) {
	return someSnapshot(), s.note(ctx, "GetSnapshot", ref)
}

func (s *recorder) ListSnapshots(ctx context.Context, p sandbox.SnapshotListParams) (*sandbox.Page[sandbox.Snapshot], error) {
	return &sandbox.Page[sandbox.Snapshot]{Items: []sandbox.Snapshot{*someSnapshot()}, Next: "n"}, s.note(ctx, "ListSnapshots", p)
}

// SnapshotTree answers with a node whose siblings are nil; the client must get an array.
func (s *recorder) SnapshotTree(ctx context.Context, ref string, p sandbox.SnapshotTreeParams) (*sandbox.SnapshotTree, error) {
	tree := someTree()
	tree.Anchor.Siblings, tree.Nodes[1].Siblings = nil, nil
	return tree, s.note(ctx, "SnapshotTree", ref, p)
}

func (s *recorder) ListSessions(ctx context.Context, p sandbox.SessionListParams) (*sandbox.Page[sandbox.Session], error) {
	return &sandbox.Page[sandbox.Session]{Items: []sandbox.Session{someSession()}, Next: "n"}, s.note(ctx, "ListSessions", p)
}

func (s *recorder) GetSession(ctx context.Context, id string) (*sandbox.Session, error) {
	return new(someSession()), s.note(ctx, "GetSession", id)
}

func (s *recorder) DeleteSnapshot(ctx context.Context, ref string, p sandbox.DeleteSnapshotParams) (*sandbox.Snapshot, error) {
	return someSnapshot(), s.note(ctx, "DeleteSnapshot", ref, p)
}

func (s *recorder) PruneSnapshots(ctx context.Context, p sandbox.PruneSnapshotsParams) (*sandbox.SnapshotPrune, error) {
	return somePrune(), s.note(ctx, "PruneSnapshots", p)
}

func (s *recorder) ExportSnapshot(ctx context.Context, ref string) (io.ReadCloser, error) {
	if err := s.note(ctx, "ExportSnapshot", ref); err != nil {
		return nil, err
	}
	if s.export != nil {
		return s.export(), nil
	}
	return io.NopCloser(strings.NewReader("exported")), nil
}

func (s *recorder) ImportSnapshot(ctx context.Context, r io.Reader, p sandbox.ImportParams) (*sandbox.Snapshot, error) {
	if s.write != nil {
		return someSnapshot(), s.write(ctx, r)
	}
	if s.err != nil {
		return nil, s.note(ctx, "ImportSnapshot")
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return someSnapshot(), s.note(ctx, "ImportSnapshot", string(b), p)
}

func (s *recorder) CreateDrive(ctx context.Context, p sandbox.CreateDriveParams) (*sandbox.Drive, error) {
	return someDrive(), s.note(ctx, "CreateDrive", p)
}

func (s *recorder) GetDrive(ctx context.Context, ref string) (*sandbox.Drive, error) {
	return someDrive(), s.note(ctx, "GetDrive", ref)
}

func (s *recorder) ListDrives(ctx context.Context, p sandbox.DriveListParams) (*sandbox.Page[sandbox.Drive], error) {
	return &sandbox.Page[sandbox.Drive]{Items: []sandbox.Drive{*someDrive()}, Next: "n"}, s.note(ctx, "ListDrives", p)
}

func (s *recorder) SaveDrive(ctx context.Context, ref string) (*sandbox.Drive, error) {
	return someDrive(), s.note(ctx, "SaveDrive", ref)
}

func (s *recorder) DeleteDrive(ctx context.Context, ref string) error {
	return s.note(ctx, "DeleteDrive", ref)
}

func (s *recorder) Pools(ctx context.Context) ([]sandbox.Pool, error) {
	return []sandbox.Pool{somePool()}, s.note(ctx, "Pools")
}

// Optional bodies may be left out.
func TestRoutes_StateWithoutBody(t *testing.T) {
	t.Parallel()
	_, rec, srv := dialRecorder(t)
	for _, tt := range []struct {
		method, path string
		want         wireCall
	}{
		{http.MethodPost, "/v1/sandboxes/s/snapshots", wireCall{"CreateSnapshot", []any{"s", sandbox.SnapshotParams{}}}},
		{http.MethodPost, "/v1/sandboxes/s/resume", wireCall{"Resume", []any{"s", sandbox.ResumeParams{}}}},
		{http.MethodGet, "/v1/sandboxes/s?resume=true", wireCall{"Get", []any{"s"}}},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, srv.URL+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer admin")
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode/100 != 2 {
			t.Errorf("%s %s: %s", tt.method, tt.path, resp.Status)
			continue
		}
		if tt.want.Method == "Get" && rec.calls[0].Method != "Resume" {
			t.Errorf("%s %s: %v came before Get, want Resume", tt.method, tt.path, rec.calls[0])
		}
		if got := rec.last(t); differ(got, tt.want) {
			t.Errorf("%s %s: the service got %v, want %v", tt.method, tt.path, got, tt.want)
		}
	}
}

// Getting a sandbox with resume fails with the error of resuming it.
func TestRoutes_GetResumeFails(t *testing.T) {
	t.Parallel()
	_, rec, srv := dialRecorder(t)
	rec.err = cay.Errorf(cay.Stopped, "over")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/v1/sandboxes/s?resume=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer admin")
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusGone || rec.last(t).Method != "Resume" {
		t.Errorf("got %s", resp.Status)
	}
}

func TestRoutes_PoolsTakeOperator(t *testing.T) {
	t.Parallel()
	_, rec, srv := dialRecorder(t)
	c := sandbox.NewClient(sandbox.ClientOptions{URL: srv.URL, Token: "user"})
	if _, err := c.Pools(t.Context()); cay.CodeOf(err) != cay.PermissionDenied {
		t.Errorf("got %v, want permission_denied", err)
	}
	if len(rec.calls) > 0 {
		t.Errorf("%v reached the service", rec.calls)
	}
}

// Content is streamed: the service sees the first bytes before the client has sent the
// last, and vice versa.
func TestClient_SnapshotsStream(t *testing.T) {
	t.Parallel()
	t.Run("import", func(t *testing.T) {
		t.Parallel()
		c, rec, _ := dialRecorder(t)
		first := make(chan []byte, 1)
		rec.write = func(_ context.Context, r io.Reader) error {
			b := make([]byte, 5)
			if _, err := io.ReadFull(r, b); err != nil {
				return err
			}
			first <- b
			rest, err := io.ReadAll(r)
			if err == nil && string(rest) != "rest" {
				t.Errorf("the rest is %q", rest)
			}
			return err
		}
		r, w := io.Pipe()
		go func() {
			w.Write([]byte("begin"))
			if got := <-first; !bytes.Equal(got, []byte("begin")) {
				t.Errorf("the service read %q", got)
			}
			w.Write([]byte("rest"))
			w.Close()
		}()
		if _, err := c.ImportSnapshot(t.Context(), r, sandbox.ImportParams{}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("export that fails midway", func(t *testing.T) {
		t.Parallel()
		c, rec, _ := dialRecorder(t)
		src, w := io.Pipe()
		rec.export = func() io.ReadCloser { return src }
		go w.Write([]byte("begin"))
		r, err := c.ExportSnapshot(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if _, err := io.ReadFull(r, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		w.CloseWithError(io.ErrNoProgress)
		if _, err := io.ReadAll(r); cay.CodeOf(err) != cay.Unavailable {
			t.Errorf("got %v, want unavailable", err)
		}
	})
}
