package gvisor_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/network/trust"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// strictTrust provides an authority to guests with a strict policy.
type strictTrust []byte

func (s strictTrust) Certificates(n sandbox.Network) []byte {
	if n.Strict {
		return s
	}
	return nil
}

func (strictTrust) Authority() []byte { return nil }

func (strictTrust) Public() []byte { return trust.Public() }

// authority makes a certificate authority, and a server's certificate and key
// that are good for localhost.
func authority(t *testing.T) (ca, server, key []byte) {
	t.Helper()
	issue := func(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			signer = own
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, own.Public(), signer)
		if err != nil {
			t.Fatal(err)
		}
		return der, own
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	now := time.Now()
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Some Company"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	rootDER, rootKey := issue(root, root, nil)
	// Python requires a server's certificate to name the authority's key id.
	root, err := x509.ParseCertificate(rootDER)
	if err != nil {
		t.Fatal(err)
	}
	leafDER, leafKey := issue(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "a server"}, NotBefore: root.NotBefore, NotAfter: root.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: []string{"localhost"},
	}, root, rootKey)
	keyDER, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	return block("CERTIFICATE", rootDER), block("CERTIFICATE", leafDER), block("PRIVATE KEY", keyDER)
}

// TestTrust lets popular programs request a page from a server in the guest itself,
// before and after its authority is installed.
func TestTrust(t *testing.T) {
	t.Parallel()
	suite := config(t)
	imagetest.Acquire(t, "node24")
	var tool machine.Spec
	suite.Spec(&tool, &guest.Config{})
	ca, server, key := authority(t)
	h := sandboxtest.Start(t, newRuntime(t, t.TempDir()), func(c *sandboxd.Config) {
		c.Images = storeImages{imagetest.Open(t)}
		c.Tool = sandboxd.Tool{Mount: tool.Mounts[0], Init: tool.Init}
		c.Gateway, c.Nameserver = network.GatewayAddr, network.GatewayAddr
		c.Trust = strictTrust(ca)
	})
	ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
	strict := sandbox.Network{Mode: sandbox.Custom, Strict: true, Allow: []sandbox.Domain{{Name: "example.com"}}}

	create := func(n sandbox.Network) string {
		t.Helper()
		s, err := h.Create(ctx, sandbox.CreateParams{Network: n})
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string][]byte{"server.crt": server, "server.key": key} {
			if _, err := h.WriteFile(ctx, s.ID, name, strings.NewReader(string(content)), sandbox.WriteParams{}); err != nil {
				t.Fatal(err)
			}
		}
		out, err := h.Exec(ctx, s.ID, sandbox.CommandParams{Argv: []string{"openssl", "s_server", "-accept", "127.0.0.1:8443", "-www", "-cert", "server.crt", "-key", "server.key"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { out.Close() })
		for said := ""; !strings.Contains(said, "ACCEPT"); {
			ev, err := out.Next()
			if err != nil {
				t.Fatalf("the server said %q, then: %v", said, err)
			}
			said += string(ev.Data)
		}
		return s.ID
	}
	run := func(id, script string) (code int, said string) {
		t.Helper()
		out, err := h.Exec(ctx, id, sandbox.CommandParams{Argv: []string{"bash", "-c", script}})
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		for {
			ev, err := out.Next()
			if err == io.EOF {
				return code, said
			}
			if err != nil {
				t.Fatal(err)
			}
			said += string(ev.Data)
			if ev.Exit != nil {
				code = ev.Exit.Code
			}
		}
	}
	clients := map[string]string{
		"curl":     `curl -sS -o /dev/null https://localhost:8443/`,
		"openssl":  `openssl s_client -verify_return_error -connect localhost:8443 </dev/null`,
		"python":   `python3 -c 'import urllib.request as u; u.urlopen("https://localhost:8443/")'`,
		"requests": `python3 -c 'from pip._vendor import requests; requests.get("https://localhost:8443/").raise_for_status()'`,
		"node":     `node -e 'fetch("https://localhost:8443/").then(() => process.exit(0), e => { console.log(e); process.exit(1) })'`,
		// pip finds no package, but it has asked the server.
		"pip": `out=$(pip download --retries 0 --index-url https://localhost:8443/ nothing 2>&1); echo "$out"; ! grep -qi certificate <<<"$out"`,
		// Without environment variables, as outside a login or in a service.
		"curl without environment":   `env -i PATH="$PATH" curl -sS -o /dev/null https://localhost:8443/`,
		"python without environment": `env -i PATH="$PATH" python3 -c 'import urllib.request as u; u.urlopen("https://localhost:8443/")'`,
	}
	check := func(id string, trusted bool, names ...string) {
		t.Helper()
		for _, name := range names {
			if code, said := run(id, clients[name]); code == 0 != trusted {
				t.Errorf("%s: exit code %d, and the server should be trusted: %t: %s", name, code, trusted, said)
			}
		}
	}
	all := slices.Sorted(maps.Keys(clients))
	later := create(sandbox.Network{Mode: sandbox.AllowAll})
	check(later, false, all...)
	if _, err := h.Update(ctx, later, sandbox.UpdateParams{Network: &strict}); err != nil {
		t.Fatal(err)
	}
	check(later, true, all...)
	// The distribution's own update of certificates keeps our certificate, and the
	// others.
	if !testing.Short() { // it starts openssl a hundred times
		if code, said := run(later, `sudo update-ca-certificates && grep -c BEGIN /etc/cay/trust/bundle.pem`); code != 0 {
			t.Errorf("update-ca-certificates: exit code %d: %s", code, said)
		} else if lines := strings.Fields(said); len(lines[len(lines)-1]) < 3 {
			t.Errorf("the bundle has %s certificates: %s", lines[len(lines)-1], said)
		}
		check(later, true, "curl", "curl without environment")
	}
	check(create(strict), true, "curl", "node", "curl without environment")
}
