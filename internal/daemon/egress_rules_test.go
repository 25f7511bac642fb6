package daemon_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

func prefix(s string) sandbox.Match { return sandbox.Match{Path: &sandbox.TextMatch{Prefix: &s}} }

// openedPolicy has a rule of each kind.
func openedPolicy() sandbox.Network {
	key := "x-tenant"
	value := "acme"
	set := map[string]string{"Authorization": "Bearer from-the-rule", "X-Extra": "not so secret"}
	return sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{
		{Name: "api.example.com", Rules: []sandbox.Rule{
			{Match: prefix("/respond"), Respond: &sandbox.Response{Status: 418, Headers: map[string]string{"X-Server": "nobody"}, Body: "short and stout"}},
			{Match: prefix("/secret"), Deny: true},
			{Match: prefix("/forward"), ForwardURL: "https://files.example.com/base"},
			{Match: prefix("/inside"), ForwardURL: "http://metadata.example.com/latest"},
			{Match: prefix("/metadata"), ForwardURL: "http://rebind.example.com/latest"},
			{Match: sandbox.Match{Methods: []string{"DELETE"}}, Deny: true},
			{
				Match:      sandbox.Match{Headers: []sandbox.FieldMatch{{Key: &sandbox.TextMatch{Exact: &key}, Value: &sandbox.TextMatch{Exact: &value}}}},
				SetHeaders: map[string]string{"Authorization": "Bearer of-acme"},
			},
			{Match: prefix("/reflect"), SetHeaders: set, Scrub: true},
			{SetHeaders: set},
		}},
		{Name: "other.example.org"},
		{Name: "selfsigned.example.com", Rules: []sandbox.Rule{{SetHeaders: set}}},
		{Name: "expired.example.com", Rules: []sandbox.Rule{{SetHeaders: set}}},
		{Name: "wrongname.example.com", Rules: []sandbox.Rule{{SetHeaders: set}}},
		{Name: "metadata.example.com", Rules: []sandbox.Rule{{SetHeaders: set}}},
	}}
}

// opened are the probes of names with rules. The real servers' root is not
// needed for them: guests trust the certificates that we issue.
var opened = scene{
	name:   "opened",
	policy: openedPolicy(),
	probes: []probe{
		{URL: "https://api.example.com/", Headers: map[string]string{"authorization": "Bearer placeholder"}, Plain: true, status: 200, by: "api", issuer: ours,
			sees: `"Authorization":\["Bearer from-the-rule"\]`, flow: `allowed allow "api.example.com"`},
		{URL: "https://api.example.com/", Proto: "h2", status: 200, by: "api", issuer: ours, sees: `"Authorization":\["Bearer from-the-rule"\]`},
		{URL: "https://api.example.com/", Headers: map[string]string{"x-tenant": "acme"}, status: 200, by: "api", sees: `"Authorization":\["Bearer of-acme"\]`},
		{URL: "http://api.example.com/", status: 403, sees: "use https", flow: `denied allow "api.example.com" rule 9`},
		{URL: "https://api.example.com/echo", Body: "the body", status: 200, by: "api", sees: `"body":"the body"`},
		{URL: "https://api.example.com/echo?a=b&c=%2F%20d", status: 200, by: "api", sees: `"uri":"/echo\?a=b\\u0026c=%2F%20d"`},
		{URL: "https://api.example.com/respond", status: 418, by: "nobody", sees: "^short and stout$"},
		{URL: "https://api.example.com/secret/x", status: 403, sees: "rule 2", flow: `denied allow "api.example.com" rule 2`},
		{URL: "https://api.example.com/x", Method: "DELETE", status: 403, sees: "rule 6"},
		{URL: "https://api.example.com/status/503", status: 503, by: "api"},
		{URL: "https://api.example.com/events", status: 200, by: "api", sees: "(?s)event 0.*event 1.*event 2"},
		{URL: "https://api.example.com/trailers", Proto: "h2", only: "curl node", status: 200, by: "api", trailer: "the trailer"},
		{URL: "https://api.example.com/trailers", Plain: true, only: "curl node", status: 200, by: "api", trailer: "the trailer"},
		{URL: "wss://api.example.com/ws", Body: "over and over", status: 101, sees: "^over and over$"},
		{URL: "https://api.example.com/forward/x?y=z", status: 200, by: "files", sees: `"uri":"/base/forward/x\?y=z"`},
		// Row N22.
		{URL: "https://api.example.com/reflect", status: 200, by: "api", sees: `Authorization: \[redacted\]`},
		{URL: "https://api.example.com/reflect", Headers: map[string]string{"accept-encoding": "gzip"}, status: 200, by: "api", sees: `Authorization: \[redacted\]`},
		// Row N23: requests that we make for the guest have the guest's limits,
		// and following redirects is left to the guest.
		{URL: "https://api.example.com/inside", status: 403, sees: `169\.254`, flow: "denied blocked range 169.254.0.0/16"},
		{URL: "https://api.example.com/metadata", status: 403, sees: `127\.0\.0`, flow: "denied blocked range 127.0.0.0/8"},
		{URL: "https://api.example.com/redirect?to=http://169.254.169.254/", only: "python node curl", status: 302, by: "api"},
		{URL: "https://metadata.example.com/", At: api, sees: `169\.254|(?i)access.denied|alert number 49`, status: 403},
		// Secrets go only to servers that prove their names.
		{URL: "https://selfsigned.example.com/", status: 502, sees: "(?i)certificate", flow: "failed"},
		{URL: "https://expired.example.com/", status: 502, sees: "(?i)certificate", flow: "failed"},
		{URL: "https://wrongname.example.com/", status: 502, sees: "(?i)certificate", flow: "failed"},
		// The others are left alone.
		{URL: "https://other.example.org/", Plain: true, status: 200, by: "other", issuer: itsOwn},
		{URL: "https://evil.example.net/", At: api, sees: tlsAlert},
	},
	dials: []string{
		"tcp 93.184.0.10:443", "tcp 93.184.0.10:80", "tcp 93.184.0.11:443", "tcp 93.185.0.40:443",
		"tcp 93.184.0.61:443", "tcp 93.184.0.62:443", "tcp 93.184.0.63:443",
	},
}

// large is the size of the bodies that are compared by hash.
const large = 16 << 20

func TestEgress_Rules(t *testing.T) {
	t.Parallel()
	for _, client := range []string{"curl", "python", "node"} {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			s := openSite(t)
			st := openStation(t, s, client, sandbox.Network{Mode: sandbox.DenyAll}) // so that the authority comes with an update
			s.net.SetName("rebind.example.com", "127.0.0.1")
			begin := s.net.Mark()
			t.Run(opened.name, func(t *testing.T) { st.play(t, opened) })
			for _, r := range s.net.Requests(begin) {
				if strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ") && r.Server != "api" {
					t.Errorf("the server %s got the credential of another: %v", r.Server, r.Header)
				}
				if r.Server == "files" && (r.Header.Get("vercel-forwarded-host") != "api.example.com" || r.Header.Get("vercel-forwarded-scheme") != "https" ||
					r.Header.Get("vercel-forwarded-port") != "443" || r.Header.Get("vercel-forwarded-path") != "/forward/x?y=z") {
					t.Errorf("a forwarded request does not say where it was for: %v", r.Header)
				}
			}
			if client == "curl" {
				t.Run("large bodies", func(t *testing.T) {
					for _, version := range []string{"--http1.1", "--http2"} {
						got := st.shell(t, fmt.Sprintf("curl -sS %s https://api.example.com/bytes/%d | sha256sum", version, large))
						if !strings.HasPrefix(got, networktest.Sum(large)) {
							t.Errorf("%s: a download of another content", version)
						}
						got = st.shell(t, fmt.Sprintf("head -c %d /dev/zero >/tmp/large; curl -sS %s -T /tmp/large https://api.example.com/upload; echo; sha256sum /tmp/large", large, version))
						answer, sum, _ := strings.Cut(got, "\n")
						if want := fmt.Sprintf("%d %.64s", large, sum); answer != want {
							t.Errorf("%s: an upload arrives as %s, want %s", version, answer, want)
						}
					}
				})
			}
		})
	}
}

// Rows N21 and N22: a guest uses a credential that it cannot find anywhere.
func TestEgress_Secret(t *testing.T) {
	t.Parallel()
	s := openSite(t, func(s *site) { s.opts.DestroyOnStop = false })
	// A part of the secret counts, too, so it has no common prefix.
	secret := strings.ToLower(rand.Text()) + rand.Text()
	match := "/v1/"
	policy := sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{
		{Name: "api.example.com", Rules: []sandbox.Rule{
			{Match: prefix(match), SetHeaders: map[string]string{"Authorization": "Bearer " + secret}, Scrub: true},
		}},
		{Name: "cdn.example.com"}, {Name: "selfsigned.example.com", Rules: []sandbox.Rule{{SetHeaders: map[string]string{"X-Api-Key": secret}}}},
	}}
	st := openStation(t, s, "curl", policy)
	begin := s.net.Mark()
	results := st.ask(t, []probe{
		{URL: "https://api.example.com/v1/models", Headers: map[string]string{"authorization": "Bearer placeholder"}},
		{URL: "https://api.example.com/v1/../other"},
		{URL: "https://api.example.com/other"},
		{URL: "http://api.example.com/v1/models"},
		{URL: "https://cdn.example.com/v1/models"},
		{URL: "https://api.example.com/v1/models", Headers: map[string]string{"host": "cdn.example.com"}},
		{URL: "https://cdn.example.com/v1/models", Headers: map[string]string{"host": "api.example.com"}},
		{URL: "https://selfsigned.example.com/v1/models"},
		{URL: "https://api.example.com/v1/models", Method: "TRACE"},
	})
	had := 0
	for _, r := range s.net.Requests(begin) {
		got := strings.Contains(fmt.Sprint(r.Header), secret)
		switch {
		case got && (r.Server != "api" || r.SNI != "api.example.com" || r.Host != "api.example.com"):
			t.Errorf("the credential went to %s for %s", r.Server, r.Host)
		case got && !strings.HasPrefix(r.URI, match):
			t.Errorf("the credential was sent with %s", r.URI)
		case got:
			had++
			if a := r.Header["Authorization"]; len(a) != 1 || a[0] != "Bearer "+secret {
				t.Errorf("the API sees %q", a)
			}
		}
	}
	if had == 0 {
		t.Errorf("the API never saw the credential: %v", results)
	}

	pattern := secret[4:24]

	// The guest's memory, which a snapshot would contain. The marker shows that
	// the search works.
	marker := rand.Text()
	if _, err := s.Client.Start(t.Context(), st.Ref(), sandbox.CommandParams{Argv: []string{"tail", "-f", "/dev/null", marker}}); err != nil {
		t.Fatal(err)
	}
	if !inMemory(t, s.cfg.Data, marker) {
		t.Error("the memory of the guest was not searched")
	}
	if inMemory(t, s.cfg.Data, pattern) {
		t.Error("the memory of the guest has it")
	}

	// The files and processes that root in the guest can search. The search
	// needs the pattern on its standard input.
	search := func(what, script string) {
		t.Helper()
		cmd := st.Command(t.Context(), "bash", "-c", script)
		cmd.Params.Sudo = true
		cmd.Stdin = strings.NewReader(pattern + "\nPRIVATE KEY-----\n")
		var out strings.Builder
		cmd.Stdout = &out
		begun := time.Now()
		defer func() { t.Logf("%s were searched in %v", what, time.Since(begun)) }()
		if err := cmd.Run(); err != nil {
			var exit *sandbox.ExitError
			if !errors.As(err, &exit) {
				t.Fatal(err)
			}
		}
		if out.Len() > 0 {
			t.Errorf("%s: %s", what, out.String())
		}
	}
	// Private keys of the image, if it has any, are older than the guest.
	search("files", `cat >/dev/shm/what; find / -xdev \( -path /proc -o -path /sys -o -path /dev/shm \) -prune -o -type f -newer /proc/1/cmdline -print0 | xargs -0 -r grep -laF -f /dev/shm/what`)
	search("files of all mounts", `head -1 >/dev/shm/what; for d in /etc /root /home /tmp /var /run /vercel /usr/local /opt /.cay; do [ ! -e $d ] || grep -rlaF -f /dev/shm/what $d; done 2>/dev/null`)
	search("processes", `head -1 >/dev/shm/what; for f in /proc/[0-9]*/{environ,cmdline,maps,mountinfo,status}; do [ "${f#/proc/$$/}" != "$f" ] || grep -laF -f /dev/shm/what $f; done 2>/dev/null`)
	for i, r := range results {
		if b, err := json.Marshal(r); err != nil || strings.Contains(string(b), pattern) {
			t.Errorf("an answer to the guest, %d, has it: %s", i, b)
		}
	}

	// The answers of the API.
	token, err := os.ReadFile(filepath.Join(s.cfg.Data, "admin.token"))
	if err != nil {
		t.Fatal(err)
	}
	sb, err := st.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", "/" + sb.ID, "/" + sb.ID + "/flows?limit=1000", "/" + sb.ID + "/commands", "/" + sb.ID + "/stats"} {
		body := get(t, s.daemon.URL()+"/v1/sandboxes"+path, string(token))
		if strings.Contains(body, pattern) {
			t.Errorf("GET %s has it: %s", path, body)
		}
		if path == "/"+sb.ID && !strings.Contains(body, sandbox.Redacted) {
			t.Errorf("the policy does not say that there is something: %s", body)
		}
	}
	if body := get(t, s.daemon.URL()+"/metrics", string(token)); strings.Contains(body, pattern) {
		t.Error("the metrics have it")
	}
	// Setting the policy as it was read changes nothing: the redacted text is
	// not a value.
	if err := st.SetNetwork(t.Context(), sb.Network); err == nil {
		t.Error("a redacted value is taken for one")
	}
	bad := policy
	bad.Allow = append([]sandbox.Domain{{Name: "x y", Rules: policy.Allow[0].Rules}}, policy.Allow...)
	if err := st.SetNetwork(t.Context(), bad); err == nil || strings.Contains(err.Error(), pattern) {
		t.Errorf("the error of a bad policy: %v", err)
	}
	bad.Allow = []sandbox.Domain{{Name: "api.example.com", Rules: []sandbox.Rule{{SetHeaders: map[string]string{"X-Key": secret + "\r\nX: y"}}}}}
	if err := st.SetNetwork(t.Context(), bad); err == nil || strings.Contains(err.Error(), pattern) {
		t.Errorf("the error of a bad value: %v", err)
	}

	// The daemon's files and its log.
	s.stop(t)
	if strings.Contains(s.log.String(), pattern) {
		t.Error("the log has it")
	}
	err = filepath.WalkDir(s.cfg.Data, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), pattern) {
			t.Errorf("the file %s has it", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	// The secret is still known to the daemon.
	s.restart(t)
	st.Handle = s.Sandbox(sb.ID)
	begin = s.net.Mark()
	st.ask(t, []probe{{URL: "https://api.example.com/v1/models"}})
	if r := s.net.Requests(begin); len(r) != 1 || r[0].Header.Get("Authorization") != "Bearer "+secret {
		t.Errorf("after a restart the API sees %v", r)
	}
}

// inMemory reports whether the memory of the guests whose state is below dir,
// including their kernels' memory, contains text.
func inMemory(t *testing.T, dir, text string) bool {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		cmdline, err := os.ReadFile(p + "/cmdline")
		if err != nil || !strings.HasPrefix(string(cmdline), "runsc-sandbox\x00") || !strings.Contains(string(cmdline), dir) {
			continue
		}
		fds, err := filepath.Glob(p + "/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			to, err := os.Readlink(fd)
			if err != nil || !strings.HasPrefix(to, "/memfd:runsc-memory") {
				continue
			}
			if inFile(t, fd, text) {
				return true
			}
		}
	}
	return false
}

// inFile reports whether a file, without its holes, contains text.
func inFile(t *testing.T, path, text string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for offset := int64(0); ; {
		begin, err := f.Seek(offset, unix.SEEK_DATA)
		if err != nil {
			return false // the rest is a hole
		}
		end, err := f.Seek(begin, unix.SEEK_HOLE)
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, end-begin)
		if _, err := f.ReadAt(data, begin); err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte(text)) {
			return true
		}
		offset = end
	}
}

func get(t *testing.T, url, token string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	if resp.StatusCode != http.StatusOK {
		t.Errorf("GET %s: %s", url, resp.Status)
	}
	if _, err := io.Copy(&b, resp.Body); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
