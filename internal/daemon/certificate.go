package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
)

// recheck is how long a certificate is served before the next handshake checks
// its files again.
const recheck = time.Minute

// certificate is a certificate in files that are replaced when it is renewed.
type certificate struct {
	cert, key string // paths
	log       *slog.Logger
	now       func() time.Time

	current atomic.Pointer[tls.Certificate]
	mu      sync.Mutex // guards the fields below; without the lock serve the current ones
	checked time.Time
	seen    [2]fileState
}

// fileState identifies a version of a file.
type fileState struct {
	modified time.Time
	size     int64
}

// openCertificate reads a certificate. Errors: invalid.
func openCertificate(cert, key string, log *slog.Logger) (*certificate, error) {
	c := &certificate{cert: cert, key: key, log: log, now: time.Now}
	c.checked = c.now()
	seen, err := c.files()
	if err == nil {
		err = c.load()
	}
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the certificate %s with the key %s cannot be used: %w", cert, key, err)
	}
	c.seen = seen
	return c, nil
}

func (c *certificate) files() (seen [2]fileState, err error) {
	for i, path := range []string{c.cert, c.key} {
		info, err := os.Stat(path)
		if err != nil {
			return seen, err
		}
		seen[i] = fileState{info.ModTime(), info.Size()}
	}
	return seen, nil
}

func (c *certificate) load() error {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err != nil {
		return err
	}
	c.current.Store(&pair)
	return nil
}

// get returns the certificate, after reading it again if it has changed and is
// readable.
func (c *certificate) get(ctx context.Context) *tls.Certificate {
	if c.mu.TryLock() {
		defer c.mu.Unlock()
		if now := c.now(); now.Sub(c.checked) >= recheck {
			c.checked = now
			c.renew(ctx)
		}
	}
	return c.current.Load()
}

func (c *certificate) renew(ctx context.Context) {
	seen, err := c.files()
	if err == nil {
		if seen == c.seen {
			return
		}
		err = c.load()
	}
	if err != nil { // as while it is being replaced: the one before goes on until the next look
		c.log.WarnContext(ctx, "certificate is not renewed", "file", c.cert, "error", err)
		return
	}
	c.seen = seen
	c.log.InfoContext(ctx, "certificate renewed", "file", c.cert)
}

// tlsConfig returns a TLS configuration with cfg's certificates: names below
// the domain for previews get the certificate for previews, other names the
// main one. Errors: invalid, also if a domain for previews is configured and no
// certificate covers its names.
func tlsConfig(cfg config.Config, isPreview func(host string) bool, log *slog.Logger) (*tls.Config, error) {
	main, err := openCertificate(cfg.TLSCert, cfg.TLSKey, log)
	if err != nil {
		return nil, err
	}
	previews := main
	if cfg.PreviewTLSCert != "" {
		if previews, err = openCertificate(cfg.PreviewTLSCert, cfg.PreviewTLSKey, log); err != nil {
			return nil, err
		}
	}
	if cfg.PreviewDomain != config.Default().PreviewDomain {
		name := "*." + strings.ToLower(cfg.PreviewDomain)
		if err := covers(previews.current.Load(), strings.Replace(name, "*", "label", 1)); err != nil {
			return nil, cay.Errorf(cay.Invalid, "the certificate %s is not for %s: %w", previews.cert, name, err).
				WithHint("set preview_tls_cert and preview_tls_key to one that is")
		}
	}
	return &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		if isPreview(hello.ServerName) {
			return previews.get(hello.Context()), nil
		}
		return main.get(hello.Context()), nil
	}}, nil
}

func covers(c *tls.Certificate, name string) error {
	leaf := c.Leaf
	if leaf == nil {
		var err error
		if leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
			return err
		}
	}
	return leaf.VerifyHostname(name)
}
