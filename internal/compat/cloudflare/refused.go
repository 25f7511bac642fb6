package cloudflare

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// This file has the routes that the bridge serves to say why it cannot do what they ask
// for. Requests of a wrong shape get the answer that the vendor gives.

// noBuckets says that buckets cannot be mounted; the format says what asked for it.
func noBuckets(code, format string, args ...any) error {
	return shaped(http.StatusNotImplemented, code, cay.Errorf(cay.NotSupported, "cay mounts no buckets: %s", fmt.Sprintf(format, args...)).
		WithHint("copy the objects with PUT file or hydrate, or mount a cay drive in a sandbox that cay's own API makes"))
}

// mountRequest is the body of a mount.
type mountRequest struct {
	Bucket    any `json:"bucket"`
	Binding   any `json:"binding"`
	MountPath any `json:"mountPath"`
	Options   any `json:"options"`
}

// check checks the shape of a request. Errors: invalid.
func (q *mountRequest) check() error {
	if err := optionalText("bucket", q.Bucket); err != nil {
		return err
	}
	if _, err := mountPath(q.MountPath); err != nil {
		return err
	}
	options, ok := q.Options.(map[string]any)
	if !ok {
		return cay.Errorf(cay.Invalid, "options must be an object")
	}
	if err := optionalText("binding", q.Binding); err != nil {
		return err
	}
	endpoint, remote := options["endpoint"]
	if err := optionalText("options.endpoint", endpoint); err != nil {
		return err
	}
	switch {
	case q.Binding != nil && remote:
		return cay.Errorf(cay.Invalid, "Provide either binding or options.endpoint, not both")
	case remote && q.Bucket == nil:
		return cay.Errorf(cay.Invalid, "bucket must be a non-empty string for remote mounts")
	case !remote && q.Binding == nil:
		return cay.Errorf(cay.Invalid, "binding must be a non-empty string for R2 binding mounts")
	}
	return checkOptions(options)
}

// checkOptions checks the types of the other options of a mount. Errors: invalid.
func checkOptions(options map[string]any) error {
	for name, v := range options {
		ok, want := true, ""
		switch name {
		case "readOnly", "credentialProxy":
			_, ok = v.(bool)
			want = "a boolean"
		case "prefix":
			_, ok = v.(string)
			want = "a string"
		case "s3fsOptions":
			ok, want = texts(v), "an array of strings"
		case "credentials":
			c, _ := v.(map[string]any)
			_, key := c["accessKeyId"].(string)
			_, secret := c["secretAccessKey"].(string)
			ok, want = key && secret, "an object with the strings accessKeyId and secretAccessKey"
		}
		if !ok {
			return cay.Errorf(cay.Invalid, "options.%s must be %s", name, want)
		}
	}
	return nil
}

// texts reports whether v is an array of strings.
func texts(v any) bool {
	list, ok := v.([]any)
	for _, e := range list {
		_, text := e.(string)
		ok = ok && text
	}
	return ok
}

// optionalText checks a member that is a string with at least one character, if it is there.
func optionalText(name string, v any) error {
	if s, ok := v.(string); v != nil && (!ok || s == "") {
		return cay.Errorf(cay.Invalid, "%s must be a non-empty string", name)
	}
	return nil
}

// mountPath checks the path of a mount. Errors: invalid.
func mountPath(v any) (string, error) {
	p, ok := v.(string)
	switch {
	case !ok || p == "":
		return "", cay.Errorf(cay.Invalid, "mountPath must be a non-empty string")
	case !path.IsAbs(p):
		return "", cay.Errorf(cay.Invalid, "mountPath must be an absolute path (start with /): %.200q", p)
	}
	return p, nil
}

func (h *handler) handleMount(w http.ResponseWriter, r *http.Request) error {
	var in mountRequest
	if err := api.ReadOpenJSON(w, r, &in); err != nil {
		return badJSON(err)
	}
	if err := in.check(); err != nil {
		return err
	}
	return noBuckets(codeMount, "nothing was mounted at %.200q", in.MountPath)
}

func (h *handler) handleUnmount(w http.ResponseWriter, r *http.Request) error {
	var in mountRequest
	if err := api.ReadOpenJSON(w, r, &in); err != nil {
		return badJSON(err)
	}
	p, err := mountPath(in.MountPath)
	if err != nil {
		return err
	}
	if path.Clean(p) == "/" {
		return cay.Errorf(cay.Invalid, "mountPath must not resolve to / (filesystem root): %.200q", p)
	}
	return noBuckets(codeUnmount, "nothing is mounted at %.200q", p)
}

// handleTunnel refuses tunnels: a preview is at an address of the daemon's, and no relay
// carries it to the internet.
func (h *handler) handleTunnel(w http.ResponseWriter, r *http.Request) error {
	port := r.PathValue("port")
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n < 1 || strings.HasPrefix(port, "+") {
		return cay.Errorf(cay.Invalid, "Invalid port %.50q: a number from 1 to 65535 is wanted", port)
	}
	if r.Method == http.MethodPost {
		var in struct {
			Name json.RawMessage `json:"name"`
		}
		if err := api.ReadOpenJSON(w, r, &in); err != nil {
			return badJSON(err)
		}
		var name string
		if len(in.Name) > 0 && json.Unmarshal(in.Name, &name) != nil {
			return cay.Errorf(cay.Invalid, "name must be a string when provided")
		}
	}
	return shaped(http.StatusNotImplemented, codeTunnel,
		cay.Errorf(cay.NotSupported, "cay has no tunnels: no relay makes port %s public on the internet", port).
			WithHint(`cay's previews serve ports: PATCH /v1/sandboxes/%s with {"ports":[{"port":%s}]}, whose answer has the URL`, r.PathValue("id"), port))
}
