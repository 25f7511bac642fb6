package agent_test

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/guest/agent"
)

// cert returns a PEM block in place of a certificate: the agent does not parse the
// content.
func cert(name string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(strings.Repeat(name+" ", 20))}))
}

// certNames are the names of the certificates in a text, in order.
func certNames(text string) string {
	var all []string
	for rest := []byte(text); ; {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			return strings.Join(all, " ")
		}
		name, _, _ := strings.Cut(string(b.Bytes), " ")
		all = append(all, name)
	}
}

// image makes a root directory. A value that begins with -> is a link.
func image(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "->"); ok {
			err = os.Symlink(target, name)
		} else {
			err = os.WriteFile(name, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// read reads a file below a root directory, with links resolved within it.
func read(t *testing.T, root, name string) string {
	t.Helper()
	for range 10 {
		target, err := os.Readlink(filepath.Join(root, name))
		if err != nil {
			break
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(name), target)
		}
		name = target
	}
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func trusting(t *testing.T, root string) *agent.Server {
	t.Helper()
	s, err := agent.New(agent.Config{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

const (
	debianBundle = "/etc/ssl/certs/ca-certificates.crt"
	fedoraBundle = "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"
	debianAnchor = "/usr/local/share/ca-certificates"
	fedoraAnchor = "/etc/pki/ca-trust/source/anchors"
)

func TestTrust(t *testing.T) {
	t.Parallel()
	// Without a newline at the end, as images have it.
	public := strings.TrimSuffix(cert("p1")+cert("p2"), "\n")
	for name, tt := range map[string]struct {
		files map[string]string
		// bundle is the file that gets the section, if it is not the target of the link
		// that the test looks at.
		bundle string
		others []string // names it has, too
		anchor []string
		public string // sent along
	}{
		"Debian": {
			files:  map[string]string{debianBundle: public, debianAnchor + "/README": ""},
			bundle: debianBundle, anchor: []string{debianAnchor},
		},
		"Alpine": {
			files:  map[string]string{debianBundle: public, "/etc/ssl/cert.pem": "->certs/ca-certificates.crt"},
			bundle: debianBundle, others: []string{"/etc/ssl/cert.pem"}, anchor: []string{debianAnchor},
		},
		"Alpine without ca-certificates": {
			files:  map[string]string{"/etc/ssl/cert.pem": public},
			bundle: "/etc/ssl/cert.pem", anchor: []string{debianAnchor},
		},
		"Fedora": {
			files: map[string]string{
				fedoraBundle: public, "/etc/pki/tls/certs/ca-bundle.crt": "->" + fedoraBundle,
				"/etc/ssl/certs": "->../pki/tls/certs", fedoraAnchor + "/README": "",
				"/etc/pki/tls/certs/ca-certificates.crt": "->" + fedoraBundle,
			},
			bundle: fedoraBundle, others: []string{"/etc/pki/tls/certs/ca-bundle.crt"}, anchor: []string{debianAnchor, fedoraAnchor},
		},
		"openSUSE": {
			files:  map[string]string{"/var/lib/ca-certificates/ca-bundle.pem": public, "/etc/ssl/ca-bundle.pem": "->../../var/lib/ca-certificates/ca-bundle.pem"},
			bundle: "/var/lib/ca-certificates/ca-bundle.pem", anchor: []string{debianAnchor},
		},
		"no bundle": {
			files: map[string]string{"/etc/passwd": ""}, public: public,
			bundle: debianBundle, anchor: []string{debianAnchor},
		},
		"an empty bundle": {
			files: map[string]string{debianBundle: "\n"}, public: public,
			bundle: debianBundle, anchor: []string{debianAnchor},
		},
		"left by a boot that was cut short": {
			files: map[string]string{debianBundle: public, "/etc/ssl/certs/.cay-ca-certificates.crt/x": "",
				"/etc/cay/trust/.cay-bundle.pem": "->/etc/passwd", "/etc/cay/trust/.cay-extra.pem": "->/etc/passwd"},
			bundle: debianBundle, anchor: []string{debianAnchor},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := image(t, tt.files)
			s := trusting(t, root)
			check := func(want string) {
				t.Helper()
				for _, name := range append([]string{tt.bundle, guest.BundleFile}, tt.others...) {
					if got := certNames(read(t, root, name)); got != "p1 p2 "+want {
						t.Errorf("%s has %q, want p1 p2 %s", name, got, want)
					}
				}
				if got := certNames(read(t, root, guest.ExtraFile)); got != want {
					t.Errorf("%s has %q, want %q", guest.ExtraFile, got, want)
				}
				for _, dir := range tt.anchor {
					files, err := filepath.Glob(root + dir + "/*.crt")
					if err != nil {
						t.Fatal(err)
					}
					var got []string
					for _, f := range files {
						got = append(got, certNames(read(t, "/", f)))
					}
					if strings.Join(got, " ") != want {
						t.Errorf("%s has %q, want %q", dir, got, want)
					}
				}
				left, err := filepath.Glob(root + "/etc/*/.cay-*")
				if err != nil || len(left) > 0 {
					t.Errorf("left: %q, %v", left, err)
				}
			}
			for _, want := range []string{"a b", "a b", "b c d", "c"} {
				var sent string
				for name := range strings.FieldsSeq(want) {
					sent += cert(name)
				}
				res := s.Trust(guest.TrustRequest{Certificates: sent, Public: tt.public})
				if res != (guest.Trust{ID: guest.TrustID([]byte(sent))}) {
					t.Fatalf("got %+v", res)
				}
				check(want)
			}
		})
	}
}

// Steps that cannot be done are reported, and the other steps are done.
func TestTrust_problems(t *testing.T) {
	t.Parallel()
	pipe := func(name string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			if err := os.MkdirAll(filepath.Dir(root+name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mkfifo(root+name, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, tt := range map[string]struct {
		files  map[string]string
		change func(t *testing.T, root string)
		ok     bool   // the two files are there
		bundle string // the content of BundleFile afterwards
		says   string
	}{
		"a pipe for a bundle": {
			files: map[string]string{"/etc/ssl/cert.pem": cert("p")}, change: pipe(debianBundle),
			ok: true, bundle: "p a", says: "not a regular file",
		},
		"a pipe for our file":      {files: map[string]string{debianBundle: cert("p")}, change: pipe(guest.ExtraFile), ok: true, bundle: "p a"},
		"a pipe for an anchor":     {files: map[string]string{debianBundle: cert("p")}, change: pipe(debianAnchor + "/cay-1.crt"), ok: true, bundle: "p a"},
		"a link elsewhere":         {files: map[string]string{debianBundle: "->/home/me/bundle", "/home/me/bundle": cert("p"), "/etc/ssl/cert.pem": cert("q")}, ok: true, bundle: "q a", says: "/home/me/bundle"},
		"a link to a process":      {files: map[string]string{debianBundle: cert("p"), debianAnchor: "->/proc/1/root"}, ok: true, bundle: "p a", says: debianAnchor},
		"links in a circle":        {files: map[string]string{debianBundle: cert("p"), "/etc/ssl/cert.pem": "->cert.pem"}, ok: true, bundle: "p a", says: "too many levels"},
		"a file for a directory":   {files: map[string]string{debianBundle: cert("p"), "/usr/local": "x"}, ok: true, bundle: "p a", says: "not a directory"},
		"a directory for our file": {files: map[string]string{debianBundle: cert("p"), guest.ExtraFile + "/x": ""}, says: guest.ExtraFile},
		"a file for our directory": {files: map[string]string{debianBundle: cert("p"), "/etc/cay": ""}, says: guest.ExtraFile},
		"our directory elsewhere":  {files: map[string]string{debianBundle: cert("p"), "/etc/cay": "->/home/me"}, says: "/home/me"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := image(t, tt.files)
			if tt.change != nil {
				tt.change(t, root)
			}
			s := trusting(t, root)
			res := s.Trust(guest.TrustRequest{Certificates: cert("a")})
			if res.ID != "" != tt.ok || !strings.Contains(res.Problem, tt.says) || tt.says == "" && res.Problem != "" || strings.Contains(res.Problem, root) {
				t.Fatalf("got %+v", res)
			}
			if tt.ok {
				if got := certNames(read(t, root, guest.BundleFile)); got != tt.bundle {
					t.Errorf("%s has %q, want %q", guest.BundleFile, got, tt.bundle)
				}
			}
			if got, err := os.ReadFile(root + "/home/me/bundle"); err == nil && certNames(string(got)) != "p" {
				t.Errorf("a file elsewhere was written: %q", got)
			}
		})
	}
}

// An image without a bundle stays unchanged until the public authorities are sent.
func TestTrust_bare(t *testing.T) {
	t.Parallel()
	root := image(t, map[string]string{"/etc/passwd": ""})
	s := trusting(t, root)
	if res := s.Trust(guest.TrustRequest{Certificates: cert("a")}); res != (guest.Trust{Bare: true}) {
		t.Errorf("got %+v", res)
	}
	if entries, err := os.ReadDir(root + "/etc"); err != nil || len(entries) != 1 {
		t.Errorf("got %v, %v", entries, err)
	}
}

func TestTrust_refuses(t *testing.T) {
	t.Parallel()
	s := trusting(t, image(t, map[string]string{debianBundle: cert("p")}))
	for name, certs := range map[string]string{
		"none": "", "no certificate": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY"})),
		"too many": strings.Repeat(cert("a"), 4097), "too large": strings.Repeat("#", guest.MaxTrust+1),
	} {
		if res := s.Trust(guest.TrustRequest{Certificates: certs}); res.ID != "" || res.Bare || res.Problem == "" {
			t.Errorf("%s: got %+v", name, res)
		}
	}
}

// Over the protocol, and in the health.
func TestTrust_client(t *testing.T) {
	t.Parallel()
	root := image(t, map[string]string{debianBundle: cert("p")})
	c, _ := serve(t, func(cfg *agent.Config) { cfg.Root = root })
	if h, err := c.Health(t.Context()); err != nil || h.Trust != (guest.Trust{}) {
		t.Errorf("got %+v, %v", h.Trust, err)
	}
	want := guest.Trust{ID: guest.TrustID([]byte(cert("a")))}
	if got, err := c.Trust(t.Context(), guest.TrustRequest{Certificates: cert("a")}); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	if h, err := c.Health(t.Context()); err != nil || h.Trust != want {
		t.Errorf("got %+v, %v", h.Trust, err)
	}
	if got := certNames(read(t, root, debianBundle)); got != "p a" {
		t.Errorf("the bundle has %q", got)
	}
}

// A machine that starts from saved files trusts the same certificates without writing any
// file, so that its disk equals the saved disk. Files that users have changed are
// repaired.
func TestTrust_again(t *testing.T) {
	t.Parallel()
	public := cert("public")
	for name, root := range map[string]string{
		"with a bundle":    image(t, map[string]string{debianBundle: public, debianAnchor + "/README": ""}),
		"without a bundle": image(t, nil),
	} {
		t.Run(name, func(t *testing.T) {
			req := guest.TrustRequest{Certificates: cert("ours"), Public: public}
			files := func() map[string]os.FileInfo {
				all := map[string]os.FileInfo{}
				err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
					all[path] = info
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				return all
			}
			install := func() {
				if got := trusting(t, root).Trust(req); got.Problem != "" || got.ID == "" {
					t.Fatalf("trusted: %+v", got)
				}
			}
			install()
			before := files()
			install()
			for path, info := range files() {
				if was := before[path]; was == nil || !os.SameFile(was, info) || !was.ModTime().Equal(info.ModTime()) {
					t.Errorf("%s was written again", path)
				}
			}
			for what, change := range map[string]func(path string) error{
				"mode": func(path string) error { return os.Chmod(path, 0o600) },
				"content": func(path string) error {
					return os.WriteFile(path, []byte(strings.Repeat("x", len(cert("ours")))), 0o644)
				},
				"link":    func(path string) error { return os.Link(path, filepath.Join(root, "link")) },
				"removed": os.Remove,
			} {
				path := filepath.Join(root, guest.ExtraFile)
				if err := change(path); err != nil {
					t.Fatal(err)
				}
				install()
				if info, err := os.Lstat(path); err != nil || info.Mode() != 0o644 || read(t, root, guest.ExtraFile) != cert("ours") {
					t.Errorf("%s was changed, and it is %v, %v", what, info, err)
				}
			}
		})
	}
}
