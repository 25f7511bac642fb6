package cloudflare

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"net/http"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

const (
	// workspace is the working directory of commands, the root of persist and hydrate, and
	// the directory outside of which clients name no files.
	workspace = "/workspace"

	// user runs commands and owns files, as in the vendor's containers.
	user = "root"

	// idleTimeout stops a sandbox that nobody uses, as the vendor's sleepAfter does.
	idleTimeout = 10 * time.Minute

	// maxUpload is the largest file and the largest archive that a client may send, in bytes.
	maxUpload = 32 << 20

	// attempts bounds how often a sandbox is looked for while other callers create and
	// delete it.
	attempts = 5
)

// The tag of the bridge's sandboxes.
const (
	tagKey   = "cloudflare"
	tagValue = "bridge"
)

// handler has a method for each route.
type handler struct {
	Config
	sessions locks // keyed by the sandbox's id and the session's
}

type okAnswer struct {
	OK bool `json:"ok"`
}

var done = okAnswer{true}

var (
	sandboxIDs = regexp.MustCompile(`^[a-z2-7]{1,128}$`)
	sessionIDs = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
)

// checkID is an api.Prepare: it refuses an id that no sandbox of the bridge can have.
func checkID(r *http.Request) (*http.Request, error) {
	if id := r.PathValue("id"); !sandboxIDs.MatchString(id) {
		return nil, cay.Errorf(cay.Invalid, "Invalid sandbox ID format: %.150q", id).
			WithHint("an id is 1 to 128 of the letters a to z and the digits 2 to 7; POST %s/v1/sandbox makes one", Prefix)
	}
	return r, nil
}

// tokenInQuery returns an api.Prepare that calls before, if there is one, and then moves a
// token from a query parameter to the Authorization header: browsers can set no header
// of a WebSocket or of a page. A header wins.
func tokenInQuery(name string, before api.Prepare) api.Prepare {
	return func(r *http.Request) (*http.Request, error) {
		if before != nil {
			var err error
			if r, err = before(r); err != nil {
				return nil, err
			}
		}
		q := r.URL.Query()
		token := q.Get(name)
		if token == "" {
			return r, nil
		}
		q.Del(name) // errors and logs show URLs
		given := r.Header.Get("Authorization") != ""
		r = r.Clone(r.Context())
		r.URL.RawQuery = q.Encode()
		if !given {
			r.Header.Set("Authorization", "Bearer "+strings.TrimPrefix(token, "Bearer "))
		}
		return r, nil
	}
}

// sessionID checks the id of a session. Errors: invalid.
func sessionID(id string) (string, error) {
	if !sessionIDs.MatchString(id) || strings.Contains(id, "..") {
		return "", cay.Errorf(cay.Invalid, "Invalid session ID format: %.150q", id).
			WithHint("an id is 1 to 128 of A-Z a-z 0-9 . _ - without two dots in a row")
	}
	return id, nil
}

// headerSession returns the session that a request names in its header, "" if none.
// Errors: invalid.
func headerSession(r *http.Request) (string, error) {
	id := r.Header.Get("Session-Id")
	if id == "" {
		return "", nil
	}
	return sessionID(id)
}

// inWorkspace returns the absolute form of a path, which may be relative to the
// workspace, and whether the path stays in the workspace. Links are not followed.
func inWorkspace(p string) (string, bool) {
	if !path.IsAbs(p) {
		p = workspace + "/" + p
	}
	p = path.Clean(p)
	return p, p == workspace || strings.HasPrefix(p, workspace+"/")
}

// newID returns an id for a sandbox: 128 random bits.
func newID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))
}

// handleCreate creates a sandbox under a new id.
func (h *handler) handleCreate(w http.ResponseWriter, r *http.Request) error {
	// Clients send ports and times, too, which do nothing at the vendor either.
	var in struct {
		Mounts []any `json:"mounts"`
	}
	if err := api.ReadOpenJSON(w, r, &in); err != nil {
		return err
	}
	if len(in.Mounts) > 0 {
		return noBuckets(codeMount, "mounts has %d entries", len(in.Mounts))
	}
	id := newID()
	if _, err := h.ensure(r.Context(), id); err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, struct {
		ID string `json:"id"`
	}{id})
}

// handleDelete deletes a sandbox. Unknown ids are no error.
func (h *handler) handleDelete(w http.ResponseWriter, r *http.Request) error {
	sb, err := h.find(r.Context(), r.PathValue("id"))
	if err == nil {
		err = h.Sandboxes.DeleteWith(r.Context(), sb.ID, sandbox.DeleteParams{})
	}
	if err != nil && cay.CodeOf(err) != cay.NotFound {
		return err
	}
	return api.NoContent(w)
}

// handleRunning tells whether a sandbox runs. It neither creates nor wakes the sandbox.
func (h *handler) handleRunning(w http.ResponseWriter, r *http.Request) error {
	sb, err := h.find(r.Context(), r.PathValue("id"))
	if err != nil && cay.CodeOf(err) != cay.NotFound {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, struct {
		Running bool `json:"running"`
	}{err == nil && sb.Status == sandbox.Running})
}

// find returns the bridge's sandbox of an id. Errors: not_found, conflict (another kind
// of sandbox has the name).
func (h *handler) find(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	sb, err := h.Sandboxes.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if sb.Tags[tagKey] != tagValue {
		return nil, cay.Errorf(cay.Conflict, "sandbox %q was not made by the bridge", id).
			WithHint("use another id, or give the sandbox the tag %s=%s", tagKey, tagValue)
	}
	return sb, nil
}

// ensure returns the sandbox of an id, running. An id without a sandbox gets one; a
// sandbox that has stopped is started again. Callers that come at the same time get the same
// sandbox. Errors: those of creating and resuming, conflict.
func (h *handler) ensure(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	for range attempts {
		sb, err := h.find(ctx, id)
		switch {
		case cay.CodeOf(err) == cay.NotFound:
			sb, err = h.create(ctx, id)
			if cay.CodeOf(err) == cay.AlreadyExists {
				continue // another caller was first
			}
			return sb, err
		case err != nil:
			return nil, err
		case sb.Status == sandbox.Running || sb.Status == sandbox.Paused:
			return sb, nil // calls refuse a paused sandbox with the reason
		}
		woken, err := h.Sandboxes.Resume(ctx, sb.ID, sandbox.ResumeParams{Fresh: sb.Status.Final() && !sb.Persistent})
		if cay.CodeOf(err) != cay.NotFound {
			return woken, err
		}
		if gone, cause := h.forget(ctx, sb); cause != nil || !gone {
			if cause != nil {
				err = cause
			}
			return nil, err
		}
	}
	return nil, cay.Errorf(cay.Unavailable, "sandbox %q was created and deleted %d times during this call", id, attempts).
		WithHint("let one client delete it")
}

// forget deletes a sandbox that cannot be resumed because the files it would start from have
// expired, so that its id can have another one. It reports whether there is no such
// sandbox any more.
func (h *handler) forget(ctx context.Context, sb *sandbox.Sandbox) (gone bool, err error) {
	sb, err = h.Sandboxes.Get(ctx, sb.ID)
	if err != nil {
		return cay.CodeOf(err) == cay.NotFound, nil
	}
	if sb.SnapshotID == "" {
		return false, nil
	}
	snap, err := h.Sandboxes.GetSnapshot(ctx, sb.SnapshotID)
	if expired := cay.CodeOf(err) == cay.NotFound || err == nil && snap.Status == sandbox.SnapshotDeleted; !expired {
		return false, err
	}
	h.Logger.InfoContext(ctx, "sandbox of the bridge is made anew because its files have expired", "sandbox", sb.ID)
	err = h.Sandboxes.DeleteWith(ctx, sb.ID, sandbox.DeleteParams{})
	if cay.CodeOf(err) == cay.NotFound {
		err = nil
	}
	return err == nil, err
}

func (h *handler) create(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	return h.Sandboxes.Create(ctx, sandbox.CreateParams{
		Name: id, Image: h.Image, User: user, WorkDir: workspace,
		Timeout: sandbox.Duration(h.MaxTimeout), IdleTimeout: sandbox.Duration(idleTimeout),
		Env:  map[string]string{"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"},
		Tags: map[string]string{tagKey: tagValue},
	})
}

// milliseconds reads a duration of a request, nil for none. Errors: invalid.
func milliseconds(name string, ms *float64, least time.Duration) (time.Duration, error) {
	const most = float64(365 * 24 * time.Hour / time.Millisecond)
	switch {
	case ms == nil:
		return 0, nil
	case !(*ms > 0 && *ms <= most):
		return 0, cay.Errorf(cay.Invalid, "%s is %v; a number of milliseconds from 1 to %.0f is wanted", name, *ms, most).
			WithHint("leave it out for none")
	}
	return max(least, time.Duration(*ms)*time.Millisecond), nil
}
