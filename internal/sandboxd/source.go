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

// errUnfilled is how a creation ends whose source could not be fetched.
var errUnfilled = errors.New("source")

// fill has the guest of a sandbox that is being created fetch its source. Nobody
// else can reach it yet. Errors: invalid, unavailable.
func (e *Engine) fill(ctx context.Context, m *session, r *store.Row) error {
	if r.Source == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.cfg.Limits.SourceTimeout,
		cay.Errorf(cay.Unavailable, "the source was not fetched within %v", e.cfg.Limits.SourceTimeout))
	defer cancel()
	begun := e.clock.Mono()
	m.imageEnv, m.env = r.ImageEnv, r.Env
	req := guest.SourceRequest{Source: *r.Source, Env: m.environ()}
	if e.cfg.Trust != nil && r.Source.Type == sandbox.TarballSource {
		// The image need not know any authority.
		req.Roots = string(e.certificates(r.Network)) + string(e.cfg.Trust.Public())
	}
	if err := m.guest.Fill(ctx, req); err != nil {
		return sourceError(*r.Source, startError(ctx, err))
	}
	e.cfg.Metrics.CreatePhase("source", e.clock.Mono()-begun)
	e.at("filled")
	return nil
}

// sourceError says why a source could not be fetched, and not with what.
func sourceError(s sandbox.Source, err error) error {
	code := cay.Invalid
	switch cay.CodeOf(err) {
	case cay.Unavailable, cay.QuotaExceeded, cay.DeadlineExceeded, cay.Internal:
		code = cay.Unavailable
	case cay.Canceled:
		return err
	}
	hide := secretsOf(s)
	out := cay.Errorf(code, "%w: %s", errUnfilled, hide.Replace(err.Error()))
	var why *cay.Error
	if errors.As(err, &why) {
		out.Hint = hide.Replace(why.Hint)
	}
	return out
}

// secretsOf replaces a password in the forms in which programs show one, and the
// URL's query, which may be as good as one. What programs do with it beyond that
// only its owner is told.
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
