package daemon

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
)

// writeCertificate makes a certificate for names in files of a directory.
func writeCertificate(t *testing.T, dir string, serial int64, names ...string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: names, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: pkcs8},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		modified := time.Unix(1e9+serial, 0) // clocks of file systems are coarse
		if err := os.Chtimes(path, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func serial(c *tls.Certificate) int64 { return c.Leaf.SerialNumber.Int64() }

// A certificate is read again when its files have changed, at most once a
// minute. If the new files cannot be read, the old certificate stays.
func TestCertificate_renewed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := writeCertificate(t, dir, 1, "a.test")
	c, err := openCertificate(cert, key, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	c.now = func() time.Time { return now }
	expect := func(what string, want int64) {
		t.Helper()
		if got := serial(c.get(t.Context())); got != want {
			t.Errorf("%s: certificate %d, want %d", what, got, want)
		}
	}
	expect("at first", 1)
	writeCertificate(t, dir, 2, "a.test")
	expect("within the minute", 1)
	now = now.Add(recheck)
	expect("after it", 2)
	if err := os.WriteFile(key, []byte("half of a k"), 0o600); err != nil {
		t.Fatal(err)
	}
	now = now.Add(recheck)
	expect("while it is being replaced", 2)
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	now = now.Add(recheck)
	expect("while it is not there", 2)
	writeCertificate(t, dir, 3, "a.test")
	now = now.Add(recheck)
	expect("when it is whole again", 3)
}

func TestTLSConfig(t *testing.T) {
	t.Parallel()
	isPreview := func(host string) bool { return strings.HasSuffix(host, ".preview.test") }
	log := slog.New(slog.DiscardHandler)
	cfg := config.Default()
	cfg.PreviewDomain = "Preview.test"
	cfg.TLSCert, cfg.TLSKey = writeCertificate(t, t.TempDir(), 1, "cay.test")
	if _, err := tlsConfig(cfg, isPreview, log); cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), "*.preview.test") {
		t.Errorf("a certificate that is not for previews: %v", err)
	}
	cfg.PreviewTLSCert, cfg.PreviewTLSKey = writeCertificate(t, t.TempDir(), 2, "*.preview.test")
	tc, err := tlsConfig(cfg, isPreview, log)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int64{"cay.test": 1, "": 1, "a.preview.test": 2} {
		c, err := tc.GetCertificate(&tls.ClientHelloInfo{ServerName: name})
		if err != nil || serial(c) != want {
			t.Errorf("%q gets certificate %d, %v", name, serial(c), err)
		}
	}
	cfg.PreviewTLSKey = cfg.TLSKey
	if _, err := tlsConfig(cfg, isPreview, log); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("a key of another certificate: %v", err)
	}
	// No authority issues certificates for *.localhost; the API's certificate
	// is served there, too.
	cfg = config.Default()
	cfg.TLSCert, cfg.TLSKey = writeCertificate(t, t.TempDir(), 4, "cay.test")
	if _, err := tlsConfig(cfg, isPreview, log); err != nil {
		t.Error(err)
	}
}
