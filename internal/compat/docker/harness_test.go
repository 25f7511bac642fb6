package docker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/route"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// callers takes the token of sandboxtest's default team.
type callers struct{}

func (callers) Authenticate(_ context.Context, secret string) (api.Principal, error) {
	for _, p := range []api.Principal{sandboxtest.Default, sandboxtest.ProjectA} {
		if p.TokenID == secret {
			return p, nil
		}
	}
	return api.Principal{}, cay.Errorf(cay.Unauthenticated, "the token is not valid")
}

// pictures are the images of the tests: each but "missing" is there.
type pictures struct{}

func picture(ref string) sandbox.Image {
	return sandbox.Image{Digest: "sha256:" + strings.Repeat("ab", 32), Refs: []string{ref}, Source: "import", Arch: "amd64",
		Config: sandbox.ImageConfig{Cmd: []string{"sh", "-c", "echo from the image"}, Labels: map[string]string{"made": "here"}, ExposedPorts: []string{"80/tcp"}}}
}

func (pictures) List(context.Context) ([]sandbox.Image, error) {
	return []sandbox.Image{picture("debian"), picture("docker.io/library/alpine:3.22")}, nil
}

func (pictures) Get(_ context.Context, ref string) (*sandbox.Image, error) {
	if strings.HasPrefix(ref, "missing") {
		return nil, cay.Errorf(cay.NotFound, "image %q not found", ref)
	}
	img := picture(ref)
	return &img, nil
}

func (p pictures) Pull(ctx context.Context, ref string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	if ref == "imported:1" {
		return nil, cay.Errorf(cay.Unavailable, "the registry is away")
	}
	progress(sandbox.ImageProgress{Phase: "download", Item: "sha256:0123456789abcdef", Current: 1 << 20, Total: 2 << 20})
	return p.Get(ctx, ref)
}

// Tag takes the digest of a picture, and the name "app:2".
func (pictures) Tag(_ context.Context, ref, name string) (*sandbox.Image, error) {
	img := picture(name)
	if ref != img.Digest || name != "app:2" {
		return nil, cay.Errorf(cay.Invalid, "%s as %q", ref, name)
	}
	return &img, nil
}

// Import takes archives that hold "layer".
func (pictures) Import(_ context.Context, ref string, r io.Reader, _ func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	b, err := io.ReadAll(r)
	if err != nil || !bytes.Contains(b, []byte("layer")) {
		return nil, cay.Errorf(cay.Invalid, "%s: %d bytes, %v", ref, len(b), err)
	}
	img := picture(ref)
	return &img, nil
}

// Export answers with the references.
func (pictures) Export(_ context.Context, refs []string) (io.ReadCloser, error) {
	if slices.Contains(refs, "broken:1") {
		return nil, cay.Errorf(cay.NoSpace, "the disk is full")
	}
	return io.NopCloser(strings.NewReader(strings.Join(refs, " "))), nil
}

// Push takes "alpine", with the credentials as the digest.
func (p pictures) Push(ctx context.Context, push sandbox.ImagePushParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	if !strings.Contains(push.Ref, "alpine") {
		return nil, cay.Errorf(cay.PermissionDenied, "the registry does not take %s", push.Ref)
	}
	progress(sandbox.ImageProgress{Phase: "upload", Item: "sha256:0123456789abcdef", Current: 1 << 20, Total: 2 << 20})
	progress(sandbox.ImageProgress{Phase: "pushed", Item: fmt.Sprintf("%+v", push.Auth), Total: 7})
	return p.Get(ctx, push.Ref)
}

// FromSnapshot makes "app:2" of any snapshot.
func (pictures) FromSnapshot(_ context.Context, p sandbox.ImageSnapshotParams, _ func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	if p.Ref != "app:2" || !strings.HasPrefix(p.Snapshot, "snap_") || len(p.Cmd) == 0 {
		return nil, cay.Errorf(cay.Invalid, "%+v", p)
	}
	img := picture(p.Ref)
	return &img, nil
}

func (pictures) Remove(context.Context, string) error { return nil }

// trusted has guests trust nothing.
type trusted struct{}

func (trusted) Certificates(sandbox.Network) []byte { return nil }

func (trusted) Public() []byte { return nil }

func (trusted) Authority() []byte { return []byte("-----BEGIN CERTIFICATE-----\n") }

// bed is a socket over a daemon with a fake runtime.
type bed struct {
	t      *testing.T
	daemon string // URL
	path   string // of the socket
	fake   *fake.Runtime
	server *Server
	end    func() // of the server
	http   *http.Client
}

func newBed(t *testing.T) *bed {
	t.Helper()
	h, rt := sandboxtest.StartFake(t, func(cfg *sandboxd.Config) { cfg.Trust = trusted{} })
	mux := api.NewMux(callers{})
	route.Mount(mux, h.Engine, context.Background())
	daemon := httptest.NewServer(api.NewServer(mux, nil, slog.New(slog.DiscardHandler)).Handler)
	t.Cleanup(daemon.Close)
	dir := checktest.Must(os.MkdirTemp("", "cay"))(t) // the test's own is too long for a socket
	t.Cleanup(func() { os.RemoveAll(dir) })
	b := &bed{t: t, fake: rt, daemon: daemon.URL, path: filepath.Join(dir, "d.sock")}
	b.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", b.path)
	}}}
	t.Cleanup(b.http.CloseIdleConnections)
	b.serve(sandboxtest.Default.TokenID)
	return b
}

// serve starts a server, in the place of the one before it, if there is one.
func (b *bed) serve(token string) {
	b.t.Helper()
	if b.end != nil {
		b.end()
	}
	client := sandbox.NewClient(sandbox.ClientOptions{URL: b.daemon, Token: token})
	b.server = New(Config{Sandboxes: client, Images: pictures{}, Version: "test", Build: showContext, Logger: slog.New(slog.NewTextHandler(b.t.Output(), nil))})
	b.server.every = time.Hour // tests say when it sweeps
	l, err := Listen(b.t.Context(), b.path)
	if err != nil {
		b.t.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	go func() { ended <- b.server.Serve(ctx, l) }()
	over := false
	b.end = func() {
		if over {
			return
		}
		over = true
		cancel()
		if err := <-ended; err != nil {
			b.t.Error(err)
		}
		b.http.CloseIdleConnections()
	}
	b.t.Cleanup(b.end)
}

// answer is what came of a request.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	body   []byte
}

// want fails the test if the status is another one.
func (a answer) want(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

// at returns what is at a path of the answer, as text: "State.Running".
func (a answer) at(path string) string {
	var v any
	if err := json.Unmarshal(a.body, &v); err != nil {
		a.t.Fatalf("%v: %s", err, a.body)
	}
	for key := range strings.SplitSeq(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			v = in[key]
		case []any:
			var i int
			if _, err := fmt.Sscan(key, &i); err != nil || i >= len(in) {
				return ""
			}
			v = in[i]
		default:
			return ""
		}
	}
	return fmt.Sprint(v)
}

// do sends a request. body is JSON unless it is bytes.
func (b *bed) do(method, path string, body any) answer {
	b.t.Helper()
	var r io.Reader
	switch v := body.(type) {
	case nil:
	case []byte:
		r = bytes.NewReader(v)
	default:
		text, err := json.Marshal(v)
		if err != nil {
			b.t.Fatal(err)
		}
		r = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(b.t.Context(), method, "http://localhost"+path, r)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := b.http.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer{b.t, resp.StatusCode, resp.Header, text}
}

type m = map[string]any

// create makes a container that runs a script, and returns its id. more adds to the request.
func (b *bed) create(name, script string, more m) string {
	b.t.Helper()
	body := m{"Image": "debian", "Cmd": []string{"sh", "-c", script}}
	for k, v := range more {
		body[k] = v
	}
	return b.do("POST", "/v1.41/containers/create?name="+name, body).want(201).at("Id")
}

func (b *bed) start(id string) { b.t.Helper(); b.do("POST", "/containers/"+id+"/start", nil).want(204) }

// wait waits for the exit and returns the code.
func (b *bed) wait(id string) string {
	b.t.Helper()
	return b.do("POST", "/containers/"+id+"/wait", nil).want(200).at("StatusCode")
}

// stream is a connection that was taken over.
type stream struct {
	t    *testing.T
	conn *net.UnixConn
	r    *bufio.Reader
	head string
}

// upgrade sends a request that takes over its connection.
func (b *bed) upgrade(path, body string) *stream {
	b.t.Helper()
	c, err := net.Dial("unix", b.path)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	s := &stream{t: b.t, conn: c.(*net.UnixConn), r: bufio.NewReader(c)}
	for {
		line, err := s.r.ReadString('\n')
		if err != nil {
			b.t.Fatalf("%v after %q", err, s.head)
		}
		if strings.TrimSpace(line) == "" {
			return s
		}
		s.head += line
	}
}

// rest reads to the end.
func (s *stream) rest() []byte {
	s.t.Helper()
	b, err := io.ReadAll(s.r)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// object reads to the end of a JSON object, over the lengths of chunks.
func (s *stream) object() string {
	s.t.Helper()
	text, err := s.r.ReadString('}')
	if err != nil {
		s.t.Fatal(err)
	}
	return text[max(0, strings.IndexByte(text, '{')):]
}

// frames takes frames apart, by stream: 1 and 2.
func frames(t *testing.T, b []byte) map[byte]string {
	t.Helper()
	out := map[byte]string{}
	for len(b) > 0 {
		if len(b) < 8 || b[1]|b[2]|b[3] != 0 {
			t.Fatalf("%q does not begin with a frame", b)
		}
		n := int(b[4])<<24 | int(b[5])<<16 | int(b[6])<<8 | int(b[7])
		if len(b) < 8+n {
			t.Fatalf("a frame of %d bytes is cut off", n)
		}
		out[b[0]] += string(b[8 : 8+n])
		b = b[8+n:]
	}
	return out
}
