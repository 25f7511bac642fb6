package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

var today = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)

// authority makes a certificate authority that is good until the given time.
func authority(t testing.TB, name string, until time.Time) []byte {
	t.Helper()
	return issue(t, name, until, true)
}

func issue(t testing.TB, name string, until time.Time, isCA bool) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: until.AddDate(-10, 0, 0), NotAfter: until, IsCA: isCA, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return encode(der)
}

// names are the common names of the certificates in a PEM text.
func names(t *testing.T, text []byte) string {
	t.Helper()
	var all []string
	for b := range blocks(text) {
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c.Subject.CommonName)
	}
	return strings.Join(all, " ")
}

func write(t testing.TB, name string, parts ...[]byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, bytes.Join(parts, nil), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func mozilla() []byte {
	for root := range bundle.Roots() {
		return encode(root.Certificate)
	}
	return nil
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	next := today.AddDate(1, 0, 0)
	corp, other, old, distro := authority(t, "corp", next), authority(t, "other", next), authority(t, "old", today.AddDate(0, 0, -1)), authority(t, "distro", next)
	damaged := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("not a certificate")})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("secret")})

	write(t, at("bundle"), mozilla(), []byte("# a comment\n"), corp, old, distro)
	write(t, at("second"), other)
	write(t, at("twice"), corp, other, corp)
	write(t, at("damaged"), damaged, corp, damaged[:40], []byte("\n"), other)
	write(t, at("keys"), key, corp)
	write(t, at("empty"))
	write(t, at("public"), mozilla())
	write(t, at("certs/a.pem"), corp)
	write(t, at("certs/b.pem"), other)
	server := issue(t, "server", next, false)
	write(t, at("server"), server)
	write(t, at("servers/snakeoil.pem"), server)
	write(t, at("certs/README"), []byte("no certificate"))
	write(t, at("certs/java/cacerts"), damaged)
	for link, to := range map[string]string{"certs/1234.0": "a.pem", "certs/gone": "/nowhere/x", "certs/far.pem": "../second"} {
		if err := os.Symlink(to, at(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(at("certs/pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, at("shipped/distro.crt"), distro)
	write(t, at("p11"), []byte("[p11-kit-object-v1]\nlabel: \"x\"\n"), distro, []byte("trusted: true\n"))

	for name, tt := range map[string]struct {
		src     sources
		extra   string
		trusted int // certificates in the pool; -1: Mozilla's set
		warning string
	}{
		"the first file there is": {sources{files: []string{at("none"), at("bundle"), at("second")}}, "corp distro", 4, ""},
		"not what is shipped":     {sources{files: []string{at("bundle")}, shipped: []string{at("shipped"), at("none")}}, "corp", 4, ""},
		"not what p11-kit has":    {sources{files: []string{at("bundle")}, shipped: []string{at("p11")}}, "corp", 4, ""},
		"SSL_CERT_FILE alone":     {sources{named: at("second"), files: []string{at("bundle")}}, "other", 1, ""},
		"directories":             {sources{files: []string{at("public")}, dirs: []string{at("none"), at("certs")}}, "corp other", 3, ""},
		"each once":               {sources{files: []string{at("twice")}, dirs: []string{at("certs")}}, "corp other", 2, ""},
		"damaged entries":         {sources{files: []string{at("damaged")}}, "corp other", 2, at("damaged")},
		"a server's in the file":  {sources{files: []string{at("server")}, dirs: []string{at("servers")}}, "server", 1, ""},
		"a server's elsewhere":    {sources{files: []string{at("public")}, dirs: []string{at("servers")}}, "", 2, ""},
		"no keys":                 {sources{files: []string{at("keys")}}, "corp", 1, ""},
		"only public ones":        {sources{files: []string{at("public")}}, "", 1, ""},
		"nothing":                 {sources{files: []string{at("none")}}, "", -1, ""},
		"an empty file":           {sources{files: []string{at("empty")}}, "", -1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, err := load(tt.src, today)
			if err != nil {
				t.Fatal(err)
			}
			if got := names(t, b.Extra()); got != tt.extra {
				t.Errorf("extra: %q, want %q", got, tt.extra)
			}
			if tt.trusted < 0 {
				tt.trusted = len(public())
			}
			//lint:ignore SA1019 it leaves out the system's authorities, and this pool is not the system's
			if got := len(b.Pool().Subjects()); got != tt.trusted {
				t.Errorf("%d certificates are trusted, want %d", got, tt.trusted)
			}
			if got := b.Warning(); !strings.HasPrefix(got, tt.warning) || tt.warning == "" && got != "" {
				t.Errorf("warning: %q, want %q", got, tt.warning)
			}
		})
	}
}

func TestLoad_refuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := unix.Mkfifo(at("pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, at("huge"), bytes.Repeat([]byte("#"), maxBytes+1))
	write(t, at("half/1"), bytes.Repeat([]byte("#"), maxBytes/2+1))
	write(t, at("half/2"), bytes.Repeat([]byte("#"), maxBytes/2+1))
	for name, tt := range map[string]struct {
		src  sources
		says string
	}{
		"missing SSL_CERT_FILE": {sources{named: at("none")}, "SSL_CERT_FILE"},
		"a pipe":                {sources{named: at("pipe")}, "not a regular file"},
		"a directory":           {sources{named: dir}, "not a regular file"},
		"a huge file":           {sources{files: []string{at("huge")}}, "8 MiB"},
		"a huge directory":      {sources{dirs: []string{at("half")}}, "8 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := load(tt.src, today)
			if cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestLoad_tooMany(t *testing.T) {
	t.Parallel()
	// All certificates share one signature: they are only parsed, and need only differ.
	block, _ := pem.Decode(authority(t, "many", today))
	var all []byte
	for i := range maxCertificates + 1 {
		der := bytes.Clone(block.Bytes)
		der[len(der)-1], der[len(der)-2] = byte(i), byte(i>>8)
		all = append(all, encode(der)...)
	}
	file := write(t, filepath.Join(t.TempDir(), "many"), all)
	if _, err := load(sources{files: []string{file}}, today); cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), "4096") {
		t.Errorf("got %v", err)
	}
}

func TestLoad_environment(t *testing.T) {
	dir := t.TempDir()
	next := time.Now().AddDate(1, 0, 0)
	t.Setenv("SSL_CERT_FILE", write(t, filepath.Join(dir, "file"), authority(t, "file", next)))
	write(t, filepath.Join(dir, "a/a"), authority(t, "a", next))
	write(t, filepath.Join(dir, "b/b"), authority(t, "b", next))
	t.Setenv("SSL_CERT_DIR", filepath.Join(dir, "a")+":"+filepath.Join(dir, "b"))
	b, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	if got := names(t, b.Extra()); got != "file a b" {
		t.Errorf("got %q", got)
	}
}

func TestPublic(t *testing.T) {
	t.Parallel()
	n := 0
	for b := range blocks(Public()) {
		if !public()[sha256.Sum256(b.Bytes)] {
			t.Error("a certificate is not in Mozilla's set")
		}
		n++
	}
	if n < 80 {
		t.Errorf("only %d certificates", n)
	}
}
