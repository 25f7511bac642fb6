package sandboxd_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/gittest"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// repoURL serves a repository, with user and password if they are not empty.
func repoURL(t *testing.T, user, password string) (*gittest.Repo, string) {
	t.Helper()
	repo := gittest.New(t)
	s := httptest.NewServer(repo.Handler(user, password))
	t.Cleanup(s.Close)
	return repo, s.URL + "/repo.git"
}

// content reads a file of a sandbox.
func content(t *testing.T, h *sandboxtest.Harness, ref, path string) string {
	t.Helper()
	r, _, err := h.ReadFile(defaultCaller(t), ref, path, sandbox.ReadParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data := make([]byte, 100)
	n, _ := r.Read(data)
	return string(data[:n])
}

func TestSource(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t)
	ctx := defaultCaller(t)
	_, url := repoURL(t, "user", "p4ssword")
	src := &sandbox.Source{Type: sandbox.GitSource, URL: url, Username: "user", Password: "p4ssword", Revision: "feature"}
	s, err := h.Create(ctx, sandbox.CreateParams{Name: "cloned", Source: src, IdempotencyKey: "key"})
	if err != nil {
		t.Fatal(err)
	}
	if got := content(t, h, s.ID, "file.txt"); got != "branched" {
		t.Errorf("file.txt is %q", got)
	}
	// The next session has the source like any other file; it is fetched only once.
	if _, err := h.Stop(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if got := content(t, h, s.ID, "file.txt"); got != "branched" {
		t.Errorf("file.txt of the next session is %q", got)
	}
	if again, err := h.Create(ctx, sandbox.CreateParams{Name: "cloned", Source: src, IdempotencyKey: "key"}); err != nil || again.ID != s.ID {
		t.Errorf("the same request again: %+v, %v", again, err)
	}
}

// A sandbox whose source cannot be fetched leaves no trace.
func TestSource_fails(t *testing.T) {
	t.Parallel()
	_, url := repoURL(t, "user", "p4ssword")
	signed := httptest.NewServer(http.RedirectHandler("http://127.0.0.1:1/y.tar?sig=p4ssword", http.StatusFound))
	t.Cleanup(signed.Close)
	elsewhere := signed.URL
	for name, tt := range map[string]struct {
		src  sandbox.Source
		code cay.Code
		says string
	}{
		"Password":    {sandbox.Source{URL: url, Username: "user", Password: "wr0ng"}, cay.Invalid, "Authentication failed"},
		"InURL":       {sandbox.Source{URL: strings.Replace(url, "://", "://user:wr0ng@", 1)}, cay.Invalid, "Authentication failed"},
		"Revision":    {sandbox.Source{URL: url, Username: "user", Password: "p4ssword", Revision: "wr0ng"}, cay.Invalid, `no branch`},
		"Echo":        {sandbox.Source{URL: url, Username: "user", Password: "p4ssword", Revision: strings.Repeat("1", 40)}, cay.Invalid, "git fetch failed"},
		"Unreachable": {sandbox.Source{URL: "http://127.0.0.1:1/wr0ng.git"}, cay.SourceUnavailable, "git ls-remote failed"},
		"Query":       {sandbox.Source{URL: "http://127.0.0.1:1/wr0ng.git?token=p4ssword"}, cay.SourceUnavailable, "git ls-remote failed"},
		"Signed":      {sandbox.Source{Type: sandbox.TarballSource, URL: "http://127.0.0.1:1/x.tar?sig=p4ssword"}, cay.SourceUnavailable, "http://127.0.0.1:1/x.tar: "},
		"Redirected":  {sandbox.Source{Type: sandbox.TarballSource, URL: elsewhere}, cay.SourceUnavailable, "http://127.0.0.1:1/y.tar: "},
		"Tarball":     {sandbox.Source{Type: sandbox.TarballSource, URL: url + "/wr0ng"}, cay.Invalid, "status 401"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, rt := startFake(t)
			ctx := defaultCaller(t)
			if tt.src.Type == "" {
				tt.src.Type = sandbox.GitSource
			}
			p := sandbox.CreateParams{Name: "failing", Source: &tt.src, IdempotencyKey: "key"}
			for range 2 { // the name and the key are free again
				_, err := h.Create(ctx, p)
				if cay.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.says) {
					t.Fatalf("got %v (%s)", err, cay.CodeOf(err))
				}
				if strings.Contains(err.Error(), "p4ssword") || tt.src.Password == "wr0ng" && strings.Contains(err.Error(), "wr0ng") {
					t.Errorf("it tells the password: %v", err)
				}
			}
			if _, err := h.Get(ctx, "failing"); cay.CodeOf(err) != cay.NotFound {
				t.Errorf("it is still there: %v", err)
			}
			if left, err := rt.List(ctx); err != nil || len(left) != 0 {
				t.Errorf("machines are left: %v, %v", left, err)
			}
		})
	}
}

func TestSource_invalid(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t)
	const url = "https://git.example.com/repo.git"
	for name, src := range map[string]sandbox.Source{
		"type":      {Type: "svn", URL: url},
		"scheme":    {Type: "git", URL: "ssh://git@git.example.com/repo"},
		"file":      {Type: "git", URL: "file:///etc"},
		"scp":       {Type: "git", URL: "git@git.example.com:repo"},
		"option":    {Type: "git", URL: "--upload-pack=x"},
		"empty":     {Type: "tarball"},
		"long":      {Type: "tarball", URL: url + strings.Repeat("x", 5000)},
		"dir":       {Type: "git", URL: url, Dir: "a/../../b"},
		"depth":     {Type: "git", URL: url, Depth: -1},
		"revision":  {Type: "git", URL: url, Revision: "--option"},
		"refspec":   {Type: "git", URL: url, Revision: "a:b"},
		"newline":   {Type: "git", URL: url, Username: "a", Password: "b\nurl=x"},
		"password":  {Type: "git", URL: url, Password: "b"},
		"two users": {Type: "git", URL: strings.Replace(url, "://", "://a@", 1), Username: "a"},
		"tarball":   {Type: "tarball", URL: url, Revision: "main"},
	} {
		if _, err := h.Create(defaultCaller(t), sandbox.CreateParams{Source: &src}); cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), "source.") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSource_pool(t *testing.T) {
	t.Parallel()
	p := fullPool(t, 1)
	_, url := repoURL(t, "", "")
	s := p.create(sandbox.CreateParams{Source: &sandbox.Source{Type: sandbox.GitSource, URL: url, Depth: 1}})
	if got := content(t, p.Harness, s.ID, "file.txt"); got != "three" {
		t.Errorf("file.txt is %q", got)
	}
	if pools, err := p.Pools(p.ctx); err == nil && pools[0].Claims != 1 {
		t.Errorf("it was not of the pool: %+v", pools)
	}
}

// A server that never answers does not block a creation for ever, and a sandbox can be
// stopped before its source is fetched.
func TestSource_slow(t *testing.T) {
	t.Parallel()
	// slow returns a source on a server that signals a request, and never answers.
	slow := func(t *testing.T) (p sandbox.CreateParams, asked chan struct{}) {
		asked = make(chan struct{}, 1)
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			asked <- struct{}{}
			<-r.Context().Done()
		}))
		t.Cleanup(s.Close)
		return sandbox.CreateParams{Name: "slow", Source: &sandbox.Source{Type: sandbox.TarballSource, URL: s.URL}}, asked
	}
	// begin starts a creation, and returns once the server has the request. The channel
	// gets the result of the creation.
	begin := func(t *testing.T, ctx context.Context, h *sandboxtest.Harness) chan error {
		p, asked := slow(t)
		done := make(chan error, 1)
		go func() { _, err := h.Create(ctx, p); done <- err }()
		select {
		case <-asked:
		case err := <-done:
			t.Fatalf("created before its source was there: %v", err)
		}
		return done
	}
	t.Run("Timeout", func(t *testing.T) {
		p, _ := slow(t) // the server may not get the request in time
		h, _ := startFake(t, func(c *sandboxd.Config) { c.Limits.SourceTimeout = 200 * time.Millisecond })
		if _, err := h.Create(defaultCaller(t), p); cay.CodeOf(err) != cay.SourceUnavailable || !strings.Contains(err.Error(), "within 200ms") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("Stop", func(t *testing.T) {
		h, _ := startFake(t)
		ctx := defaultCaller(t)
		done := begin(t, ctx, h)
		if _, err := h.Exec(ctx, "slow", sandbox.CommandParams{Argv: []string{"true"}}); cay.CodeOf(err) != cay.Conflict {
			t.Errorf("a command before it has its source: %v", err)
		}
		if got, err := h.Stop(ctx, "slow"); err != nil || got.Status != sandbox.Stopped {
			t.Errorf("got %+v, %v", got, err)
		}
		if err := <-done; cay.CodeOf(err) != cay.Stopped {
			t.Errorf("create: %v", err)
		}
	})
	t.Run("CallerLeaves", func(t *testing.T) {
		h, rt := startFake(t)
		ctx, cancel := context.WithCancel(defaultCaller(t))
		done := begin(t, ctx, h)
		cancel()
		if err := <-done; cay.CodeOf(err) != cay.Canceled || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("create: %v", err)
		}
		if left, err := rt.List(t.Context()); err != nil || len(left) != 0 {
			t.Errorf("machines are left: %v, %v", left, err)
		}
	})
	// The source is not persisted: the sandbox cannot be resumed without it.
	t.Run("Resume", func(t *testing.T) {
		h, _ := startFake(t)
		ctx := defaultCaller(t)
		done := begin(t, ctx, h)
		if _, err := h.Stop(ctx, "slow"); err != nil {
			t.Error(err)
		}
		<-done
		for _, anew := range []bool{false, true} {
			if _, err := h.Resume(ctx, "slow", sandbox.ResumeParams{Fresh: anew}); cay.CodeOf(err) != cay.Conflict && (anew || cay.CodeOf(err) != cay.Stopped) {
				t.Errorf("anew %v: %v", anew, err)
			}
		}
	})
}

// Once its source is in place, a sandbox is like any other.
func TestSource_resume(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t)
	ctx := defaultCaller(t)
	_, url := repoURL(t, "", "")
	s, err := h.Create(ctx, sandbox.CreateParams{Persistent: new(true), Source: &sandbox.Source{Type: sandbox.GitSource, URL: url, Depth: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Stop(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Resume(ctx, s.ID, sandbox.ResumeParams{}); err != nil {
		t.Fatal(err)
	}
	if got := content(t, h, s.ID, "file.txt"); got != "three" {
		t.Errorf("file.txt is %q", got)
	}
}
