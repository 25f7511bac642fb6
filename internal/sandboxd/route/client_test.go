package route_test

import (
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/sandbox"
)

// clientCall is one method of the client, with the arguments that the service gets and
// the result that the caller gets.
type clientCall struct {
	name string
	do   func(ctx context.Context, c *sandbox.Client) (any, error)
	want []any // arguments the service got
	give any   // result of the client's method; nil: none
}

// The arguments of every method reach the service unchanged, and its answer reaches the
// caller.
func TestClient_Calls(t *testing.T) {
	t.Parallel()
	idle, never, no := sandbox.Duration(0), sandbox.Duration(0), false
	vcpus, mem, snapshotID, runtime := 1.5, int64(256), "snap_0", "node22"
	network := someNetwork()
	network.Allow[0].Rules[0].SetHeaders["authorization"] = "Bearer s3cret"
	create := sandbox.CreateParams{
		Name: "n", Image: "debian", VCPUs: 0.5, MemoryMB: 512, DiskMB: 64, Timeout: sandbox.Duration(time.Minute), IdleTimeout: sandbox.Duration(time.Second),
		Env: map[string]string{"K": "<v>"}, Tags: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}, User: "u", WorkDir: "/w",
		Network: network, Ports: []sandbox.PortParams{{Port: 3000}, {Port: 80, Access: sandbox.Private}}, ProjectID: "prj_x", IdempotencyKey: "key",
		Persistent: &no, Snapshot: "snap", FilesOnly: true, Mounts: []sandbox.Mount{{Path: "/data", Drive: "d", Mode: sandbox.MountReadOnly}},
		SnapshotExpiration: &never, Retention: &sandbox.Retention{Keep: 1},
	}
	list := sandbox.ListParams{ProjectID: "*", Resumable: true, Status: []sandbox.Status{sandbox.Running, sandbox.Failed}, NamePrefix: "p", Tags: map[string]string{"a=b%": "c=d", "x": ""}, CreatedAfter: someTime, CreatedBefore: someTime.Add(time.Millisecond), Order: sandbox.ByName, Ascending: true, Limit: 7, Cursor: "c"}
	update := sandbox.UpdateParams{
		Tags: map[string]string{"x": "y"}, Annotations: map[string]string{}, Runtime: &runtime, Network: &network, Ports: []sandbox.PortParams{}, IdleTimeout: &idle,
		Persistent: &no, Env: map[string]string{}, Timeout: &never, VCPUs: &vcpus, MemoryMB: &mem, Mounts: []sandbox.Mount{},
		SnapshotID: &snapshotID, SnapshotExpiration: &never, Retention: &sandbox.Retention{},
	}
	command := sandbox.CommandParams{Argv: []string{"sh", "-c", "a\tb"}, Env: map[string]string{"E": "1"}, WorkDir: "w", User: "u", Sudo: true, Timeout: sandbox.Duration(time.Second), Stdin: true, PTY: &sandbox.WindowSize{Cols: 80, Rows: 24}, IdempotencyKey: "key"}
	const bad = "/tmp/\xff\x00 ä?&%2e" // bytes that are not UTF-8 must arrive unchanged

	tests := append([]clientCall{
		{"Create", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.Create(ctx, create) }, []any{create}, someSandbox()},
		{"Get", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.Get(ctx, "a/b c") }, []any{"a/b c"}, someSandbox()},
		{"List", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.List(ctx, list) }, []any{list}, &sandbox.Page[sandbox.Sandbox]{Items: []sandbox.Sandbox{*someSandbox()}, Next: "more"}},
		{"Update", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.Update(ctx, "s", update) }, []any{"s", update}, someSandbox()},
		{"Extend", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return c.Extend(ctx, "s", sandbox.Duration(time.Minute))
		}, []any{"s", sandbox.Duration(time.Minute)}, someSandbox()},
		{"Stop", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.Stop(ctx, "s") }, []any{"s"}, someSandbox()},
		{"Pause", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.Pause(ctx, "s") }, []any{"s"}, someSandbox()},
		{"Resume", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return c.Resume(ctx, "s", sandbox.ResumeParams{FilesOnly: true, Fresh: true})
		}, []any{"s", sandbox.ResumeParams{FilesOnly: true, Fresh: true}}, someSandbox()},
		{"DeleteWith", func(ctx context.Context, c *sandbox.Client) (any, error) { return nil, c.Delete(ctx, "s") }, []any{"s", sandbox.DeleteParams{}}, nil},
		{"DeleteWith", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return nil, c.DeleteWith(ctx, "s", sandbox.DeleteParams{KeepSnapshots: true})
		}, []any{"s", sandbox.DeleteParams{KeepSnapshots: true}}, nil},
		{"Stats", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.Stats(ctx, "s") }, []any{"s"}, &sandbox.Stats{MemoryBytes: 1 << 40, Processes: 3}},
		{"WatchStats", func(ctx context.Context, c *sandbox.Client) (any, error) { return collectAll(c.WatchStats(ctx, "s")) }, []any{"s"}, someReadings()},
		{"WatchCommands", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return collectAll(c.WatchCommands(ctx, "s"))
		}, []any{"s"}, someCommandChanges()},
		{"Flows", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return c.Flows(ctx, "s", sandbox.FlowParams{Verdict: sandbox.Denied, After: 1 << 60, Limit: 3})
		}, []any{"s", sandbox.FlowParams{Verdict: sandbox.Denied, After: 1 << 60, Limit: 3}}, &sandbox.Page[sandbox.Flow]{Items: []sandbox.Flow{someFlow()}, Next: "7"}},
		{"WatchSandboxes", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return collectAll(c.WatchSandboxes(ctx, sandbox.ChangeParams{ProjectID: "*"}))
		}, []any{sandbox.ChangeParams{ProjectID: "*"}}, someChanges()},
		{"WatchFlows", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return collectAll(c.WatchFlows(ctx, "s", sandbox.FlowParams{Verdict: sandbox.Broken, After: 5}))
		}, []any{"s", sandbox.FlowParams{Verdict: sandbox.Broken, After: 5}}, someFlows()},
		{"CreateLink", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return c.CreateLink(ctx, "s", 3000, sandbox.LinkParams{TTL: sandbox.Duration(time.Minute)})
		}, []any{"s", 3000, sandbox.LinkParams{TTL: sandbox.Duration(time.Minute)}}, someLink()},
		{"DialPort", func(ctx context.Context, c *sandbox.Client) (any, error) {
			conn, err := c.DialPort(ctx, "s", 3000)
			if err != nil {
				return nil, err
			}
			defer conn.Close()
			if _, err := conn.Write([]byte("ping")); err != nil {
				return nil, err
			}
			if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
				return nil, err
			}
			b, err := io.ReadAll(conn)
			return string(b), err
		}, []any{"s", 3000}, "ping"},
		{"HandleOutbound", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return collectAll(c.HandleOutbound(ctx, "s"))
		}, []any{"s"}, []sandbox.Outbound{someOutbound()}},
		{"TakeOutbound", func(ctx context.Context, c *sandbox.Client) (any, error) {
			conn, err := c.TakeOutbound(ctx, "s", "7", sandbox.HandlePlain)
			if err != nil {
				return nil, err
			}
			defer conn.Close()
			if _, err := conn.Write([]byte("p")); err != nil {
				return nil, err
			}
			b := make([]byte, 1)
			_, err = io.ReadFull(conn, b)
			return string(b), err
		}, []any{"s", "7", sandbox.HandlePlain}, "p"},
		{"DeclineOutbound", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return nil, c.DeclineOutbound(ctx, "s", "7", sandbox.HandlePass)
		}, []any{"s", "7", sandbox.HandlePass}, nil},
		{"Authority", func(ctx context.Context, c *sandbox.Client) (any, error) {
			b, err := c.Authority(ctx)
			return string(b), err
		}, nil, "a certificate"},

		{"Start", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.Start(ctx, "s", command) }, []any{"s", command}, someCommand()},
		{"Exec", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return collectAll(c.Exec(ctx, "s", command))
		}, []any{"s", command}, someEvents()},
		{"GetCommand", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.GetCommand(ctx, "s", "c") }, []any{"s", "c"}, someCommand()},
		{"ListCommands", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.ListCommands(ctx, "s") }, []any{"s"}, []sandbox.Command{*someCommand(), *exited()}},
		{"Wait", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.Wait(ctx, "s", "c") }, []any{"s", "c"}, exited()},
		{"Signal", func(ctx context.Context, c *sandbox.Client) (any, error) { return nil, c.Signal(ctx, "s", "c", 15) }, []any{"s", "c", sandbox.Signal(15)}, nil},
		{"Output", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return collectAll(c.Output(ctx, "s", "c", sandbox.OutputParams{Cursor: 3, Follow: true}))
		}, []any{"s", "c", sandbox.OutputParams{Cursor: 3, Follow: true}}, someEvents()[1:]},
		{"WriteStdin", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return nil, c.WriteStdin(ctx, "s", "c", strings.NewReader("in"), true)
		}, []any{"s", "c", "in", true}, nil},
		{"Resize", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return nil, c.Resize(ctx, "s", "c", sandbox.WindowSize{Cols: 1, Rows: 2})
		}, []any{"s", "c", sandbox.WindowSize{Cols: 1, Rows: 2}}, nil},

		{"Stat", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.Stat(ctx, "s", bad, true) }, []any{"s", bad, true}, someFile(10)},
		{"ReadDir", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return c.ReadDir(ctx, "s", bad, sandbox.ReadDirParams{Limit: 5, Cursor: "x"})
		}, []any{"s", bad, sandbox.ReadDirParams{Limit: 5, Cursor: "x"}}, &sandbox.Page[sandbox.FileInfo]{Items: []sandbox.FileInfo{*someFile(1)}, Next: "n"}},
		{"Glob", func(ctx context.Context, c *sandbox.Client) (any, error) { return c.Glob(ctx, "s", "**/*.go") }, []any{"s", "**/*.go"}, []string{"/a", "/b\xff"}},
		{"ReadFile", func(ctx context.Context, c *sandbox.Client) (any, error) {
			r, info, err := c.ReadFile(ctx, "s", bad, sandbox.ReadParams{Offset: 3, Length: 4})
			if err != nil {
				return nil, err
			}
			return info, r.Close()
		}, []any{"s", bad, sandbox.ReadParams{Offset: 3, Length: 4}}, someFile(10)},
		{"WriteFile", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return c.WriteFile(ctx, "s", bad, strings.NewReader("four"), sandbox.WriteParams{Mode: 0o4755, User: "u", Parents: true, Size: 4})
		}, []any{"s", bad, "four", sandbox.WriteParams{Mode: 0o4755, User: "u", Parents: true, Size: 4}}, someFile(4)},
		{"Mkdir", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return nil, c.Mkdir(ctx, "s", bad, sandbox.MkdirParams{Mode: 0o700, User: "u", Parents: true})
		}, []any{"s", bad, sandbox.MkdirParams{Mode: 0o700, User: "u", Parents: true}}, nil},
		{"Rename", func(ctx context.Context, c *sandbox.Client) (any, error) { return nil, c.Rename(ctx, "s", bad, "/b") }, []any{"s", bad, "/b"}, nil},
		{"Copy", func(ctx context.Context, c *sandbox.Client) (any, error) { return nil, c.Copy(ctx, "s", "/a", bad) }, []any{"s", "/a", bad}, nil},
		{"Remove", func(ctx context.Context, c *sandbox.Client) (any, error) { return nil, c.Remove(ctx, "s", bad, true) }, []any{"s", bad, true}, nil},
		{"Symlink", func(ctx context.Context, c *sandbox.Client) (any, error) { return nil, c.Symlink(ctx, "s", bad, "/l") }, []any{"s", bad, "/l"}, nil},
		{"Chmod", func(ctx context.Context, c *sandbox.Client) (any, error) { return nil, c.Chmod(ctx, "s", bad, 0) }, []any{"s", bad, uint32(0)}, nil},
		{"Extract", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return nil, c.Extract(ctx, "s", bad, strings.NewReader("tar"), sandbox.ExtractParams{Format: sandbox.TarGz, User: "u", KeepOwner: true, MaxBytes: 9, MaxEntries: 8})
		}, []any{"s", bad, "tar", sandbox.ExtractParams{Format: sandbox.TarGz, User: "u", KeepOwner: true, MaxBytes: 9, MaxEntries: 8}}, nil},
		{"Extract", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return nil, c.Extract(ctx, "s", bad, strings.NewReader("tar"), sandbox.ExtractParams{ContentOnly: true})
		}, []any{"s", bad, "tar", sandbox.ExtractParams{Format: sandbox.Tar, ContentOnly: true}}, nil},
		{"Archive", func(ctx context.Context, c *sandbox.Client) (any, error) {
			r, err := c.Archive(ctx, "s", bad, sandbox.TarGz)
			if err != nil {
				return nil, err
			}
			defer r.Close()
			b, err := io.ReadAll(r)
			return len(b), err
		}, []any{"s", bad, sandbox.TarGz}, 1024},
		{"Watch", func(ctx context.Context, c *sandbox.Client) (any, error) {
			return collectAll(c.Watch(ctx, "s", bad, sandbox.WatchParams{Recursive: true}))
		}, []any{"s", bad, sandbox.WatchParams{Recursive: true}}, []sandbox.FileEvent{{Op: sandbox.OpCreate, Path: "/a"}, {Op: sandbox.OpRename, Path: "/b", From: "/a"}}},
	}, stateCalls()...)
	covered := map[string]bool{}
	for _, tt := range tests {
		covered[tt.name] = true
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, rec, srv := dialRecorder(t)
			c := dialWire(t, srv.URL, conformance(t))
			got, err := tt.do(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if differ(got, tt.give) {
				t.Errorf("the client returned\n%+v\nwant\n%+v", got, tt.give)
			}
			if call := rec.last(t); call.Method != tt.name || differ(call.Args, tt.want) {
				t.Errorf("the service got %s\n%+v\nwant\n%+v", call.Method, call.Args, tt.want)
			}
			// The same call, failing: the error keeps its code, text, hint and delay.
			want := cay.Errorf(cay.QuotaExceeded, "no %q", "more").WithHint("wait")
			want.RetryAfter = 1500 * time.Millisecond
			rec.err = want
			_, err = tt.do(t.Context(), c)
			checkWireError(t, err, want)
		})
	}
	for m := range reflect.TypeFor[sandboxd.Service]().Methods() {
		if !covered[m.Name] {
			t.Errorf("no case for %s", m.Name)
		}
	}
}

func differ(a, b any) bool { return (a != nil || b != nil) && !reflect.DeepEqual(a, b) }

// collectAll reads a stream to its end.
func collectAll[T any, S interface {
	Next() (T, error)
	io.Closer
}](s S, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var out []T
	for {
		v, err := s.Next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, v)
	}
}

// checkWireError fails unless err equals want in all that a user can see.
func checkWireError(t *testing.T, err error, want *cay.Error) {
	t.Helper()
	var got *cay.Error
	if !errors.As(err, &got) {
		t.Fatalf("error %v (%T) is not coded", err, err)
	}
	if !errors.Is(err, want) || got.Code != want.Code || got.Message != want.Message || got.Hint != want.Hint || got.RetryAfter != want.RetryAfter {
		t.Errorf("error is %+v, want %+v", got, want)
	}
}
