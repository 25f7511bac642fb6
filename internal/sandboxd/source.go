package sandboxd

import (
	"context"
	"encoding/base64"
	"errors"
	"net/url"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// errSourceMissing is the cause of a creation that failed because its source could not be
// fetched.
var errSourceMissing = errors.New("source")

// fetchSource makes the guest of a sandbox that is being created fetch its source. No caller can
// reach the guest yet. Errors: invalid, source_unavailable.
func (e *Engine) fetchSource(ctx context.Context, m *session, r *store.Row) error {
	if r.Source == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.cfg.Limits.SourceTimeout,
		cay.Errorf(cay.SourceUnavailable, "the source was not fetched within %v", e.cfg.Limits.SourceTimeout))
	defer cancel()
	begun := e.clock.Mono()
	m.imageEnv, m.env = r.ImageEnv, r.Env
	req := guest.SourceRequest{Source: *r.Source, Env: m.environ()}
	if e.cfg.Trust != nil && r.Source.Type == sandbox.TarballSource {
		// The image need not contain any authority.
		req.Roots = string(e.certificates(r.Network)) + string(e.cfg.Trust.Public())
	}
	if err := m.guest.FetchSource(ctx, req); err != nil {
		return sourceError(*r.Source, startError(ctx, err))
	}
	e.cfg.Metrics.CreatePhase("source", e.clock.Mono()-begun)
	e.at("filled")
	return nil
}

// sourceError returns why a source could not be fetched, without the credentials used.
func sourceError(s sandbox.Source, err error) error {
	code := cay.Invalid
	switch cay.CodeOf(err) {
	case cay.SourceUnavailable, cay.Unavailable, cay.QuotaExceeded, cay.DeadlineExceeded, cay.Internal:
		code = cay.SourceUnavailable
	case cay.Canceled:
		return err
	}
	hide := secretsOf(s)
	out := cay.Errorf(code, "%w: %s", errSourceMissing, hide.Replace(err.Error()))
	var why *cay.Error
	if errors.As(err, &why) {
		out.Hint = hide.Replace(why.Hint)
	}
	return out
}

// secretsOf replaces a password in all forms in which programs print one, and the URL's
// query, which may be a credential, too. Other transformations of the secrets are not
// covered; only the sandbox's owner sees the message.
func secretsOf(s sandbox.Source) *strings.Replacer {
	const hidden = "(hidden)"
	var forms []string
	user, password := s.Username, s.Password
	if u, err := url.Parse(s.URL); err == nil {
		if u.RawQuery != "" {
			forms = append(forms, u.RawQuery, hidden)
		}
		if u.User != nil {
			user = u.User.Username()
			password, _ = u.User.Password()
		}
	}
	if password == "" {
		// A user without a password is a token.
		password, user = user, ""
	}
	if password == "" {
		return strings.NewReplacer(forms...)
	}
	return strings.NewReplacer(append(forms,
		password, hidden, url.QueryEscape(password), hidden, url.PathEscape(password), hidden, url.UserPassword("", password).String()[1:], hidden,
		base64.StdEncoding.EncodeToString([]byte(user+":"+password)), hidden,
		base64.StdEncoding.EncodeToString([]byte(password+":"+user)), hidden,
	)...)
}
