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

// Owner describes the owner of a credential. The zero value is the operator.
type Owner struct {
	// ID distinguishes the credentials of a provider; the operator chooses it.
	ID string
	// BYOK says that a caller brought the credential.
	BYOK bool
	// ZeroRetention says that the account's contract with the provider excludes
	// retention.
	ZeroRetention bool
	// Models maps the catalogue's model ids to the account's names; nil for the usual
	// names.
	Models map[string]string
}

// Mapped is implemented by the credentials of this package, besides Credential.
type Mapped interface {
	Credential
	// ModelFor returns the account's name of a model of the catalogue, "" for the usual
	// name.
	ModelFor(id string) string
	// ZeroRetention reports whether the account's contract excludes retention.
	ZeroRetention() bool
}

// owned is embedded in all credentials. String returns the kind and the ID.
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

// String returns the kind of the credential and its ID.
func (o *owned) String() string { return o.what + " " + o.owner.ID }

// Format is String for every verb.
func (o *owned) Format(f fmt.State, _ rune) { io.WriteString(f, o.String()) } // fmt ignores the error as well

// MarshalText is String.
func (o *owned) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// LogValue is String.
func (o *owned) LogValue() slog.Value { return slog.StringValue(o.String()) }

// header sends a secret in a header.
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

// Header returns the credential that sends the secret in a header of the given name, such
// as x-api-key, x-goog-api-key, api-key.
func Header(o Owner, name string, s Secret) Credential {
	return &header{owned{o, "key"}, name, "", s}
}

// Authorize implements Credential.
func (h *header) Authorize(_ context.Context, r *http.Request, _ []byte) error {
	r.Header.Set(h.name, h.prefix+h.secret.reveal())
	return nil
}

// moveTo replaces the URL of r by a changed copy, because other requests may share the
// URL.
func moveTo(r *http.Request, change func(u *url.URL)) {
	u := *r.URL
	change(&u)
	r.URL, r.Host = &u, ""
}

// setPath sets the path of u to an escaped path.
func setPath(u *url.URL, escaped string) error {
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return err
	}
	u.Path, u.RawPath = path, escaped
	return nil
}

// place matches valid names of a region, location, project or resource, which become
// parts of a host name or path.
var place = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?$`)
})

// failed returns the Error for a credential that could not be used.
func failed(what string, cause error) *hub.Error {
	return &hub.Error{Kind: hub.UpstreamFailed, Code: "credential_failed", Message: what, Cause: cause}
}
