package cloudflare

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

// stateDir is the directory of sessions in a sandbox: a shell script for each, which sets
// the exported variables, PWD among them.
const stateDir = "/var/lib/cay-bridge/sessions"

const (
	maxSessionEnv      = 1024      // variables
	maxSessionEnvBytes = 256 << 10 // of names and values together
)

// loadState is the beginning of a script that works in a session: $1 is the file of the
// session, and $2 a directory for this call, "" for none.
const loadState = `__cay_f=$1 __cay_d=$2 __cay_had=; shift 2
PWD=` + workspace + `
if [ -r "$__cay_f" ]; then __cay_had=1; . "$__cay_f"; fi
if ! cd -- "$PWD"; then
	echo "cay: the session goes on in ` + workspace + `" >&2
	cd ` + workspace + ` || exit 1
fi
`

// runScript runs a command in a session and saves the session: the directory and the
// exported variables that the command leaves. A session that was deleted meanwhile is
// not saved.
const runScript = loadState + `__cay_p=$PWD
if [ -n "$__cay_d" ]; then cd -- "$__cay_d" || exit 1; fi
"$@"
__cay_c=$?
if [ -n "$__cay_d" ]; then cd -- "$__cay_p"; fi
if [ -z "$__cay_had" ] || [ -e "$__cay_f" ]; then
	(umask 077; mkdir -p "${__cay_f%/*}" && export PWD && export -p > "$__cay_f.$$" && mv -f "$__cay_f.$$" "$__cay_f")
fi
exit $__cay_c`

// sessionArgv is a command that runs argv in a session.
func sessionArgv(session, cwd string, argv []string) []string {
	return append([]string{"/bin/sh", "-c", runScript, "cay-session", stateFile(session), cwd}, argv...)
}

func stateFile(session string) string { return stateDir + "/" + session + ".sh" }

var envNames = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// sessionRequest is the body of a request for a session.
type sessionRequest struct {
	ID  string            `json:"id"`
	Cwd string            `json:"cwd"`
	Env map[string]string `json:"env"`
}

// state returns the file of a session at its beginning. Errors: invalid.
func (q *sessionRequest) state() (string, error) {
	if len(q.Env) > maxSessionEnv {
		return "", cay.Errorf(cay.Invalid, "env has %d variables, more than %d", len(q.Env), maxSessionEnv)
	}
	var b strings.Builder
	size := 0
	names := make([]string, 0, len(q.Env))
	for name, value := range q.Env {
		if !envNames.MatchString(name) {
			return "", cay.Errorf(cay.Invalid, "env has the name %.100q", name).WithHint("a name is letters, digits and _, without a digit first")
		}
		if strings.ContainsRune(value, 0) {
			return "", cay.Errorf(cay.Invalid, "the value of %s in env contains a NUL byte", name)
		}
		size += len(name) + len(value)
		names = append(names, name)
	}
	if size > maxSessionEnvBytes {
		return "", cay.Errorf(cay.Invalid, "env has %d bytes, more than %d", size, maxSessionEnvBytes)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "export %s=%s\n", name, shellQuote(q.Env[name]))
	}
	fmt.Fprintf(&b, "export PWD=%s\n", shellQuote(q.Cwd))
	return b.String(), nil
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// handleCreateSession makes a session.
func (h *handler) handleCreateSession(w http.ResponseWriter, r *http.Request) error {
	var in sessionRequest
	if err := api.ReadOpenJSON(w, r, &in); err != nil {
		return badJSON(err)
	}
	in.Cwd = cmp.Or(in.Cwd, workspace)
	if !strings.HasPrefix(in.Cwd, "/") {
		in.Cwd = workspace + "/" + in.Cwd
	}
	id, err := sessionID(cmp.Or(in.ID, "session-"+strings.ToLower(rand.Text())))
	if err != nil {
		return err
	}
	state, err := in.state()
	if err != nil {
		return err
	}
	ctx := r.Context()
	sb, err := h.ensure(ctx, r.PathValue("id"))
	if err != nil {
		return err
	}
	unlock, err := h.sessions.lock(ctx, sb.ID+"/"+id)
	if err != nil {
		return err
	}
	defer unlock()
	file := stateFile(id)
	if _, err := h.Sandboxes.Stat(ctx, sb.ID, file, false); err == nil {
		return shaped(http.StatusBadGateway, codeSession, cay.Errorf(cay.AlreadyExists, "session %q exists already", id).
			WithHint("delete it first, or use another id"))
	} else if cay.CodeOf(err) != cay.FileNotFound {
		return err
	}
	if !h.isDir(ctx, sb.ID, in.Cwd) {
		return cay.Errorf(cay.Invalid, "cwd %.200q is not a directory in the sandbox", in.Cwd).WithHint("make it first")
	}
	p := sandbox.WriteParams{Mode: 0o600, User: user, Parents: true, Size: int64(len(state))}
	if _, err := h.Sandboxes.WriteFile(ctx, sb.ID, file, strings.NewReader(state), p); err != nil {
		return shaped(http.StatusBadGateway, codeSession, err)
	}
	return api.WriteJSON(w, http.StatusOK, struct {
		ID string `json:"id"`
	}{id})
}

// handleDeleteSession forgets a session and hangs up its terminal. Commands that run in
// the session, and processes that they left, belong to the sandbox and go on.
func (h *handler) handleDeleteSession(w http.ResponseWriter, r *http.Request) error {
	id, err := sessionID(r.PathValue("sid"))
	if err != nil {
		return err
	}
	ctx := r.Context()
	unknown := shaped(http.StatusBadGateway, codeSession, cay.Errorf(cay.NotFound, "session %q not found", id))
	if _, err := h.find(ctx, r.PathValue("id")); cay.CodeOf(err) == cay.NotFound {
		return unknown
	}
	sb, err := h.ensure(ctx, r.PathValue("id"))
	if err != nil {
		return err
	}
	ended, err := h.hangUpSession(r, sb.ID, id)
	if err != nil {
		return err
	}
	err = h.Sandboxes.Remove(ctx, sb.ID, stateFile(id), false)
	switch {
	case cay.CodeOf(err) == cay.FileNotFound && !ended:
		return unknown
	case err != nil && cay.CodeOf(err) != cay.FileNotFound:
		return err
	}
	h.Logger.InfoContext(ctx, "session of the bridge ended", "sandbox", sb.ID, "session", id, "cause", "deleted")
	return api.WriteJSON(w, http.StatusOK, struct {
		Success   bool      `json:"success"`
		SessionID string    `json:"sessionId"`
		Timestamp time.Time `json:"timestamp"`
	}{true, id, time.Now().UTC().Truncate(time.Millisecond)})
}

// hangUpSession hangs up the terminal of a session, and reports whether there was one.
func (h *handler) hangUpSession(r *http.Request, ref, session string) (ended bool, err error) {
	all, err := h.Sandboxes.ListCommands(r.Context(), ref)
	if err != nil {
		return false, err
	}
	for i := range all {
		if c := &all[i]; c.Exit == nil && isTerminal(c, session) {
			h.end(r.Context(), ref, c.ID, syscall.SIGHUP, syscall.SIGCONT)
			ended = true
		}
	}
	return ended, nil
}
