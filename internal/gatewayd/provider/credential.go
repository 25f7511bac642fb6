package provider

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"sync"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Owner is whose a credential is. The zero value is the operator's.
type Owner struct {
	// ID tells the credentials of a provider apart: a name of the operator's.
	ID string
	// BYOK says that it is a caller's own.
	BYOK bool
	// ZeroRetention says that its account has agreed with the provider that nothing
	// is kept.
	ZeroRetention bool
	// Models are the names its account has for models, by ours; nil where they are
	// the usual ones.
	Models map[string]string
}

// Mapped is what the credentials of this package are besides.
type Mapped interface {
	Credential
	// ModelFor returns the name the credential's account has for a model of the
	// catalogue, "" if it is the usual one.
	ModelFor(id string) string
	// ZeroRetention reports whether its account has agreed that nothing is kept.
	ZeroRetention() bool
}

// owned is the part all credentials have. Their String is its ID.
type owned struct {
	owner Owner
	what  string // for people
}

// ID implements Credential.
func (o *owned) ID() string { return o.owner.ID }

// BYOK implements Credential.
func (o *owned) BYOK() bool { return o.owner.BYOK }

// ModelFor implements Mapped.
func (o *owned) ModelFor(id string) string { return o.owner.Models[id] }

// ZeroRetention implements Mapped.
func (o *owned) ZeroRetention() bool { return o.owner.ZeroRetention }

// String says what kind of credential it is, and its ID.
func (o *owned) String() string { return o.what + " " + o.owner.ID }

// Format is String for every verb.
func (o *owned) Format(f fmt.State, _ rune) { io.WriteString(f, o.String()) } // fmt ignores it as well

// MarshalText is String.
func (o *owned) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// LogValue is String.
func (o *owned) LogValue() slog.Value { return slog.StringValue(o.String()) }

// header is a secret in a header.
type header struct {
	owned
	name, prefix string
	secret       Secret
}

var (
	_ Mapped = (*header)(nil)
	_ Mapped = (*awsKeys)(nil)
	_ Mapped = (*regional)(nil)
	_ Mapped = (*googleAccount)(nil)
	_ Mapped = (*azureKey)(nil)
)

// Bearer returns the credential "Authorization: Bearer secret".
func Bearer(o Owner, s Secret) Credential {
	return &header{owned{o, "bearer token"}, "Authorization", "Bearer ", s}
}

// Header returns the credential that is a header of its own: x-api-key,
// x-goog-api-key, api-key.
func Header(o Owner, name string, s Secret) Credential {
	return &header{owned{o, "key"}, name, "", s}
}

// Authorize implements Credential.
func (h *header) Authorize(_ context.Context, r *http.Request, _ []byte) error {
	r.Header.Set(h.name, h.prefix+h.secret.reveal())
	return nil
}

// moveTo sends r to a URL that differs from its own. The one it has may belong to
// others.
func moveTo(r *http.Request, change func(u *url.URL)) {
	u := *r.URL
	change(&u)
	r.URL, r.Host = &u, ""
}

// setPath gives u a path that is escaped.
func setPath(u *url.URL, escaped string) error {
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return err
	}
	u.Path, u.RawPath = path, escaped
	return nil
}

// place is what a region, location, project or resource may be called. It becomes
// a part of a host's name or of a path.
var place = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?$`)
})

// failed is an Error of a credential that could not be made use of.
func failed(what string, cause error) *hub.Error {
	return &hub.Error{Kind: hub.UpstreamFailed, Code: "credential_failed", Message: what, Cause: cause}
}
