// Package gittest is a git repository, and servers of it, for tests of what
// fetches one.
package gittest

import (
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Repo is a bare repository of two branches and a tag:
//
//	main     One - Two - Three, in which file.txt is "three"
//	feature  One - Branched, in which file.txt is "branched"
//	v1       of Two, in which file.txt is "two"
type Repo struct {
	Dir                       string // its parent, served as a whole; the repository is repo.git in it
	One, Two, Three, Branched string // ids of commits
	Hidden                    string // of one that is in no branch
	backend, path             string
}

// New makes a repository. The test is skipped where there is no git.
func New(t testing.TB) *Repo {
	t.Helper()
	path, err := exec.LookPath("git")
	if err != nil {
		t.Skip("there is no git to serve a repository with")
	}
	r := &Repo{Dir: t.TempDir(), path: path}
	libexec, err := exec.CommandContext(t.Context(), path, "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	r.backend = filepath.Join(strings.TrimSpace(string(libexec)), "git-http-backend")
	work := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), path, args...)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
			"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	commit := func(content string) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(work, "file.txt"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		git("add", "--all")
		git("commit", "--quiet", "--message", content)
		return git("rev-parse", "HEAD")
	}
	git("-c", "init.defaultBranch=main", "init", "--quiet")
	r.One = commit("one")
	r.Two = commit("two")
	git("tag", "v1")
	r.Three = commit("three")
	git("checkout", "--quiet", "-b", "feature", r.One)
	r.Branched = commit("branched")
	r.Hidden = commit("hidden")
	git("update-ref", "refs/pull/1/head", r.Hidden)
	git("reset", "--quiet", "--hard", r.Branched)
	git("checkout", "--quiet", "main")
	bare := filepath.Join(r.Dir, "repo.git")
	git("clone", "--quiet", "--mirror", work, bare)
	git("--git-dir", bare, "update-server-info")
	return r
}

// Handler serves the repository at /repo.git as git servers do, to those who show
// the user and password, if they are not empty.
func (r *Repo) Handler(user, password string) http.Handler {
	backend := &cgi.Handler{
		Path:       r.backend,
		Env:        []string{"GIT_PROJECT_ROOT=" + r.Dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
		InheritEnv: []string{"PATH"},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		u, p, _ := q.BasicAuth()
		if user != "" && (u != user || p != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if version := q.Header.Get("Git-Protocol"); version != "" {
			b := *backend
			b.Env = append(b.Env[:len(b.Env):len(b.Env)], "GIT_PROTOCOL="+version)
			b.ServeHTTP(w, q)
			return
		}
		backend.ServeHTTP(w, q)
	})
}

// Dumb serves the repository at /repo.git as a server does that knows nothing of git.
func (r *Repo) Dumb() http.Handler { return http.FileServer(http.Dir(r.Dir)) }
