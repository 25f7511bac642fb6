package intercept

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

func verify(t *testing.T, roots []byte, ca *CA, name string, at time.Time) {
	t.Helper()
	c, err := ca.leaf(name)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	if _, err := c.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: pool, CurrentTime: at}); err != nil {
		t.Errorf("certificate for %s at %v: %v", name, at, err)
	}
}

func TestOpenCA(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	ca, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(filepath.Join(dir, keyFile))
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v", fi.Mode(), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("directory: %v, %v", entries, err)
	}
	long := strings.Repeat(strings.Repeat("a", 63)+".", 3) + "example.com"
	for _, name := range []string{"api.example.com", "_odd_.example.com", long} {
		verify(t, ca.PEM(), ca, name, time.Now())
	}
	if left := time.Until(ca.cert.NotAfter); left < 9*365*24*time.Hour {
		t.Errorf("valid for %v", left)
	}
	if err := os.Chmod(filepath.Join(dir, keyFile), 0o644); err != nil {
		t.Fatal(err)
	}
	again, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	if string(again.PEM()) != string(ca.PEM()) || !again.key.Equal(ca.key) {
		t.Error("opened again, the authority is another")
	}
	if fi, err := os.Stat(filepath.Join(dir, keyFile)); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("key file that others could read: %v, %v", fi.Mode(), err)
	}
	other, err := OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if other.cert.Subject.String() == ca.cert.Subject.String() {
		t.Error("two authorities have one name")
	}
}

// A crash between the two files leaves the key.
func TestOpenCA_KeyOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, certFile)); err != nil {
		t.Fatal(err)
	}
	again, err := OpenCA(dir)
	if err != nil || !again.key.Equal(ca.key) {
		t.Errorf("the key was not kept: %v", err)
	}
}

// Guests that trust the old certificate trust leaves signed after the renewal.
func TestOpenCA_Renewal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old, err := OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		after   time.Duration
		renewed bool
	}{{caLife - caRenewal - time.Hour, false}, {caLife - caRenewal + time.Hour, true}} {
		now := time.Now().Add(test.after)
		ca, err := openCA(dir, func() time.Time { return now })
		if err != nil {
			t.Fatal(err)
		}
		if renewed := string(ca.PEM()) != string(old.PEM()); renewed != test.renewed {
			t.Errorf("after %v: renewed %v", test.after, renewed)
		}
		verify(t, old.PEM(), ca, "api.example.com", now)
		verify(t, ca.PEM(), ca, "api.example.com", now)
	}
}

func TestOpenCA_Damaged(t *testing.T) {
	t.Parallel()
	keep := func(b []byte) []byte { return b }
	for _, test := range []struct {
		name      string
		cert, key func([]byte) []byte
		want      string
	}{
		{"key missing", keep, func([]byte) []byte { return nil }, "ca.key: it is missing"},
		{"key empty", keep, func([]byte) []byte { return []byte{} }, `ca.key: it has no PEM block "PRIVATE KEY"`},
		{"key cut off", keep, func(b []byte) []byte { return b[:len(b)/2] }, "ca.key: it has no PEM block"},
		{"key garbled", keep, func([]byte) []byte {
			return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("garbage")})
		}, "ca.key: it holds no private key"},
		{"certificate cut off", func(b []byte) []byte { return b[:len(b)/2] }, keep, "ca.pem: it has no PEM block"},
		{"certificate garbled", func([]byte) []byte {
			return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("garbage")})
		}, keep, "ca.pem: x509"},
		{"certificate of another", func([]byte) []byte {
			other, err := OpenCA(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			return other.PEM()
		}, keep, "ca.pem: it is not the certificate of the key"},
		{"certificate of a server", func([]byte) []byte {
			ca, err := OpenCA(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			leaf, err := ca.leaf("example.com")
			if err != nil {
				t.Fatal(err)
			}
			return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]})
		}, keep, "ca.pem: it is not the certificate of an authority"},
	} {
		dir := t.TempDir()
		if _, err := OpenCA(dir); err != nil {
			t.Fatal(err)
		}
		for file, change := range map[string]func([]byte) []byte{certFile: test.cert, keyFile: test.key} {
			path := filepath.Join(dir, file)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if text = change(text); text == nil {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		_, err := OpenCA(dir)
		if err == nil || !strings.Contains(err.Error(), test.want) || cay.CodeOf(err) != cay.Invalid {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// Concurrent callers share one leaf, and the number of cached leaves is bounded.
func TestCA_LeafCache(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var mu sync.Mutex
	ca, err := openCA(t.TempDir(), func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	serials := make([]string, 64)
	for i := range serials {
		wg.Go(func() {
			c, err := ca.leaf(fmt.Sprintf("n%d.example.com", i%4))
			if err != nil {
				t.Error(err)
				return
			}
			serials[i] = c.Leaf.SerialNumber.String()
		})
	}
	wg.Wait()
	for i, serial := range serials {
		if serial != serials[i%4] {
			t.Fatal("a leaf was made twice")
		}
	}
	first, err := ca.leaf("n0.example.com")
	if err != nil {
		t.Fatal(err)
	}
	if d := first.Leaf.NotAfter.Sub(now); d < leafLife-time.Minute || d > leafLife || now.Sub(first.Leaf.NotBefore) < clockSkew {
		t.Errorf("a leaf is valid from %v to %v", first.Leaf.NotBefore, first.Leaf.NotAfter)
	}
	mu.Lock()
	now = now.Add(leafLife - leafRenewal + time.Minute)
	mu.Unlock()
	if renewed, err := ca.leaf("n0.example.com"); err != nil || renewed == first {
		t.Errorf("a leaf near its end was used: %v", err)
	}
	for i := range maxLeaves + 10 {
		ca.entry(fmt.Sprintf("m%d.example.com", i))
		ca.entry("n0.example.com")
	}
	if n := ca.leaves.Len(); n != maxLeaves {
		t.Errorf("%d leaves are kept", n)
	}
	if !ca.leaves.Contains("n0.example.com") || ca.leaves.Contains("n1.example.com") {
		t.Error("the leaf used last went before one that was not used")
	}
}
