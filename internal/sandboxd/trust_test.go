package sandboxd_test

import (
	"context"
	"encoding/pem"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// cert returns a PEM block that stands for a certificate: guests do not parse it further.
func cert(name string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(name)}))
}

// trustOf is a Trust with the operator's certificates for every guest, and the daemon's
// authority for guests whose policy has rules.
type trustOf struct {
	mu    sync.Mutex
	added string
}

func (t *trustOf) set(added string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.added = added
}

func (t *trustOf) Certificates(n sandbox.Network) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.added
	if n.Strict {
		all += cert("daemon")
	}
	return []byte(all)
}

func (t *trustOf) Authority() []byte { return []byte(cert("authority")) }

func (t *trustOf) Public() []byte { return []byte(cert("public")) }

// certNames returns the names of the certificates in a text.
func certNames(text []byte) string {
	var all []string
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			return strings.Join(all, " ")
		}
		all = append(all, string(b.Bytes))
	}
}

// bundled is an image with a bundle, and with an environment variable that names another
// bundle.
type bundled struct{ *sandboxtest.Images }

func withBundle(t *testing.T) bundled {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "etc/ssl"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "etc/ssl/cert.pem"), []byte(cert("image")), 0o644); err != nil {
		t.Fatal(err)
	}
	return bundled{checktest.Must(sandboxtest.NewImages(dir))(t)}
}

func (b bundled) Lease(ctx context.Context, digest string) (*sandboxd.Lease, error) {
	return b.Ensure(ctx, "", digest)
}

func (b bundled) Ensure(ctx context.Context, teamID, ref string) (*sandboxd.Lease, error) {
	l, err := b.Images.Ensure(ctx, teamID, ref)
	if err == nil {
		l.Image.Config.Env = append(l.Image.Config.Env, "SSL_CERT_FILE=/image.pem", "PIP_CERT=/image.pem")
	}
	return l, err
}

// trusting is an engine with a Trust.
type trusting struct {
	*sandboxtest.Harness
	trust *trustOf
	log   *strings.Builder // read when the engine is idle
}

func startTrusting(t *testing.T, added string, change ...func(*sandboxd.Config)) trusting {
	t.Helper()
	trust, log := &trustOf{added: added}, &strings.Builder{}
	change = append([]func(*sandboxd.Config){func(c *sandboxd.Config) {
		c.Trust, c.Images = trust, withBundle(t)
		c.Logger = slog.New(slog.NewTextHandler(log, nil))
	}}, change...)
	h, _ := startFake(t, change...)
	return trusting{h, trust, log}
}

func (h trusting) create(t *testing.T, p sandbox.CreateParams) string {
	t.Helper()
	return checktest.Must(h.Create(defaultCaller(t), p))(t).ID
}

// bundle returns the authorities that a guest trusts, "" if none were installed.
func (h trusting) bundle(t *testing.T, id, file string) string {
	t.Helper()
	r, _, err := h.ReadFile(defaultCaller(t), id, file, sandbox.ReadParams{})
	if cay.CodeOf(err) == cay.FileNotFound {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	return certNames(checktest.Must(io.ReadAll(r))(t))
}

// variable returns a variable of a command's environment.
func (h trusting) variable(t *testing.T, id, name string, env map[string]string) string {
	t.Helper()
	out := checktest.Must(h.Exec(defaultCaller(t), id, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo $" + name}, Env: env}))(t)
	return strings.TrimSpace(sandboxtest.ReadText(t, out))
}

func (h trusting) expect(t *testing.T, id, trusted string) {
	t.Helper()
	if got := h.bundle(t, id, guest.ExtraFile); got != trusted {
		t.Errorf("the guest was given %q, want %q", got, trusted)
	}
	want := ""
	if trusted != "" {
		want = guest.ExtraFile
	}
	if got := h.variable(t, id, "NODE_EXTRA_CA_CERTS", nil); got != want {
		t.Errorf("commands have NODE_EXTRA_CA_CERTS=%q, want %q", got, want)
	}
}

var strict = sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "example.com"}}, Strict: true}

func TestTrust(t *testing.T) {
	t.Parallel()
	t.Run("Start", func(t *testing.T) {
		t.Parallel()
		h := startTrusting(t, cert("a"))
		plain, opened := h.create(t, sandbox.CreateParams{}), h.create(t, sandbox.CreateParams{Network: strict})
		h.expect(t, plain, "a")
		h.expect(t, opened, "a daemon")
		// BundleFile is a link to this file, which a fake machine resolves on the host.
		if got := h.bundle(t, opened, "/etc/ssl/cert.pem"); got != "image a daemon" {
			t.Errorf("the image's bundle has %q", got)
		}
	})
	t.Run("Nothing", func(t *testing.T) {
		t.Parallel()
		h := startTrusting(t, "")
		id := h.create(t, sandbox.CreateParams{})
		h.expect(t, id, "")
		if got := h.variable(t, id, "PIP_CERT", nil); got != "/image.pem" {
			t.Errorf("PIP_CERT=%q", got)
		}
	})
	t.Run("Environment", func(t *testing.T) {
		t.Parallel()
		h := startTrusting(t, cert("a"))
		id := h.create(t, sandbox.CreateParams{Env: map[string]string{"PIP_CERT": "/mine.pem"}})
		for name, want := range map[string]string{"SSL_CERT_FILE": guest.BundleFile, "PIP_CERT": "/mine.pem", "CURL_CA_BUNDLE": "/command.pem"} {
			if got := h.variable(t, id, name, map[string]string{"CURL_CA_BUNDLE": "/command.pem"}); got != want {
				t.Errorf("%s=%q, want %q", name, got, want)
			}
		}
	})
	t.Run("ImageWithoutBundle", func(t *testing.T) {
		t.Parallel()
		h := startTrusting(t, cert("a"), func(c *sandboxd.Config) {
			c.Images = checktest.Must(sandboxtest.NewImages(t.TempDir()))(t)
		})
		id := h.create(t, sandbox.CreateParams{})
		h.expect(t, id, "a")
		if got := h.bundle(t, id, "/etc/ssl/certs/ca-certificates.crt"); got != "public a" {
			t.Errorf("the bundle has %q", got)
		}
	})
	t.Run("TooManyForTheStart", func(t *testing.T) {
		t.Parallel()
		large := strings.Repeat("x", guest.MaxConfigCertificates)
		h := startTrusting(t, cert(large))
		h.expect(t, h.create(t, sandbox.CreateParams{}), large)
	})
	t.Run("FailedStart", func(t *testing.T) {
		t.Parallel()
		h := startTrusting(t, cert("a"), func(c *sandboxd.Config) {
			l := checktest.Must(c.Images.Lease(t.Context(), "x"))(t)
			defer l.Release()
			if err := os.WriteFile(filepath.Join(l.Path, "etc/cay"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		})
		id := h.create(t, sandbox.CreateParams{})
		if got := h.variable(t, id, "SSL_CERT_FILE", nil); got != "/image.pem" {
			t.Errorf("SSL_CERT_FILE=%q", got)
		}
		h.Engine.Close()
		if !strings.Contains(h.log.String(), "not a directory") {
			t.Errorf("the log says %s", h.log)
		}
	})
	t.Run("Restart", func(t *testing.T) {
		t.Parallel()
		h := startTrusting(t, cert("a"))
		running, paused := h.create(t, sandbox.CreateParams{Network: strict}), h.create(t, sandbox.CreateParams{})
		checktest.Must(h.Pause(defaultCaller(t), paused))(t)
		h.trust.set(cert("b"))
		h.Restart(t)
		h.expect(t, running, "b daemon")
		checktest.Must(h.Resume(defaultCaller(t), paused, sandbox.ResumeParams{}))(t)
		h.expect(t, paused, "b")
		// Certificates installed before remain, and commands get the variables for them.
		h.trust.set("")
		h.Restart(t)
		h.expect(t, paused, "b")
	})
}

// switching reports, when a policy is switched, the certificates that the guest trusts at
// that moment.
type switching struct {
	machine.Runtime
	switched func(n sandbox.Network)
}

type switchingInstance struct {
	machine.Instance
	r *switching
}

func (r *switching) Start(ctx context.Context, spec machine.Spec) (machine.Instance, error) {
	inst, err := r.Runtime.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &switchingInstance{inst, r}, nil
}

func (i *switchingInstance) SetNetwork(n sandbox.Network) error {
	i.r.switched(n)
	return i.Instance.SetNetwork(n)
}

func TestTrust_update(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T) (trusting, string, *[]string) {
		t.Helper()
		rt := &switching{}
		h := startTrusting(t, "", func(c *sandboxd.Config) { rt.Runtime, c.Runtime = c.Runtime, rt })
		id := h.create(t, sandbox.CreateParams{})
		var seen []string // the trusted certificates at each switch
		rt.switched = func(sandbox.Network) { seen = append(seen, h.bundle(t, id, guest.ExtraFile)) }
		return h, id, &seen
	}
	update := func(t *testing.T, h trusting, id string, n sandbox.Network) error {
		t.Helper()
		_, err := h.Update(defaultCaller(t), id, sandbox.UpdateParams{Network: &n})
		return err
	}
	t.Run("BeforeTheSwitch", func(t *testing.T) {
		t.Parallel()
		h, id, seen := setup(t)
		h.expect(t, id, "")
		if err := update(t, h, id, strict); err != nil {
			t.Fatal(err)
		}
		if len(*seen) != 1 || (*seen)[0] != "daemon" {
			t.Errorf("at the switches the guest trusted %q", *seen)
		}
		h.expect(t, id, "daemon")
		// No certificates are removed.
		if err := update(t, h, id, sandbox.Network{Mode: sandbox.DenyAll}); err != nil {
			t.Fatal(err)
		}
		h.expect(t, id, "daemon")
	})
	t.Run("Failed", func(t *testing.T) {
		t.Parallel()
		h, id, seen := setup(t)
		ctx := defaultCaller(t)
		checktest.Must(h.WriteFile(ctx, id, "/etc/cay", strings.NewReader(""), sandbox.WriteParams{}))(t)
		before := checktest.Must(h.Get(ctx, id))(t)
		err := update(t, h, id, strict)
		checktest.Code(t, err, cay.Unavailable)
		if !strings.Contains(err.Error(), guest.ExtraFile) {
			t.Errorf("got %v", err)
		}
		if s := checktest.Must(h.Get(ctx, id))(t); s.Network.Mode != before.Network.Mode || !s.UpdatedAt.Equal(before.UpdatedAt) || len(*seen) != 0 {
			t.Errorf("the update failed, and the policy is %+v; %d switches", s.Network, len(*seen))
		}
		if got := h.variable(t, id, "NODE_EXTRA_CA_CERTS", nil); got != "" {
			t.Errorf("commands have NODE_EXTRA_CA_CERTS=%q", got)
		}
	})
	t.Run("Paused", func(t *testing.T) {
		t.Parallel()
		h, id, _ := setup(t)
		ctx := defaultCaller(t)
		checktest.Must(h.Pause(ctx, id))(t)
		h.Config.Runtime.(*switching).switched = func(sandbox.Network) {}
		if err := update(t, h, id, strict); err != nil {
			t.Fatal(err)
		}
		checktest.Must(h.Resume(ctx, id, sandbox.ResumeParams{}))(t)
		h.expect(t, id, "daemon")
	})
}
