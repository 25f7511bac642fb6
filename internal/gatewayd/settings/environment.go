package settings

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// environment reads the daemon's environment variables, and the secrets that the settings
// refer to.
type environment struct {
	get func(string) string
	on  bool // providers are configured by variables; secrets may name variables anyway
}

// configures reports whether environment variables configure a kind. AWS keys alone do
// not count, because they are often set for other reasons.
func (e *environment) configures(k *provider.Known) bool {
	set := func(names []string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return e.get(n) != "" })
	}
	switch k.Kind {
	case "vertex":
		return e.get("GOOGLE_VERTEX_PROJECT") != "" && e.get("GOOGLE_APPLICATION_CREDENTIALS") != ""
	case "azure":
		return set(k.KeyEnv) && (e.get("AZURE_RESOURCE_NAME") != "" || e.get("AZURE_OPENAI_ENDPOINT") != "")
	}
	return set(k.KeyEnv) || k.Auth == provider.AuthNone && set(k.URLEnv)
}

// first returns the value of the first variable that is set.
func (e *environment) first(names ...string) string {
	if !e.on {
		return ""
	}
	for _, n := range names {
		if v := e.get(n); v != "" {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// header returns the headers of a map, with references resolved.
func (e *environment) header(refs map[string]*Ref) (http.Header, error) {
	head := make(http.Header, len(refs))
	for _, name := range slices.Sorted(maps.Keys(refs)) {
		value, err := e.secret(refs[name])
		if err != nil {
			return nil, at(err, name)
		}
		if !validHeader(name) {
			return nil, at(cay.Errorf(cay.Invalid, "%q is no name of a header that can be set", name), name)
		}
		head.Set(name, value)
	}
	return head, nil
}

// validHeader reports whether the operator may set a header: headers of the connection or
// of the body are excluded.
func validHeader(name string) bool {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`()<>@,;:\"/[]?={}`, r) }) {
		return false
	}
	switch http.CanonicalHeaderKey(name) {
	case "Host", "Content-Length", "Transfer-Encoding", "Connection", "Content-Type", "Content-Encoding", "Accept-Encoding", "Upgrade", "Te", "Trailer":
		return false
	}
	return true
}

// secret returns the text of a Ref, checked to be a valid header value.
func (e *environment) secret(r *Ref) (string, error) {
	if r == nil {
		return "", cay.Errorf(cay.Invalid, "it is empty")
	}
	text, err := r.resolve(e.get)
	if err != nil {
		return "", err
	}
	if _, err := provider.NewSecret(text); err != nil {
		return "", err
	}
	return strings.TrimSpace(text), nil
}
