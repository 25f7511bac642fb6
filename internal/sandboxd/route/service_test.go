package route_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/api/apitest"
	"github.com/cayhq/cay/internal/sandboxd/route"
	"github.com/cayhq/cay/sandbox"
)

// wireCall is a call of the Service: the method and all its arguments but the context.
type wireCall struct {
	Method string
	Args   []any
}

// recorder is a Service that records its calls and answers with fixed values, or with
// err. Tests can set hooks for the streams.
type recorder struct {
	mu    sync.Mutex // guards calls
	calls []wireCall
	who   api.Principal

	err    error
	output func(ctx context.Context) (sandbox.Output, error)
	read   func(p sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error)
	write  func(ctx context.Context, r io.Reader) error
	wait   func(ctx context.Context) error
	watch  func(ctx context.Context) (sandbox.Watch, error)
	flows  func(ctx context.Context) (sandbox.FlowWatch, error)
	dial   func(ctx context.Context) (net.Conn, error)
	create func(p sandbox.CreateParams) (*sandbox.Sandbox, error)
	status func() sandbox.Status
	export func() io.ReadCloser
	pty    bool
}

func (s *recorder) note(ctx context.Context, method string, args ...any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, wireCall{method, args})
	s.who, _ = api.PrincipalFrom(ctx)
	return s.err
}

// last returns the newest call and forgets all.
func (s *recorder) last(t *testing.T) wireCall {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) == 0 {
		t.Fatal("nothing reached the service")
	}
	c := s.calls[len(s.calls)-1]
	s.calls = nil
	return c
}

var someTime = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func someSandbox() *sandbox.Sandbox {
	return &sandbox.Sandbox{
		ID: "sbx_01234567890123456789", Name: "brave-otter", TeamID: "team_default", ProjectID: "prj_default",
		Status: sandbox.Running, Image: "debian", Digest: "sha256:00", Runtime: "node24", VCPUs: 2, MemoryMB: 4096, DiskMB: 8192,
		Env: map[string]string{"A": "1"}, Tags: map[string]string{"k": "v"}, Annotations: map[string]string{"a": "b"}, User: "vercel-sandbox", WorkDir: "/vercel/sandbox",
		Network: someNetwork(), Ports: []sandbox.Port{{Port: 3000, Access: sandbox.Private, Label: "p0", URL: "http://p0.localhost:7070"}},
		Mounts:     []sandbox.Mount{{Path: "/data", Drive: "drv_0", Mode: sandbox.MountReadWrite}},
		Persistent: true, SessionID: "ses_0", SnapshotID: "snap_0", SnapshotExpiration: sandbox.Duration(time.Hour),
		Retention: &sandbox.Retention{Keep: 2, KeepEvicted: true},
		Timeout:   sandbox.Duration(5 * time.Minute),
		CreatedAt: someTime, UpdatedAt: someTime, StatusAt: someTime, StartedAt: &someTime, ExpiresAt: &someTime,
		Next: &sandbox.NextSession{VCPUs: new(4.0), Timeout: new(sandbox.Duration(time.Minute))},
	}
}

// someNetwork is a policy with all fields set.
func someNetwork() sandbox.Network {
	text := func(s string) *sandbox.TextMatch { return &sandbox.TextMatch{Exact: &s} }
	prefix, regex := "/v1/", "^a+$"
	return sandbox.Network{
		Mode: sandbox.Custom, AllowCIDRs: []string{"203.0.113.0/24"}, DenyCIDRs: []string{"203.0.113.7"}, Strict: true,
		Limits: sandbox.NetworkLimits{Connections: 1, ConnectionsPerSecond: 2, BytesPerSecond: 3, TotalBytes: 4},
		Allow: []sandbox.Domain{{Name: "*.example.com", Ports: []uint16{443}, Rules: []sandbox.Rule{
			{
				Match: sandbox.Match{
					Methods: []string{"GET"}, Path: &sandbox.TextMatch{Prefix: &prefix},
					Query:   []sandbox.FieldMatch{{Key: text("a"), Value: &sandbox.TextMatch{Regex: &regex}}},
					Headers: []sandbox.FieldMatch{{Key: text("accept")}},
				},
				SetHeaders: map[string]string{"authorization": sandbox.Redacted}, Scrub: true,
			},
			{ForwardURL: "https://proxy.example.com/in"},
			{Respond: &sandbox.Response{Status: 200, Headers: map[string]string{"content-type": "text/plain"}, Body: "hi"}},
			{Deny: true},
		}}},
	}
}

func someCommand() *sandbox.Command {
	return &sandbox.Command{
		ID: "cmd_01234567890123456789", SandboxID: "sbx_01234567890123456789", Argv: []string{"echo", "<hé>"},
		WorkDir: "/", User: "root", PID: 7, StartedAt: someTime, OutputEnd: 12,
	}
}

func exited() *sandbox.Command {
	c := someCommand()
	c.Exit = &sandbox.Exit{Code: 3, At: someTime, Duration: sandbox.Duration(time.Second)}
	return c
}

func someFile(size int64) *sandbox.FileInfo {
	return &sandbox.FileInfo{Name: "ä😀", Path: "/tmp/ä😀", Type: sandbox.TypeFile, Size: size, Mode: 0o644, UID: 1000, GID: 1000, ModTime: someTime}
}

func (s *recorder) Create(ctx context.Context, p sandbox.CreateParams) (*sandbox.Sandbox, error) {
	err := s.note(ctx, "Create", p)
	if s.create != nil {
		return s.create(p)
	}
	return someSandbox(), err
}

func (s *recorder) Get(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	box := someSandbox()
	if s.status != nil {
		box.Status = s.status()
	}
	return box, s.note(ctx, "Get", ref)
}

func (s *recorder) List(ctx context.Context, p sandbox.ListParams) (*sandbox.Page[sandbox.Sandbox], error) {
	return &sandbox.Page[sandbox.Sandbox]{Items: []sandbox.Sandbox{*someSandbox()}, Next: "more"}, s.note(ctx, "List", p)
}

func (s *recorder) Update(ctx context.Context, ref string, p sandbox.UpdateParams) (*sandbox.Sandbox, error) {
	return someSandbox(), s.note(ctx, "Update", ref, p)
}

func (s *recorder) Extend(ctx context.Context, ref string, d sandbox.Duration) (*sandbox.Sandbox, error) {
	return someSandbox(), s.note(ctx, "Extend", ref, d)
}

func (s *recorder) Stop(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	return someSandbox(), s.note(ctx, "Stop", ref)
}

func (s *recorder) Pause(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	return someSandbox(), s.note(ctx, "Pause", ref)
}

func (s *recorder) Resume(ctx context.Context, ref string, p sandbox.ResumeParams) (*sandbox.Sandbox, error) {
	return someSandbox(), s.note(ctx, "Resume", ref, p)
}

func (s *recorder) DeleteWith(ctx context.Context, ref string, p sandbox.DeleteParams) error {
	return s.note(ctx, "DeleteWith", ref, p)
}

func (s *recorder) Stats(ctx context.Context, ref string) (*sandbox.Stats, error) {
	return &sandbox.Stats{MemoryBytes: 1 << 40, Processes: 3}, s.note(ctx, "Stats", ref)
}

func someFlow() sandbox.Flow {
	return sandbox.Flow{
		Seq: 7, Time: someTime, Protocol: "https", Name: "api.example.com", Address: "203.0.113.7:443", Port: 443,
		Method: "GET", Path: "/v1/<hé>", Status: 403, Verdict: sandbox.Denied, Rule: `allow "api.example.com" rule 1`, Reason: "The rule denies it.",
		Duration: sandbox.Duration(time.Second), IngressBytes: 1 << 40, EgressBytes: 3,
	}
}

func (s *recorder) Flows(ctx context.Context, ref string, p sandbox.FlowParams) (*sandbox.Page[sandbox.Flow], error) {
	return &sandbox.Page[sandbox.Flow]{Items: []sandbox.Flow{someFlow()}, Next: "7"}, s.note(ctx, "Flows", ref, p)
}

func (s *recorder) WatchFlows(ctx context.Context, ref string, p sandbox.FlowParams) (sandbox.FlowWatch, error) {
	if err := s.note(ctx, "WatchFlows", ref, p); err != nil {
		return nil, err
	}
	if s.flows != nil {
		return s.flows(ctx)
	}
	return &flowList{left: someFlows(), end: io.EOF}, nil
}

func (s *recorder) WatchSandboxes(ctx context.Context, p sandbox.ChangeParams) (sandbox.Changes, error) {
	if err := s.note(ctx, "WatchSandboxes", p); err != nil {
		return nil, err
	}
	return &changeList{left: someChanges()}, nil
}

func someChanges() []sandbox.Change {
	s := someSandbox()
	return []sandbox.Change{
		{Type: sandbox.Ready}, {Type: sandbox.Changed, ID: s.ID, Sandbox: s}, {Type: sandbox.Deleted, ID: "sbx_gone"}, {Type: sandbox.Missed},
	}
}

// changeList is a Changes of some changes.
type changeList struct{ left []sandbox.Change }

func (l *changeList) Next() (sandbox.Change, error) {
	if len(l.left) == 0 {
		return sandbox.Change{}, io.EOF
	}
	c := l.left[0]
	l.left = l.left[1:]
	return c, nil
}

func (l *changeList) Close() error { return nil }

func someFlows() []sandbox.Flow {
	open := someFlow()
	open.Open = true
	return []sandbox.Flow{open, someFlow()}
}

// flowList is a FlowWatch that returns the flows in left, and then end.
type flowList struct {
	left []sandbox.Flow
	end  error
}

func (w *flowList) Next() (sandbox.Flow, error) {
	if len(w.left) == 0 {
		return sandbox.Flow{}, w.end
	}
	f := w.left[0]
	w.left = w.left[1:]
	return f, nil
}

func (w *flowList) Close() error { return nil }

func someLink() *sandbox.Link {
	return &sandbox.Link{URL: "http://p.localhost:7070/?_cay_token=t", Token: "t", ExpiresAt: someTime}
}

func (s *recorder) CreateLink(ctx context.Context, ref string, port int, p sandbox.LinkParams) (*sandbox.Link, error) {
	return someLink(), s.note(ctx, "CreateLink", ref, port, p)
}

func (s *recorder) DialPort(ctx context.Context, ref string, port int) (net.Conn, error) {
	if err := s.note(ctx, "DialPort", ref, port); err != nil {
		return nil, err
	}
	if s.dial != nil {
		return s.dial(ctx)
	}
	return echo(ctx)
}

func someOutbound() sandbox.Outbound {
	return sandbox.Outbound{ID: "7", Protocol: "tls", Name: "api.example.com", Address: "203.0.113.7:443", Allowed: true}
}

func (s *recorder) HandleOutbound(ctx context.Context, ref string) (sandbox.OutboundWatch, error) {
	return &outboundList{left: []sandbox.Outbound{someOutbound()}}, s.note(ctx, "HandleOutbound", ref)
}

// outboundList is an OutboundWatch that returns the items in left.
type outboundList struct{ left []sandbox.Outbound }

func (w *outboundList) Next() (sandbox.Outbound, error) {
	if len(w.left) == 0 {
		return sandbox.Outbound{}, io.EOF
	}
	o := w.left[0]
	w.left = w.left[1:]
	return o, nil
}

func (w *outboundList) Close() error { return nil }

func (s *recorder) TakeOutbound(ctx context.Context, ref, id string, as sandbox.Handling) (net.Conn, error) {
	if err := s.note(ctx, "TakeOutbound", ref, id, as); err != nil {
		return nil, err
	}
	return echo(ctx)
}

func (s *recorder) DeclineOutbound(ctx context.Context, ref, id string, as sandbox.Handling) error {
	return s.note(ctx, "DeclineOutbound", ref, id, as)
}

func (s *recorder) Authority(ctx context.Context) ([]byte, error) {
	return []byte("a certificate"), s.note(ctx, "Authority")
}

// echo returns a connection whose other side sends back all bytes.
func echo(ctx context.Context) (net.Conn, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	inside, err := l.Accept() // before the listener is closed, which resets pending connections
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	go func() {
		defer inside.Close()
		io.Copy(inside, inside)
	}()
	return conn, nil
}

func (s *recorder) Start(ctx context.Context, ref string, p sandbox.CommandParams) (*sandbox.Command, error) {
	return someCommand(), s.note(ctx, "Start", ref, p)
}

func (s *recorder) Exec(ctx context.Context, ref string, p sandbox.CommandParams) (sandbox.Output, error) {
	if err := s.note(ctx, "Exec", ref, p); err != nil {
		return nil, err
	}
	if s.output != nil {
		return s.output(ctx)
	}
	return newEvents(ctx, someEvents()...), nil
}

func (s *recorder) GetCommand(ctx context.Context, ref, id string) (*sandbox.Command, error) {
	c := someCommand()
	c.PTY = s.pty
	return c, s.note(ctx, "GetCommand", ref, id)
}

func (s *recorder) WatchStats(ctx context.Context, ref string) (sandbox.StatsWatch, error) {
	return &some[sandbox.Stats]{left: someReadings()}, s.note(ctx, "WatchStats", ref)
}

func (s *recorder) WatchCommands(ctx context.Context, ref string) (sandbox.CommandWatch, error) {
	return &some[sandbox.CommandChange]{left: someCommandChanges()}, s.note(ctx, "WatchCommands", ref)
}

func someReadings() []sandbox.Stats {
	return []sandbox.Stats{{MemoryBytes: 1 << 40, Processes: 3}, {MemoryLimit: 1}}
}

func someCommandChanges() []sandbox.CommandChange {
	return []sandbox.CommandChange{{Type: sandbox.Changed, Command: someCommand()}, {Type: sandbox.Ready}, {Type: sandbox.Changed, Command: exited()}}
}

// some is a stream that returns the items in left.
type some[T any] struct{ left []T }

func (s *some[T]) Next() (T, error) {
	if len(s.left) == 0 {
		return *new(T), io.EOF
	}
	v := s.left[0]
	s.left = s.left[1:]
	return v, nil
}

func (*some[T]) Close() error { return nil }

func (s *recorder) ListCommands(ctx context.Context, ref string) ([]sandbox.Command, error) {
	return []sandbox.Command{*someCommand(), *exited()}, s.note(ctx, "ListCommands", ref)
}

func (s *recorder) Wait(ctx context.Context, ref, id string) (*sandbox.Command, error) {
	if err := s.note(ctx, "Wait", ref, id); err != nil {
		return nil, err
	}
	if s.wait != nil {
		if err := s.wait(ctx); err != nil {
			return nil, err
		}
	}
	return exited(), nil
}

func (s *recorder) Signal(ctx context.Context, ref, id string, sig sandbox.Signal) error {
	return s.note(ctx, "Signal", ref, id, sig)
}

func (s *recorder) Output(ctx context.Context, ref, id string, p sandbox.OutputParams) (sandbox.Output, error) {
	if err := s.note(ctx, "Output", ref, id, p); err != nil {
		return nil, err
	}
	if s.output != nil {
		return s.output(ctx)
	}
	return newEvents(ctx, someEvents()[1:]...), nil
}

func (s *recorder) WriteStdin(ctx context.Context, ref, id string, r io.Reader, closeAfter bool) error {
	if s.write != nil {
		return s.write(ctx, r)
	}
	if s.err != nil {
		return s.note(ctx, "WriteStdin")
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return s.note(ctx, "WriteStdin", ref, id, string(b), closeAfter)
}

func (s *recorder) Resize(ctx context.Context, ref, id string, size sandbox.WindowSize) error {
	return s.note(ctx, "Resize", ref, id, size)
}

func (s *recorder) Stat(ctx context.Context, ref, path string, follow bool) (*sandbox.FileInfo, error) {
	return someFile(10), s.note(ctx, "Stat", ref, path, follow)
}

func (s *recorder) ReadDir(ctx context.Context, ref, path string, p sandbox.ReadDirParams) (*sandbox.Page[sandbox.FileInfo], error) {
	return &sandbox.Page[sandbox.FileInfo]{Items: []sandbox.FileInfo{*someFile(1)}, Next: "n"}, s.note(ctx, "ReadDir", ref, path, p)
}

func (s *recorder) Glob(ctx context.Context, ref, pattern string) ([]string, error) {
	return []string{"/a", "/b\xff"}, s.note(ctx, "Glob", ref, pattern)
}

func (s *recorder) ReadFile(ctx context.Context, ref, path string, p sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error) {
	if err := s.note(ctx, "ReadFile", ref, path, p); err != nil {
		return nil, nil, err
	}
	if s.read != nil {
		return s.read(p)
	}
	return io.NopCloser(&io.LimitedReader{R: zeroReader{}, N: 10}), someFile(10), nil
}

func (s *recorder) WriteFile(ctx context.Context, ref, path string, r io.Reader, p sandbox.WriteParams) (*sandbox.FileInfo, error) {
	if s.write != nil {
		return someFile(0), s.write(ctx, r)
	}
	if s.err != nil {
		return nil, s.note(ctx, "WriteFile")
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return someFile(int64(len(b))), s.note(ctx, "WriteFile", ref, path, string(b), p)
}

func (s *recorder) Mkdir(ctx context.Context, ref, path string, p sandbox.MkdirParams) error {
	return s.note(ctx, "Mkdir", ref, path, p)
}

func (s *recorder) Rename(ctx context.Context, ref, from, to string) error {
	return s.note(ctx, "Rename", ref, from, to)
}

func (s *recorder) Copy(ctx context.Context, ref, from, to string) error {
	return s.note(ctx, "Copy", ref, from, to)
}

func (s *recorder) Remove(ctx context.Context, ref, path string, recursive bool) error {
	return s.note(ctx, "Remove", ref, path, recursive)
}

func (s *recorder) Symlink(ctx context.Context, ref, target, path string) error {
	return s.note(ctx, "Symlink", ref, target, path)
}

func (s *recorder) Chmod(ctx context.Context, ref, path string, mode uint32) error {
	return s.note(ctx, "Chmod", ref, path, mode)
}

func (s *recorder) Extract(ctx context.Context, ref, dir string, r io.Reader, p sandbox.ExtractParams) error {
	if s.err != nil {
		return s.note(ctx, "Extract")
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return s.note(ctx, "Extract", ref, dir, string(b), p)
}

func (s *recorder) Archive(ctx context.Context, ref, path string, format sandbox.ArchiveFormat) (io.ReadCloser, error) {
	if err := s.note(ctx, "Archive", ref, path, format); err != nil {
		return nil, err
	}
	return io.NopCloser(&io.LimitedReader{R: zeroReader{}, N: 1024}), nil
}

func (s *recorder) Watch(ctx context.Context, ref, path string, p sandbox.WatchParams) (sandbox.Watch, error) {
	if err := s.note(ctx, "Watch", ref, path, p); err != nil {
		return nil, err
	}
	if s.watch != nil {
		return s.watch(ctx)
	}
	return newFixedStream(ctx, nil, sandbox.FileEvent{Op: sandbox.OpCreate, Path: "/a"}, sandbox.FileEvent{Op: sandbox.OpRename, Path: "/b", From: "/a"}), nil
}

// zeroReader reads as endless zero bytes.
type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// fixedStream is a stream of fixed values, then end (io.EOF if nil). With hang set, it
// blocks after the values until it is closed or canceled.
type fixedStream[T any] struct {
	ctx    context.Context
	values []T
	end    error
	hang   bool
	closed chan struct{}
	once   sync.Once
}

func newFixedStream[T any](ctx context.Context, end error, values ...T) *fixedStream[T] {
	if end == nil {
		end = io.EOF
	}
	return &fixedStream[T]{ctx: ctx, values: values, end: end, closed: make(chan struct{})}
}

func newEvents(ctx context.Context, events ...sandbox.Event) *fixedStream[sandbox.Event] {
	return newFixedStream(ctx, nil, events...)
}

func (s *fixedStream[T]) Next() (T, error) {
	var zero T
	if len(s.values) > 0 {
		v := s.values[0]
		s.values = s.values[1:]
		return v, nil
	}
	if !s.hang {
		return zero, s.end
	}
	select {
	case <-s.closed:
		return zero, fmt.Errorf("closed")
	case <-s.ctx.Done():
		return zero, s.ctx.Err()
	}
}

func (s *fixedStream[T]) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func someEvents() []sandbox.Event {
	return []sandbox.Event{
		{Command: someCommand()},
		{Truncated: true, Cursor: 3},
		{Stream: sandbox.Stdout, Cursor: 3, Data: []byte("hé <b>\n")},
		{Stream: sandbox.Stderr, Cursor: 11, Data: []byte("\xff\x00")},
		{Exit: exited().Exit},
	}
}

// wireTokens knows two tokens: "user" of team_a and "admin".
type wireTokens struct{}

func (wireTokens) Authenticate(_ context.Context, secret string) (api.Principal, error) {
	switch secret {
	case "user":
		return api.Principal{TokenID: "tok_user", TeamID: "team_a", ProjectID: "prj_a"}, nil
	case "admin":
		return api.Principal{TokenID: "tok_admin", TeamID: "team_default", Admin: true}, nil
	}
	return api.Principal{}, cay.Errorf(cay.Unauthenticated, "the token is not valid")
}

// dialRecorder serves a recorder and returns a client of it.
func dialRecorder(t testing.TB) (*sandbox.Client, *recorder, *httptest.Server) {
	t.Helper()
	rec := &recorder{}
	mux := api.NewMux(wireTokens{})
	route.Mount(mux, rec, t.Context())
	mux.ServeOpenAPI("test")
	srv := apitest.Serve(t, mux)
	return dialWire(t, srv.URL, nil), rec, srv
}

// dialWire returns a client of the server at url with the admin token. Requests
// go through wrap, if it is not nil.
func dialWire(t testing.TB, url string, wrap func(http.RoundTripper) http.RoundTripper) *sandbox.Client {
	t.Helper()
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	hc := &http.Client{Transport: tr}
	if wrap != nil {
		hc.Transport = wrap(tr)
	}
	return sandbox.NewClient(sandbox.ClientOptions{URL: url, Token: "admin", HTTPClient: hc})
}
