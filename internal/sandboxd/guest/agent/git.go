package agent

import (
	"context"
	"maps"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// clone makes a directory a git repository from a source. The directory may have files:
// files that the repository also has are replaced.
//
// It does not use git clone, which requires an empty directory and fetches only commits
// that are reachable from a branch. The result is the same as after git clone: all
// branches, or with a depth the one branch, as branches of origin.
func (s *Server) clone(ctx context.Context, req guest.SourceRequest, real, dir string) error {
	g, err := s.newGit(ctx, req, dir)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(real + "/.git"); err == nil {
		return cay.Errorf(cay.Invalid, "%s has a git repository already", quote(dir)).WithHint("name another directory")
	}
	src := req.Source
	target, err := g.target(src.Revision)
	if err != nil {
		return err
	}
	fetch := []string{"fetch", "--quiet", "--no-recurse-submodules"}
	heads := "+refs/heads/*:refs/remotes/origin/*"
	if src.Depth > 0 {
		fetch = append(fetch, "--no-tags", "--depth", strconv.Itoa(src.Depth))
		if target.branch != "" {
			heads = "+refs/heads/" + target.branch + ":refs/remotes/origin/" + target.branch
		}
	}
	refs := []string{heads}
	switch {
	case target.want == "":
		refs = nil // there is nothing yet
	case target.branch == "" && src.Depth > 0:
		refs = []string{target.want}
	case target.branch == "":
		refs = append(refs, target.want)
	}
	for _, args := range [][]string{
		{"init", "--quiet"},
		{"config", "remote.origin.url", g.url},
		{"config", "remote.origin.fetch", heads},
	} {
		if err := g.run(args...); err != nil {
			return err
		}
	}
	if len(refs) == 0 {
		return nil
	}
	if _, err := g.remote(append(append(fetch, "origin"), refs...)...); err != nil {
		return err
	}
	if target.branch != "" {
		return g.run("checkout", "--quiet", "--force", "-B", target.branch, "refs/remotes/origin/"+target.branch)
	}
	return g.run("checkout", "--quiet", "--force", "--detach", target.commit)
}

// git runs git in one directory.
type git struct {
	s      *Server
	ctx    context.Context // of the request
	dir    string
	url    string            // without a user
	env    map[string]string // of all git commands
	secret map[string]string // added for commands that connect to the server
	helper []string          // their options
}

// askHelper answers git's question for a password, from variables that only git has.
// Git's later reports, that the password was right or wrong, are ignored.
const askHelper = `!f() { test "$1" = get && printf 'username=%s\npassword=%s\n' "$CAY_SOURCE_USERNAME" "$CAY_SOURCE_PASSWORD"; :; }; f`

func (s *Server) newGit(ctx context.Context, req guest.SourceRequest, dir string) (*git, error) {
	u, err := url.Parse(req.Source.URL)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "source.url is no URL")
	}
	user, password := req.Source.Username, req.Source.Password
	if u.User != nil {
		user = u.User.Username()
		password, _ = u.User.Password()
		u.User = nil
	}
	g := &git{s: s, ctx: ctx, dir: dir, url: u.String(), env: maps.Clone(req.Env)}
	if g.env == nil {
		g.env = map[string]string{}
	}
	maps.Copy(g.env, map[string]string{
		"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "GIT_ALLOW_PROTOCOL": "http:https", "GCM_INTERACTIVE": "never",
	})
	// git would ask the image's credential helpers first, and they would store our
	// credentials, so they are removed. Our helper is set for this one server: a
	// redirection to another server gets no credentials.
	g.helper = []string{"-c", "credential.helper="}
	if user != "" || password != "" {
		g.secret = map[string]string{"CAY_SOURCE_USERNAME": user, "CAY_SOURCE_PASSWORD": password}
		g.helper = append(g.helper, "-c", "credential."+u.Scheme+"://"+u.Host+".helper="+askHelper)
	}
	return g, nil
}

// run runs git. safe.directory=* lets git use the repository, whoever owns the directory.
func (g *git) run(args ...string) error {
	_, err := g.exec(g.env, nil, args)
	return err
}

// remote runs a git command that connects to the server, and returns its output.
func (g *git) remote(args ...string) ([]byte, error) {
	env := maps.Clone(g.env)
	maps.Copy(env, g.secret)
	return g.exec(env, g.helper, args)
}

func (g *git) exec(env map[string]string, options, args []string) ([]byte, error) {
	// Background processes of git would outlive the command, with its environment.
	argv := append([]string{"git", "-c", "safe.directory=*", "-c", "gc.auto=0", "-c", "maintenance.auto=false",
		"-c", "init.defaultBranch=main", "-c", "advice.detachedHead=false"}, options...)
	h, err := g.s.help(g.ctx, sandbox.CommandParams{Argv: append(argv, args...), Env: env, WorkDir: g.dir})
	if err != nil {
		return nil, err
	}
	if h.code == 0 {
		return h.stdout, nil
	}
	code := cay.Invalid
	if unreachable().MatchString(h.said) {
		code = cay.Unavailable
	}
	return nil, cay.Errorf(code, "git %s failed with exit code %d: %s", args[0], h.code, h.said)
}

// unreachable matches git's messages about servers that may answer another time.
var unreachable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)could not resolve|failed to connect|couldn't connect|connection (was )?(reset|refused|timed out)|timed out|timeout|returned error: (429|5\d\d)|early EOF|hung up`)
})

// target is the revision to be checked out.
type target struct {
	want   string // to fetch: a ref or the id of a commit; empty: the repository has nothing
	branch string // the branch's name; empty: not a branch
	commit string // commit to check out, if it is not a branch
}

// target resolves a revision.
func (g *git) target(revision string) (target, error) {
	if isObjectID(revision) {
		return target{want: revision, commit: revision}, nil
	}
	ask := []string{"HEAD"}
	switch {
	case strings.HasPrefix(revision, "refs/"):
		ask = []string{revision}
	case revision != "":
		ask = []string{"refs/heads/" + revision, "refs/tags/" + revision}
	}
	// ls-remote also lists refs that merely end like the pattern.
	refs, err := g.remote(append([]string{"ls-remote", "--symref", "--quiet", g.url}, ask...)...)
	if err != nil {
		return target{}, err
	}
	ids, head := map[string]string{}, ""
	for line := range strings.Lines(string(refs)) {
		value, ref, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if symref, ok := strings.CutPrefix(value, "ref: "); ok && ref == "HEAD" {
			head = symref
		} else if !ok {
			ids[ref] = value
		}
	}
	for _, ref := range ask {
		id := ids[ref]
		if id == "" {
			continue
		}
		if ref == "HEAD" && head != "" {
			ref = head
		}
		if branch, ok := strings.CutPrefix(ref, "refs/heads/"); ok {
			return target{want: ref, branch: branch}, nil
		}
		if strings.HasPrefix(ref, "refs/tags/") {
			return target{want: "+" + ref + ":" + ref, commit: ref + "^{commit}"}, nil
		}
		return target{want: ref, commit: id}, nil
	}
	if revision == "" {
		return target{}, nil
	}
	return target{}, cay.Errorf(cay.Invalid, "revision %q is no branch, no tag and no whole id of a commit", clip(revision)).
		WithHint("of a commit, give all 40 characters")
}

// isObjectID reports whether s is the full id of a commit.
func isObjectID(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}
