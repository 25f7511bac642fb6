package agent_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/gittest"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/guest/agent"
	"github.com/cayhq/cay/sandbox"
)

// filled is the result of fetching a source in a guest.
type filled struct {
	t    *testing.T
	c    *guest.Client
	root string // the machine's
	dir  string // the directory that the guest filled
	err  error
}

// fill makes a new guest, whose working directory /work has a file, fetch src.
func fill(t *testing.T, src sandbox.Source) *filled {
	t.Helper()
	f := &filled{t: t, root: t.TempDir()}
	f.c, _ = serve(t, func(c *agent.Config) { c.Root, c.WorkDir = f.root, "/work" })
	f.dir = filepath.Join(f.root, "work")
	if err := os.Mkdir(f.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".profile", "file.txt"} {
		if err := os.WriteFile(filepath.Join(f.dir, name), []byte("the image's"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.err = f.c.FetchSource(t.Context(), guest.SourceRequest{Source: src, Env: map[string]string{"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}})
	return f
}

func (f *filled) file(name string) string {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(data)
}

func (f *filled) git(args ...string) string {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), "git", args...)
	cmd.Dir = f.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		f.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func web(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func TestSource_git(t *testing.T) {
	t.Parallel()
	repo := gittest.New(t)
	smart, dumb := web(t, repo.Handler("", ""))+"/repo.git", web(t, repo.Dumb())+"/repo.git"
	for _, tt := range []struct {
		name     string
		revision string
		depth    int
		noDumb   bool
		content  string
		head     string // the branch; empty: no branch
		commits  string // in the history of HEAD
		branches int
	}{
		{name: "Default", content: "three", head: "main", commits: "3", branches: 2},
		{name: "Branch", revision: "feature", content: "branched", head: "feature", commits: "2", branches: 2},
		{name: "Tag", revision: "v1", content: "two", commits: "2", branches: 2},
		{name: "Commit", revision: repo.One, content: "one", commits: "1", branches: 2},
		{name: "Ref", revision: "refs/pull/1/head", content: "hidden", commits: "3", branches: 2},
		{name: "HiddenCommit", revision: repo.Hidden, content: "hidden", commits: "3", branches: 2},
		{name: "Shallow", depth: 1, content: "three", head: "main", commits: "1", branches: 1, noDumb: true},
		{name: "ShallowBranch", revision: "feature", depth: 1, content: "branched", head: "feature", commits: "1", branches: 1, noDumb: true},
		{name: "ShallowTag", revision: "v1", depth: 1, content: "two", commits: "1", noDumb: true},
		{name: "ShallowCommit", revision: repo.Two, depth: 2, content: "two", commits: "2", noDumb: true},
	} {
		check := func(t *testing.T, f *filled, url string) {
			if f.err != nil {
				t.Fatal(f.err)
			}
			if got := f.file("file.txt"); got != tt.content {
				t.Errorf("file.txt is %q", got)
			}
			if got := f.file(".profile"); got != "the image's" {
				t.Errorf(".profile is %q", got)
			}
			head, err := exec.CommandContext(t.Context(), "git", "-C", f.dir, "symbolic-ref", "--short", "HEAD").Output()
			if got := strings.TrimSpace(string(head)); got != tt.head {
				t.Errorf("on branch %q, %v", got, err)
			}
			if tt.head != "" {
				if got := f.git("rev-parse", "--abbrev-ref", "@{upstream}"); got != "origin/"+tt.head {
					t.Errorf("upstream is %q", got)
				}
			}
			if got := f.git("rev-list", "--count", "HEAD"); got != tt.commits {
				t.Errorf("%s commits", got)
			}
			if got := len(strings.Fields(f.git("for-each-ref", "refs/remotes/origin"))) / 3; got != tt.branches {
				t.Errorf("%d branches of origin", got)
			}
			if got := f.git("status", "--porcelain"); got != "?? .profile" {
				t.Errorf("status is %q", got)
			}
			if got := f.git("config", "remote.origin.url"); got != url {
				t.Errorf("origin is %q", got)
			}
			if cmds, err := f.c.ListCommands(t.Context()); err != nil || len(cmds) != 0 {
				t.Errorf("it shows as commands: %+v, %v", cmds, err)
			}
		}
		src := sandbox.Source{Type: sandbox.GitSource, URL: smart, Depth: tt.depth, Revision: tt.revision}
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			check(t, fill(t, src), smart)
		})
		t.Run(tt.name+"/Dumb", func(t *testing.T) {
			t.Parallel()
			src := src
			src.URL = dumb
			f := fill(t, src)
			if tt.noDumb {
				if code := cay.CodeOf(f.err); code != cay.Invalid && code != cay.Unavailable {
					t.Fatalf("got %v", f.err)
				}
				return
			}
			check(t, f, dumb)
		})
	}
	t.Run("Dir", func(t *testing.T) {
		t.Parallel()
		f := fill(t, sandbox.Source{Type: sandbox.GitSource, URL: smart, Dir: "a/b"})
		if f.err != nil || f.file("a/b/file.txt") != "three" || f.file("file.txt") != "the image's" {
			t.Errorf("got %v", f.err)
		}
	})
	t.Run("Twice", func(t *testing.T) {
		t.Parallel()
		f := fill(t, sandbox.Source{Type: sandbox.GitSource, URL: smart})
		err := f.c.FetchSource(t.Context(), guest.SourceRequest{Source: sandbox.Source{Type: sandbox.GitSource, URL: smart}})
		if f.err != nil || cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), "already") {
			t.Errorf("got %v, then %v", f.err, err)
		}
	})
	for name, src := range map[string]sandbox.Source{
		"no such revision": {Revision: "nothing"},
		"part of an id":    {Revision: repo.One[:10]},
		"no such id":       {Revision: strings.Repeat("ab", 20)},
		"no repository":    {URL: strings.TrimSuffix(smart, "repo.git") + "other.git"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src.Type = sandbox.GitSource
			if src.URL == "" {
				src.URL = smart
			}
			if f := fill(t, src); cay.CodeOf(f.err) != cay.Invalid {
				t.Errorf("got %v", f.err)
			} else {
				t.Log(f.err)
			}
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		t.Parallel()
		if f := fill(t, sandbox.Source{Type: sandbox.GitSource, URL: "http://127.0.0.1:1/x.git"}); cay.CodeOf(f.err) != cay.Unavailable {
			t.Errorf("got %v", f.err)
		}
	})
	t.Run("no git", func(t *testing.T) {
		t.Parallel()
		c, _ := serve(t, nil)
		err := c.FetchSource(t.Context(), guest.SourceRequest{Source: sandbox.Source{Type: sandbox.GitSource, URL: smart}, Env: map[string]string{"PATH": t.TempDir()}})
		if cay.CodeOf(err) != cay.ExecutableMissing {
			t.Errorf("got %v", err)
		}
	})
}

// A password is sent to the source's server only, and is stored nowhere.
func TestSource_password(t *testing.T) {
	t.Parallel()
	const password = "pass w0rd%'\"$&"
	repo := gittest.New(t)
	url := web(t, repo.Handler("user", password)) + "/repo.git"
	src := sandbox.Source{Type: sandbox.GitSource, URL: url, Username: "user", Password: password}
	inURL := src
	inURL.URL, inURL.Username, inURL.Password = strings.Replace(url, "http://", "http://user:pass%20w0rd%25%27%22%24%26@", 1), "", ""
	for name, src := range map[string]sandbox.Source{"Given": src, "InURL": inURL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fill(t, src)
			if f.err != nil || f.file("file.txt") != "three" {
				t.Fatalf("got %v", f.err)
			}
			if got := f.git("config", "remote.origin.url"); got != url {
				t.Errorf("origin is %q", got)
			}
			out, err := exec.CommandContext(t.Context(), "grep", "-rlE", "w0rd|dXNlcjp", f.root).CombinedOutput()
			if err == nil {
				t.Errorf("the password is in %s", out)
			}
		})
	}
	src.Password = "wrong"
	if f := fill(t, src); cay.CodeOf(f.err) != cay.Invalid || !strings.Contains(f.err.Error(), "Authentication failed") {
		t.Errorf("a wrong password: %v", f.err)
	}
	src.Username, src.Password = "", ""
	if f := fill(t, src); cay.CodeOf(f.err) != cay.Invalid {
		t.Errorf("none: %v", f.err)
	}
	// If the server redirects git to another server, that server does not get the
	// password.
	src.Username, src.Password = "user", password
	got := make(chan string, 100)
	thief := web(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	src.URL = web(t, http.RedirectHandler(thief+"/repo.git/info/refs?service=git-upload-pack", http.StatusFound)) + "/repo.git"
	if f := fill(t, src); f.err == nil {
		t.Error("a redirection to nowhere succeeded")
	}
	close(got)
	n := 0
	for auth := range got {
		if n++; auth != "" {
			t.Errorf("it was shown %q", auth)
		}
	}
	if n == 0 {
		t.Error("the redirection was not followed")
	}
}

// Programs that fetch a source end when the caller's request is canceled.
func TestSource_canceled(t *testing.T) {
	t.Parallel()
	repo := gittest.New(t)
	asked, left := make(chan struct{}), make(chan struct{})
	url := web(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
		left <- struct{}{}
	}))
	for _, src := range []sandbox.Source{
		{Type: sandbox.GitSource, URL: url + "/repo.git", Revision: repo.One},
		{Type: sandbox.TarballSource, URL: url + "/x.tar"},
	} {
		c, _ := serve(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.FetchSource(ctx, guest.SourceRequest{Source: src}) }()
		<-asked
		cancel()
		if err := <-done; cay.CodeOf(err) != cay.Canceled {
			t.Errorf("%s: %v", src.Type, err)
		}
		<-left // the program that sent the request was killed
	}
}

func TestSource_tarball(t *testing.T) {
	t.Parallel()
	pack := func(name string) []byte {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for _, h := range []tar.Header{{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: name, Mode: 0o755, Size: 5}} {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				io.WriteString(w, "hello")
			}
		}
		w.Close()
		return buf.Bytes()
	}
	zip := func(data []byte) []byte {
		var buf bytes.Buffer
		w := gzip.NewWriter(&buf)
		w.Write(data)
		w.Close()
		return buf.Bytes()
	}
	plain := pack("dir/x")
	url := web(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/plain":
			w.Write(plain)
		case "/gz":
			if r.Referer() != "" {
				t.Errorf("who is redirected tells from where: %s", r.Referer())
			}
			w.Write(zip(plain))
		case "/encoded":
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(zip(plain))
		case "/redirect":
			http.Redirect(w, r, "/gz", http.StatusFound)
		case "/outside":
			w.Write(pack("../x"))
		case "/cut":
			w.Write(zip(plain)[:40])
		case "/zst":
			io.WriteString(w, "\x28\xb5\x2f\xfd and more")
		case "/html":
			io.WriteString(w, "<html>"+strings.Repeat("x", 5000))
		case "/empty":
		case "/busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/private":
			if u, p, _ := r.BasicAuth(); u != "u" || p != "p" {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			w.Write(plain)
		default:
			http.NotFound(w, r)
		}
	}))
	for path, want := range map[string]cay.Code{
		"plain": "", "gz": "", "encoded": "", "redirect": "", "outside": cay.Invalid, "cut": cay.Invalid, "zst": cay.Invalid, "html": cay.Invalid,
		"empty": cay.Invalid, "busy": cay.Unavailable, "missing": cay.Invalid, "private": cay.Invalid,
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			f := fill(t, sandbox.Source{Type: sandbox.TarballSource, URL: url + "/" + path, Dir: "into"})
			if got := cay.CodeOf(f.err); got != want {
				t.Fatalf("got %v", f.err)
			}
			if want == "" && f.file("into/dir/x") != "hello" {
				t.Errorf("got %q", f.file("into/dir/x"))
			}
			if _, err := os.Lstat(filepath.Join(f.dir, "x")); err == nil {
				t.Error("it was unpacked outside")
			}
		})
	}
	if f := fill(t, sandbox.Source{Type: sandbox.TarballSource, URL: strings.Replace(url, "://", "://u:p@", 1) + "/private"}); f.err != nil || f.file("dir/x") != "hello" {
		t.Errorf("with a password: %v", f.err)
	}
	f := fill(t, sandbox.Source{Type: sandbox.TarballSource, URL: "http://u:secret@127.0.0.1:1/x"})
	if cay.CodeOf(f.err) != cay.Unavailable || strings.Contains(f.err.Error(), "secret") {
		t.Errorf("nobody listens: %v", f.err)
	}

	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write(plain) }))
	t.Cleanup(secure.Close)
	src := sandbox.Source{Type: sandbox.TarballSource, URL: secure.URL}
	if f := fill(t, src); cay.CodeOf(f.err) != cay.Unavailable {
		t.Errorf("of an unknown authority: %v", f.err)
	}
	c, _ := serve(t, nil)
	if err := c.FetchSource(t.Context(), guest.SourceRequest{Source: src, Roots: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))}); err != nil {
		t.Errorf("of a known authority: %v", err)
	}
}
