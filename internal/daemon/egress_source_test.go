package daemon_test

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/gittest"
	"github.com/cayhq/cay/sandbox"
)

// A source is fetched under its sandbox's network policy, and no other.
func TestEgress_Source(t *testing.T) {
	t.Parallel()
	const password = "S0urce-Passw0rd"
	s := openSite(t)
	repo := gittest.New(t)
	mux := http.NewServeMux()
	mux.Handle("/repo.git/", repo.Handler("deploy", password))
	mux.HandleFunc("/app.tar.gz", func(w http.ResponseWriter, _ *http.Request) {
		zip := gzip.NewWriter(w)
		tw := tar.NewWriter(zip)
		if err := tw.WriteHeader(&tar.Header{Name: "app/run", Mode: 0o755, Size: 2}); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(tw, "ok")
		tw.Close()
		zip.Close()
	})
	s.net.Serve(netip.MustParseAddr("93.184.0.80"), mux, "git.example.com")
	git := sandbox.Source{Type: sandbox.GitSource, URL: "https://git.example.com/repo.git", Username: "deploy", Password: password}
	tarball := sandbox.Source{Type: sandbox.TarballSource, URL: "https://git.example.com/app.tar.gz"}
	create := func(src sandbox.Source, policy sandbox.Network, p sandbox.CreateParams) (*sandbox.Sandbox, error) {
		p.Source, p.Network, p.Timeout = &src, policy, sandbox.Duration(10*time.Minute)
		return s.Create(t.Context(), p)
	}
	run := func(ref, script string) string {
		t.Helper()
		r, err := s.Sandbox(ref).Run(t.Context(), sandbox.CommandParams{Argv: []string{"bash", "-c", script}})
		if err != nil || r.Exit.Code != 0 {
			t.Fatalf("%s: %v, %s%s", script, err, r.Stdout, r.Stderr)
		}
		return string(r.Stdout)
	}
	ruled := sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{
		Name: "git.example.com", Rules: []sandbox.Rule{{SetHeaders: map[string]string{"X-Key": "1"}}},
	}}}
	for name, policy := range map[string]sandbox.Network{"AllowAll": {Mode: sandbox.AllowAll}, "Allowed": only("git.example.com"), "Opened": ruled} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sb, err := create(git, policy, sandbox.CreateParams{})
			if err != nil {
				t.Fatal(err)
			}
			if got := run(sb.ID, "cat file.txt; pwd; stat -c %U file.txt .git; git status --porcelain; git rev-parse --abbrev-ref HEAD"); got != "three/vercel/sandbox\nvercel-sandbox\nvercel-sandbox\nmain\n" {
				t.Errorf("got %q", got)
			}
			// The password is nowhere: in no written file, and in no process, not even root's.
			found, err := s.Sandbox(sb.ID).Run(t.Context(), sandbox.CommandParams{Sudo: true, Argv: []string{"bash", "-c",
				`h=Passw; h=${h}0rd; b=$(printf deploy:S0urce-$h | base64 | cut -c1-20)
				grep -rlsE "S0urce-$h|$b" /vercel /tmp /home /root /etc /var /run /workspace; grep -lsaE "S0urce-$h|$b" /proc/[0-9]*/environ /proc/[0-9]*/cmdline; git config --list | grep -i credential; true`}})
			if err != nil || len(found.Stdout) > 0 {
				t.Errorf("the password is in %s%s, %v", found.Stdout, found.Stderr, err)
			}
			if cmds, err := s.ListCommands(t.Context(), sb.ID); err != nil || len(cmds) != 2 {
				t.Errorf("its commands are %+v, %v", cmds, err)
			}
		})
		t.Run(name+"/Tarball", func(t *testing.T) {
			t.Parallel()
			sb, err := create(tarball, policy, sandbox.CreateParams{})
			if err != nil {
				t.Fatal(err)
			}
			if got := run(sb.ID, "cat app/run; stat -c ' %U %a' app/run"); got != "ok vercel-sandbox 755\n" {
				t.Errorf("got %q", got)
			}
		})
	}
	t.Run("Denied", func(t *testing.T) {
		t.Parallel()
		for _, policy := range []sandbox.Network{{Mode: sandbox.DenyAll}, only("other.example.com")} {
			for _, src := range []sandbox.Source{git, tarball} {
				_, err := create(src, policy, sandbox.CreateParams{Name: "denied"})
				if cay.CodeOf(err) != cay.SourceUnavailable || strings.Contains(err.Error(), password) {
					t.Errorf("%s: %v", src.Type, err)
				}
				if _, err := s.Get(t.Context(), "denied"); cay.CodeOf(err) != cay.NotFound {
					t.Errorf("%s: it is still there: %v", src.Type, err)
				}
			}
		}
	})
	t.Run("Root", func(t *testing.T) {
		t.Parallel()
		sb, err := create(git, only("git.example.com"), sandbox.CreateParams{User: "root", WorkDir: "/srv/app"})
		if err != nil {
			t.Fatal(err)
		}
		if got := run(sb.ID, "pwd; cat file.txt; stat -c ' %U' file.txt; git log --oneline | wc -l"); got != "/srv/app\nthree root\n3\n" {
			t.Errorf("got %q", got)
		}
	})
}
