package vercel

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/compat/vercelsandbox/preload"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

// site is a daemon, an internet for its sandboxes, and the data about both for
// clients.
type site struct {
	url, token string // of the daemon, and its admin's
	control    string // URL of what the internet recorded
	preload    string // file
	internet   *networktest.Internet
	opened     chan visit // URLs that programs opened in a browser
}

// visit is a URL that a browser opened, and the text of the page.
type visit struct{ URL, Text string }

// credentials are a client's.
type credentials struct {
	Token     string `json:"token"`
	TeamID    string `json:"teamId"`
	ProjectID string `json:"projectId"`
}

// world is the input of a test program: see world.mjs.
type world struct {
	credentials
	Name    string      `json:"name"` // the name of its team and of its project
	JWT     string      `json:"jwt"`
	Other   credentials `json:"other"`
	Limited credentials `json:"limited"`
	Single  credentials `json:"single"`
	URL     string      `json:"url"`
	Control string      `json:"control"`
}

// native speaks to the daemon by its own API.
func (w world) native() *sandbox.Client {
	return sandbox.NewClient(sandbox.ClientOptions{URL: w.URL, Token: w.Token})
}

// open starts a site that ends with the test.
func open(t *testing.T, change ...func(*config.Config)) *site {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("starting sandboxes needs root")
	}
	for _, ref := range []string{"debian", "node22", "node24", "python3.13"} {
		imagetest.Acquire(t, ref)
	}
	n := networktest.Start(t)
	// Sandboxes trust the authority of the simulated internet, because the test
	// adds it to this machine's authorities as an operator would.
	trusted := t.TempDir()
	if err := os.WriteFile(filepath.Join(trusted, "internet.pem"), networktest.RootPEM(), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_DIR", trusted)
	n.Serve(netip.MustParseAddr("93.184.0.70"), repositories(t), "git.example.com", "github.com")
	n.Serve(netip.MustParseAddr("93.184.0.71"), archives(t), "archive.example.com")
	n.Serve(netip.MustParseAddr("93.184.0.72"), registry(t), "packages.example.com")

	cfg := config.Default()
	cfg.Data, cfg.Listen = t.TempDir(), "127.0.0.1:0"
	cfg.Quota.CreatesPerMinute = 0
	for _, f := range change {
		f(&cfg)
	}
	opts := daemon.Options{
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), ImageDir: imagetest.Dir(t), DestroyOnStop: true,
		Nameservers: n.Nameservers(), DialContext: n.DialContext, Roots: networktest.Roots(),
	}
	ln, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		t.Fatal(err)
	}
	opts.Listener = ln
	d, err := daemon.New(t.Context(), cfg, opts)
	if err != nil {
		ln.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(cfg.AdminTokenFile())
	if err != nil {
		t.Fatal(err)
	}
	s := &site{
		url: d.URL(), token: strings.TrimSpace(string(token)), internet: n,
		preload: filepath.Join(t.TempDir(), "preload.mjs"), opened: make(chan visit, 8),
	}
	if err := os.WriteFile(s.preload, []byte(preload.Module(s.url, "")), 0o644); err != nil {
		t.Fatal(err)
	}
	control := http.NewServeMux()
	control.HandleFunc("GET /requests", s.handleRequests)
	control.HandleFunc("POST /opened", s.handleOpened)
	server := httptest.NewServer(control)
	t.Cleanup(server.Close)
	s.control = server.URL
	return s
}

// handleRequests answers with the requests to the internet's web servers for a
// path.
func (s *site) handleRequests(w http.ResponseWriter, r *http.Request) {
	seen := slices.DeleteFunc(s.internet.Requests(networktest.Mark{}), func(q networktest.Request) bool { return q.URI != r.FormValue("path") })
	_ = json.NewEncoder(w).Encode(seen) // fails only when the program left
}

// handleOpened records a URL that a program opened in a browser.
func (s *site) handleOpened(w http.ResponseWriter, r *http.Request) {
	var v visit
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case s.opened <- v:
	default:
		http.Error(w, "nobody expects so many visits", http.StatusTooManyRequests)
	}
}

// team makes a team with a project, a token and a quota.
func (s *site) team(t *testing.T, name string, q account.Quota) credentials {
	t.Helper()
	ctx := t.Context()
	admin := account.Client{URL: s.url, Token: s.token}
	team, err := admin.CreateTeam(ctx, account.CreateTeamParams{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := admin.SetQuota(ctx, team.ID, q); err != nil {
		t.Fatal(err)
	}
	own := account.Client{URL: s.url, Token: s.token, Team: team.ID}
	project, err := own.CreateProject(ctx, account.CreateProjectParams{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	token, err := own.CreateToken(ctx, account.CreateTokenParams{})
	if err != nil {
		t.Fatal(err)
	}
	return credentials{token.Secret, team.ID, project.ID}
}

// world makes teams for one test program, so that programs can run at once.
func (s *site) world(t *testing.T, name string) world {
	t.Helper()
	w := world{
		credentials: s.team(t, name, account.Quota{}),
		Other:       s.team(t, name+"-other", account.Quota{}),
		Limited:     s.team(t, name+"-limited", account.Quota{CreatesPerMinute: 1}),
		Single:      s.team(t, name+"-single", account.Quota{Sandboxes: 1}),
		Name:        name, URL: s.url, Control: s.control,
	}
	own := account.Client{URL: s.url, Token: s.token, Team: w.TeamID}
	jwt, err := own.CreateToken(t.Context(), account.CreateTokenParams{ProjectID: w.ProjectID, JWT: true})
	if err != nil {
		t.Fatal(err)
	}
	w.JWT = jwt.Secret
	return w
}

// repositories serves git over HTTP: /project.git and, for x-access-token with the
// password open-sesame, /private/project.git. It also serves the repositories that
// the examples in READMEs use.
func repositories(t *testing.T) http.Handler {
	t.Helper()
	root := t.TempDir()
	project := newRepository(t)
	project.commit("the first greeting\n")
	project.git("tag", "v1")
	project.git("checkout", "-q", "-b", "side")
	project.commit("a greeting from the side\n")
	project.git("checkout", "-q", "main")
	project.commit("the second greeting\n")
	project.publish(filepath.Join(root, "project.git"))
	project.publish(filepath.Join(root, "private", "project.git"))

	example := newRepository(t)
	example.write("package.json", `{"name": "example", "scripts": {"dev": "node dev.js"}, "dependencies": {"greeting": "https://archive.example.com/greeting-1.0.0.tgz"}}`)
	example.write("dev.js", "const greeting = require('greeting');\nrequire('http').createServer((_, res) => res.end(greeting)).listen(3000, () => console.log('ready'));\n")
	example.commit("an example\n")
	example.publish(filepath.Join(root, "vercel", "sandbox-example-next.git"))

	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"}, Stderr: t.Output(),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/private/") {
			if user, password, _ := r.BasicAuth(); user != "x-access-token" || password != "open-sesame" {
				w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
				http.Error(w, "who are you?", http.StatusUnauthorized)
				return
			}
		}
		backend.ServeHTTP(w, r)
	})
}

// repository is a working tree.
type repository struct {
	t   *testing.T
	dir string
}

func newRepository(t *testing.T) *repository {
	r := &repository{t, t.TempDir()}
	r.git("init", "-q", "-b", "main")
	return r
}

func (r *repository) git(args ...string) {
	r.t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("git %q: %v: %s", args, err, out)
	}
}

func (r *repository) write(name, content string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(content), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// commit commits all files and a greeting.
func (r *repository) commit(greeting string) {
	r.t.Helper()
	r.write("greeting.txt", greeting)
	r.git("add", ".")
	r.git("commit", "-q", "-m", strings.TrimSpace(greeting))
}

func (r *repository) publish(dir string) {
	r.t.Helper()
	r.git("clone", "-q", "--bare", ".", dir)
}

// archives serves tarballs.
func archives(t *testing.T) http.Handler {
	t.Helper()
	mux := http.NewServeMux()
	serve := func(path string, b []byte) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, path, time.Time{}, bytes.NewReader(b))
		})
	}
	serve("/project.tar.gz", tarball(t,
		tar.Header{Name: "package.json", Mode: 0o644}, `{"name":"tarball"}`+"\n",
		tar.Header{Name: "sub/file.txt", Mode: 0o644}, "in the archive\n",
		tar.Header{Name: "run", Mode: 0o755}, "#!/bin/sh\necho it runs\n",
	))
	serve("/greeting-1.0.0.tgz", tarball(t,
		tar.Header{Name: "package/package.json", Mode: 0o644}, `{"name": "greeting", "version": "1.0.0", "main": "index.js"}`,
		tar.Header{Name: "package/index.js", Mode: 0o644}, "module.exports = 'Hello from a package';\n",
	))
	return mux
}

// registry is a package registry with one package, which is among the clients'.
func registry(t *testing.T) http.Handler {
	t.Helper()
	var entries []any
	for _, name := range []string{"package.json", "index.js"} {
		b, err := os.ReadFile(filepath.Join("node_modules/ms", name))
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, tar.Header{Name: "package/" + name, Mode: 0o644}, string(b))
	}
	b := tarball(t, entries...)
	sum := sha512.Sum512(b)
	version := map[string]any{"name": "ms", "version": "2.1.3", "dist": map[string]any{
		"tarball": "https://packages.example.com/ms/-/ms-2.1.3.tgz", "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:]),
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ms", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{ // fails only when the guest left
			"name": "ms", "dist-tags": map[string]any{"latest": "2.1.3"}, "versions": map[string]any{"2.1.3": version},
		})
	})
	mux.HandleFunc("GET /ms/-/ms-2.1.3.tgz", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "ms.tgz", time.Time{}, bytes.NewReader(b))
	})
	return mux
}

// tarball takes headers and contents in turn.
func tarball(t *testing.T, entries ...any) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for i := 0; i < len(entries); i += 2 {
		h, content := entries[i].(tar.Header), entries[i+1].(string)
		h.Size, h.Typeflag = int64(len(content)), tar.TypeReg
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
