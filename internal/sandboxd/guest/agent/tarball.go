package agent

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// untar unpacks an archive from the web in a directory. It needs no program of the image.
func (s *Server) untar(ctx context.Context, req guest.SourceRequest, real, shown string, own owner) error {
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots(req)}, DisableCompression: true, DisableKeepAlives: true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, req.Source.URL, nil)
	if err != nil {
		return cay.Errorf(cay.Invalid, "source.url is no URL")
	}
	r.Header.Set("User-Agent", "cay")
	resp, err := (&http.Client{Transport: transport, CheckRedirect: followed}).Do(r)
	if ctx.Err() != nil {
		return &begunError{ctx.Err()}
	}
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = fmt.Errorf("%s: %w", withoutQuery(failed.URL), failed.Err)
	}
	if err != nil {
		return cay.Errorf(cay.Unavailable, "%w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		code := cay.Invalid
		if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500 {
			code = cay.Unavailable
		}
		return cay.Errorf(code, "the server answers with status %d", resp.StatusCode)
	}
	body := bufio.NewReaderSize(resp.Body, guest.CopyBuffer)
	format, err := archiveFormat(body)
	if err != nil {
		return err
	}
	x := &extractor{ctx: ctx, own: own, taking: taking{memory: &s.memory}}
	if x.root, err = openDir(unix.AT_FDCWD, real, true); err != nil {
		return fileError("extract to", shown, err)
	}
	defer x.root.Close()
	defer x.leaveDirs()
	if err := x.extract(body, format); err != nil {
		return fileError("extract to", shown, err)
	}
	return nil
}

// followed allows a redirection to be followed. It removes the Referer header, because
// the query of a URL may be as secret as a password.
func followed(r *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("it is redirected again and again")
	}
	r.Header.Del("Referer")
	return nil
}

// withoutQuery returns a URL without user and query, fit to show to people.
func withoutQuery(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "a URL"
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}

// roots returns the image's authorities, as programs of the image find them, and the
// authorities in the request.
func roots(req guest.SourceRequest) *x509.CertPool {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // the image has no bundle
	}
	if file := req.Env["SSL_CERT_FILE"]; file != "" {
		if data, err := os.ReadFile(file); err == nil { // without it the rest has to do
			pool.AppendCertsFromPEM(data)
		}
	}
	pool.AppendCertsFromPEM([]byte(req.Roots))
	return pool
}

// archiveFormat tells an archive's format by how it begins.
func archiveFormat(r *bufio.Reader) (sandbox.ArchiveFormat, error) {
	head, err := r.Peek(6)
	if err != nil {
		return "", cay.Errorf(cay.Invalid, "the archive ends in the middle: %w", err)
	}
	for magic, name := range map[string]string{"\x28\xb5\x2f\xfd": "zstd", "\xfd7zXZ\x00": "xz", "BZh": "bzip2", "PK\x03\x04": "zip"} {
		if len(head) >= len(magic) && string(head[:len(magic)]) == magic {
			return "", cay.Errorf(cay.Invalid, "the archive is %s, which is not supported", name).WithHint("offer it as tar or tar.gz")
		}
	}
	if string(head[:2]) == "\x1f\x8b" {
		return sandbox.TarGz, nil
	}
	return sandbox.Tar, nil
}
