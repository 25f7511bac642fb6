package daemon_test

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/sandbox"
)

// mirrorScript finds, in the guest, the servers of its package managers: from this
// machine's configuration in the environment, or else their defaults.
const mirrorScript = `
import glob, html.parser, json, os, re, subprocess, sys, urllib.parse, urllib.request
def host(u): return urllib.parse.urlsplit(u).hostname
out = {"npm": [], "pip": [], "apt": []}
out["npm"].append(host(subprocess.check_output(["npm", "config", "get", "registry"], text=True).strip()))
from pip._internal.models.index import PyPI
index = os.environ.get("PIP_INDEX_URL") or PyPI.simple_url
out["pip"].append(host(index))
for f in ["/etc/apt/sources.list"] + glob.glob("/etc/apt/sources.list.d/*"):
    if os.path.exists(f):
        out["apt"] += [host(u) for u in re.findall(r"^[^#\n]*?(https?://\S+)", open(f).read(), re.M)]
if len(sys.argv) > 1: # who serves the files is known only from the index
    out["npm"].append(host(subprocess.check_output(["npm", "view", "is-number", "dist.tarball"], text=True).strip()))
    class Links(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag == "a":
                out["pip"].append(host(urllib.parse.urljoin(index.rstrip("/") + "/six/", dict(attrs)["href"])))
    Links().feed(urllib.request.urlopen(index.rstrip("/") + "/six/", timeout=60).read().decode())
print(json.dumps({k: sorted(set(v)) for k, v in out.items()}))
`

// Package managers work with an allow list of just the servers they need, and
// say why they do not work without.
func TestEgress_PackageManagers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.opts.DestroyOnStop = false
	s.start(t)
	env := map[string]string{"npm_config_fetch_retries": "0", "npm_config_update_notifier": "false", "PIP_RETRIES": "1"}
	if registry := hostRegistry(t); registry != "" {
		env["npm_config_registry"] = registry
	}
	if index := os.Getenv("PIP_INDEX_URL"); index != "" {
		env["PIP_INDEX_URL"] = index
	}
	sb, err := s.Create(t.Context(), sandbox.CreateParams{Runtime: "node24", Env: env, Timeout: sandbox.Duration(30 * time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Delete(context.Background(), sb.ID); err != nil {
			t.Error(err)
		}
	})
	st := &station{Handle: s.Sandbox(sb.ID), site: s}
	// again runs a command until it succeeds, or has failed often: the servers are not
	// under test, and may be busy.
	again := func(p sandbox.CommandParams) *sandbox.Result {
		t.Helper()
		for try := 1; ; try++ {
			r, err := st.Run(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			if r.Exit.Code == 0 || try == 3 {
				return r
			}
		}
	}
	discover := func(argv ...string) map[string][]string {
		t.Helper()
		r := again(sandbox.CommandParams{Argv: append([]string{"python3", "-c", mirrorScript}, argv...)})
		found := map[string][]string{}
		if err := json.Unmarshal(r.Stdout, &found); err != nil {
			t.Fatalf("%v: %s%s", err, r.Stdout, r.Stderr)
		}
		return found
	}
	// The operator has to allow addresses that are not on the public internet: on a
	// machine with its own mirrors, their addresses.
	ranges := map[netip.Prefix]bool{}
	allow := func(hosts map[string][]string) {
		t.Helper()
		before := len(ranges)
		for tool, names := range hosts {
			for _, name := range names {
				ips, err := net.DefaultResolver.LookupNetIP(t.Context(), "ip4", name)
				if err != nil {
					t.Skipf("this machine has no access to the servers of %s: %v", tool, err)
				}
				for _, ip := range ips {
					if ip = ip.Unmap(); !network.Public(ip) {
						ranges[netip.PrefixFrom(ip, 32)] = true
					}
				}
			}
		}
		if len(ranges) == before {
			return
		}
		s.cfg.AllowRanges = nil
		for p := range ranges {
			s.cfg.AllowRanges = append(s.cfg.AllowRanges, p.String())
		}
		s.stop(t)
		s.start(t)
		st.Handle = s.Sandbox(sb.ID)
	}
	allow(discover())
	hosts := discover("with files")
	allow(hosts)
	st.follow(t)

	for _, c := range []struct {
		tool   string
		argv   []string
		sudo   bool
		denied string // a part of the tool's output
	}{
		{tool: "npm", argv: []string{"npm", "install", "--no-audit", "--no-fund", "--prefix", "/tmp/npm", "is-number"}, denied: "ENOTFOUND"},
		{tool: "pip", argv: []string{"pip", "download", "--no-cache-dir", "-d", "/tmp/pip", "six"}, denied: "not known"},
		{tool: "apt", argv: []string{"apt-get", "update", "-q", "-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Retries=0"}, sudo: true, denied: "not resolve"},
	} {
		t.Run(c.tool, func(t *testing.T) {
			cmd := sandbox.CommandParams{Argv: c.argv, Sudo: c.sudo, Timeout: sandbox.Duration(2 * time.Minute)}
			names := hosts[c.tool]
			seq := st.flows.last()
			st.setNetwork(t, only("unrelated.example.com"))
			r, err := st.Run(t.Context(), cmd)
			if err != nil {
				t.Fatal(err)
			}
			said := string(r.Stdout) + string(r.Stderr)
			if r.Exit.Code == 0 || !matches(c.denied, said) {
				t.Errorf("without its servers: exit status %d, and it says\n%s", r.Exit.Code, said)
			}
			f, err := st.flows.await(t, seq, func(f sandbox.Flow) bool {
				return f.Verdict == sandbox.Denied && slices.Contains(names, f.Name)
			})
			if err != nil || !strings.Contains(f.Reason, f.Name) || !strings.HasPrefix(f.Rule, "not in allow") {
				t.Errorf("the flow log: %+v, %v", f, err)
			}
			st.setNetwork(t, only(names...))
			if r := again(cmd); r.Exit.Code != 0 {
				t.Errorf("with %d allowed names: exit status %d\n%s%s", len(names), r.Exit.Code, r.Stdout, r.Stderr)
			}
		})
	}
}

// hostRegistry is the npm registry this machine uses, "" for npm's own.
func hostRegistry(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"NPM_CONFIG_REGISTRY", "npm_config_registry"} {
		if v := os.Getenv(name); v != "" {
			return v
		}
	}
	program, err := exec.LookPath("npm")
	if err != nil {
		return ""
	}
	out, err := exec.CommandContext(t.Context(), program, "config", "get", "registry").Output()
	if err != nil {
		t.Fatalf("ask npm for its registry: %v", err)
	}
	registry := strings.TrimSpace(string(out))
	if u, err := url.Parse(registry); err != nil || u.Host == "" {
		return ""
	}
	return registry
}
