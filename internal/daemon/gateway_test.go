package daemon_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/sandboxd/fake"
)

// A call through the gateway's own origin has an answer and a record, which
// survives a restart.
func TestGateway(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	start := func() (d *daemon.Daemon, token string) {
		t.Helper()
		api, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		origin, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		cfg := settings(data)
		runtime, err := fake.New(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		d, err = daemon.New(t.Context(), cfg, daemon.Options{Runtime: runtime, Listener: api, GatewayListener: origin})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Start(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(cfg.AdminTokenFile())
		if err != nil {
			t.Fatal(err)
		}
		return d, strings.TrimSpace(string(raw))
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	do := func(method, url, token, body string) string {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: %d %s %v", method, url, resp.StatusCode, raw, err)
		}
		return string(raw)
	}
	d, token := start()
	answer := do("POST", d.GatewayURL()+"/v1/chat/completions", token, `{"model":"cay/scripted","messages":[{"role":"user","content":"sesame"}]}`)
	if !strings.Contains(answer, "You said: sesame") {
		t.Error(answer)
	}
	if at := do("GET", d.URL()+"/v1/gateway", "", ""); strings.TrimSpace(at) != `{"url":"`+d.GatewayURL()+`"}` {
		t.Errorf("the gateway is at %s, the daemon says %s", d.GatewayURL(), at)
	}
	if text := do("GET", d.URL()+"/vercel/preload.mjs", "", ""); !strings.Contains(text, `const writtenGateway = "`+d.GatewayURL()+`";`) {
		t.Error("the preload does not name the gateway")
	}
	// A client that mistakes the daemon's port for the gateway's gets an error
	// that says so.
	for method, path := range map[string]string{"POST": "/v1/chat/completions", "GET": "/v4/ai/language-model", "PUT": "/claude-code/v1/messages"} {
		r, err := http.NewRequestWithContext(t.Context(), method, d.URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusNotFound || !strings.Contains(string(raw), path+" is a route of the AI gateway, which is at "+d.GatewayURL()) {
			t.Errorf("%s %s: %d %s", method, path, resp.StatusCode, raw)
		}
	}
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
	d, token = start()
	defer func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	}()
	var page gateway.Page[gateway.Request]
	if err := json.Unmarshal([]byte(do("GET", d.URL()+"/v1/gateway/requests", token, "")), &page); err != nil {
		t.Fatal(err)
	}
	if len(page.Items) != 1 || page.Items[0].Model != "cay/scripted" || page.Items[0].Status != gateway.Succeeded || page.Items[0].Tokens.Output == 0 {
		t.Errorf("%+v", page.Items)
	}
}

// The daemon names no gateway that the sender of a request cannot reach.
// Each database of the daemon has room on the disk that is its own.
func TestDatabases_Reserve(t *testing.T) {
	t.Parallel()
	cfg := settings(t.TempDir())
	d, err := daemon.New(t.Context(), cfg, daemon.Options{
		Runtime: checktest.Must(fake.New(t.TempDir()))(t), Listener: checktest.Must(net.Listen("tcp", "127.0.0.1:0"))(t),
		GatewayListener: checktest.Must(net.Listen("tcp", "127.0.0.1:0"))(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for _, path := range []string{cfg.DatabaseFile(), cfg.GatewayFile()} {
		var st unix.Stat_t
		if err := unix.Stat(path+"-wal", &st); err != nil {
			t.Fatal(err)
		}
		if has := st.Blocks * 512; has < 15<<20 {
			t.Errorf("the log of %s has %d bytes of the disk", path, has)
		}
	}
}

func TestGateway_address(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		off                     bool
		host                    string
		code, inModule, message string
	}{
		"Off":       {true, "", "not_found", `"off"`, "is off"},
		"Elsewhere": {false, "vercel.com", "invalid", `''`, "own machine alone reaches"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runtime, err := fake.New(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			opts := daemon.Options{Runtime: runtime}
			for _, l := range []*net.Listener{&opts.Listener, &opts.GatewayListener} {
				if l == &opts.GatewayListener && tt.off {
					break
				}
				if *l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
					t.Fatal(err)
				}
			}
			d, err := daemon.New(t.Context(), settings(t.TempDir()), opts)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Start(context.WithoutCancel(t.Context())); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := d.Stop(); err != nil {
					t.Error(err)
				}
			}()
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			get := func(path string) string {
				t.Helper()
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, d.URL()+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Host = tt.host
				resp, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				raw, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return string(raw)
			}
			if body := get("/v1/gateway"); !strings.Contains(body, `"code":"`+tt.code+`"`) || !strings.Contains(body, tt.message) {
				t.Errorf("it says %s", body)
			}
			if text := get("/vercel/preload.mjs"); !strings.Contains(text, "const writtenGateway = "+tt.inModule+";") {
				t.Errorf("the preload does not say that the gateway is %s", tt.inModule)
			}
		})
	}
}
