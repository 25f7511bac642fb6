package daemon_test

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

// The tests of egress run real guests against an internet on this machine's
// loopback address: see package networktest. Most are scenes: a policy, the
// guest's requests under it, and the results: for the guest, in the flow log,
// and on the internet.

var (
	//go:embed testdata/egress/probe.py
	probePython []byte
	//go:embed testdata/egress/probe.mjs
	probeNode []byte
)

// probe is a request of a guest program, and the expected result.
type probe struct {
	URL     string            `json:"url"`
	At      string            `json:"at,omitempty"` // the address it connects to instead of the name's
	Method  string            `json:"method,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	Body    string            `json:"body,omitempty"`
	Read    int               `json:"read,omitempty"`  // bytes to wait for, of what is not HTTP; 0: as many as Body has
	Proto   string            `json:"proto,omitempty"` // h2: HTTP/2 only
	Plain   bool              `json:"plain,omitempty"` // node: not by fetch, which hides the certificate

	only string // the clients that can do this; empty: those that know the scheme

	status  int    // of the response; 0: none
	by      string // the server that answered; empty: none of the internet's
	sees    string // a regular expression for the body, or else the error
	trailer string // what X-Sum is
	issuer  string // part of the issuer of the server's certificate
	flow    string // a record of the flow log on the URL's host: "verdict rule", the rule's beginning
}

// scene is a list of a guest's actions under one policy.
type scene struct {
	name   string
	policy sandbox.Network
	probes []probe
	dials  []string // all that is dialled, in any order and number
	asks   []string // all names that are resolved; nil: those may be any
}

// result is the result of a probe.
type result struct {
	Status  int            `json:"status"`
	Proto   string         `json:"proto"`
	Body    string         `json:"body"`
	Error   string         `json:"error"`
	Issuer  string         `json:"issuer"`
	Headers map[string]any `json:"headers"`
	Trailer string         `json:"trailer"` // X-Sum
	Seconds float64        `json:"seconds"`
}

func (r result) String() string {
	return fmt.Sprintf("status %d, body %.300q, error %q, issuer %q, in %.2f s", r.Status, r.Body, r.Error, r.Issuer, r.Seconds)
}

// site is a daemon whose guests have a simulated Internet.
type site struct {
	*sandbox.Client
	net    *networktest.Internet
	daemon *daemon.Daemon
	cfg    config.Config
	log    *checktest.Log
	opts   daemon.Options

	mu   sync.Mutex // guards logs
	logs []*flowLog // followed until stop
}

// openSite starts a daemon in a fresh directory. It ends with the test, and its
// sandboxes with it.
func openSite(t *testing.T, change ...func(*site)) *site {
	t.Helper()
	n := networktest.Start(t)
	s := newSite(t)
	s.net = n
	s.opts.Nameservers, s.opts.DialContext, s.opts.Roots = n.Nameservers(), n.DialContext, networktest.Roots()
	for _, f := range change {
		f(s)
	}
	s.start(t)
	return s
}

// newSite prepares a daemon whose guests have the machine's own internet.
func newSite(t *testing.T) *site {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("starting sandboxes needs root")
	}
	for _, ref := range []string{"debian", "node24", "python3.13"} {
		imagetest.Acquire(t, ref)
	}
	s := &site{cfg: settings(t.TempDir()), log: &checktest.Log{}}
	s.cfg.Quota.CreatesPerMinute = 0
	s.cfg.LogLevel = slog.LevelDebug
	out := io.MultiWriter(t.Output(), s.log)
	s.opts = daemon.Options{
		Logger:   slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug})),
		ImageDir: imagetest.Dir(t), DestroyOnStop: true,
	}
	t.Cleanup(func() { s.stop(t) })
	return s
}

func (s *site) start(t *testing.T) {
	t.Helper()
	d, err := daemon.New(t.Context(), s.cfg, s.opts)
	if err != nil {
		t.Fatal(err)
	}
	s.daemon = d
	if err := d.Start(t.Context()); err != nil {
		s.stop(t)
		t.Fatal(err)
	}
	s.Client = client(t, d.URL(), s.cfg.Data)
}

// restart starts another daemon, which adopts the sandboxes that survived; they
// survive if opts.DestroyOnStop was not set.
func (s *site) restart(t *testing.T) {
	t.Helper()
	s.stop(t)
	s.opts.DestroyOnStop = true
	s.start(t)
}

func (s *site) stop(t *testing.T) {
	t.Helper()
	if s.daemon == nil {
		return
	}
	s.mu.Lock()
	for _, l := range s.logs {
		l.stop()
	}
	s.logs = nil
	s.mu.Unlock()
	if err := s.daemon.Stop(); err != nil {
		t.Error(err)
	}
	s.daemon = nil
}

// station is a sandbox whose programs send requests to the internet.
type station struct {
	*sandbox.Handle
	site   *site
	client string // curl, python or node
	flows  *flowLog
}

// openStation creates a sandbox for one kind of client program.
func openStation(t *testing.T, s *site, client string, policy sandbox.Network) *station {
	t.Helper()
	p := sandbox.CreateParams{Network: policy, Runtime: "python3.13", Timeout: sandbox.Duration(10 * time.Minute)}
	if client == "node" {
		p.Runtime = "node24"
	}
	sb, err := s.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	st := &station{Handle: s.Sandbox(sb.ID), site: s, client: client}
	for name, script := range map[string][]byte{"/tmp/probe.py": probePython, "/tmp/probe.mjs": probeNode} {
		if err := st.WriteFile(t.Context(), name, script, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	st.follow(t)
	return st
}

// can reports whether the station's client supports p.
func (st *station) can(p probe) bool {
	if p.only != "" {
		return slices.Contains(strings.Fields(p.only), st.client)
	}
	scheme, _, _ := strings.Cut(p.URL, ":")
	switch st.client {
	case "curl":
		return slices.Contains([]string{"http", "https"}, scheme)
	case "python":
		return p.Proto != "h2" && !slices.Contains([]string{"ws", "wss"}, scheme)
	}
	return scheme != "pg" && scheme != "dns+tcp"
}

// ask makes the guest's program send all probes, in order.
func (st *station) ask(t *testing.T, probes []probe) []result {
	t.Helper()
	arg, err := json.Marshal(probes)
	if err != nil {
		t.Fatal(err)
	}
	argv := []string{"python3", "/tmp/probe.py", st.client, string(arg)}
	if st.client == "node" {
		argv = []string{"node", "--no-warnings", "/tmp/probe.mjs", st.client, string(arg)}
	}
	var results []result
	out := st.run(t, sandbox.CommandParams{Argv: argv})
	if err := json.Unmarshal([]byte(out), &results); err != nil || len(results) != len(probes) {
		t.Fatalf("%d results of %d probes, %v: %s", len(results), len(probes), err, out)
	}
	return results
}

// run runs a command that must succeed, and returns its output.
func (st *station) run(t *testing.T, p sandbox.CommandParams) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	r, err := st.Run(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	if r.Exit.Code != 0 {
		t.Fatalf("%.200q: exit status %d\n%s%s", p.Argv, r.Exit.Code, r.Stdout, r.Stderr)
	}
	return string(r.Stdout)
}

// shell runs a shell script that must succeed as root.
func (st *station) shell(t *testing.T, script string) string {
	t.Helper()
	return st.run(t, sandbox.CommandParams{Argv: []string{"bash", "-c", script}, Sudo: true})
}

func (st *station) setNetwork(t *testing.T, policy sandbox.Network) {
	t.Helper()
	if err := st.SetNetwork(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
}

// play plays a scene.
func (st *station) play(t *testing.T, s scene) {
	st.setNetwork(t, s.policy)
	begin, seq := st.site.net.Mark(), st.flows.last()
	probes := slices.DeleteFunc(slices.Clone(s.probes), func(p probe) bool { return !st.can(p) })
	if len(probes) == 0 {
		t.Skipf("%s can do none of it", st.client)
	}
	for i, r := range st.ask(t, probes) {
		p := probes[i]
		what := p.URL
		if p.At != "" {
			what += " at " + p.At
		}
		if err := p.check(r); err != nil {
			t.Errorf("%s: %v\n%v", what, err, r)
		}
		if r.Seconds > 2 {
			t.Logf("%s takes long: %v", what, r)
		}
		if p.flow == "" {
			continue
		}
		if _, err := st.flows.await(t, seq, p.recorded); err != nil {
			t.Errorf("%s: no record %q of it: %v", what, p.flow, err)
		}
	}
	dialled := unique(st.site.net.Dials(begin), networktest.Dial.String)
	for _, d := range dialled {
		if !slices.Contains(s.dials, d) {
			t.Errorf("dialled %s", d)
		}
	}
	asked := unique(st.site.net.Queries(begin), func(q networktest.Query) string { return q.Name })
	for _, name := range asked {
		if s.asks != nil && !slices.Contains(s.asks, name) {
			t.Errorf("resolved %s", name)
		}
	}
}

func unique[T any](all []T, text func(T) string) []string {
	var got []string
	for _, v := range all {
		got = append(got, text(v))
	}
	slices.Sort(got)
	return slices.Compact(got)
}

// check returns an error if r is not the result that p wants.
func (p probe) check(r result) error {
	by, _ := r.Headers["x-server"].(string)
	// The text with which a client reports the end of a connection is not
	// checked.
	text := cmp.Or(r.Body, r.Error)
	switch {
	case r.Status != p.status:
		return fmt.Errorf("status %d, want %d", r.Status, p.status)
	case by != p.by:
		return fmt.Errorf("answered by %q, want %q", by, p.by)
	case p.status == 0 && r.Error == "" && p.sees == "":
		return errors.New("it came through")
	case !matches(p.sees, text):
		return fmt.Errorf("it does not say %q", p.sees)
	case r.Trailer != p.trailer:
		return fmt.Errorf("the trailer is %q, want %q", r.Trailer, p.trailer)
	case !strings.Contains(r.Issuer, p.issuer):
		return fmt.Errorf("the certificate is not issued by %q", p.issuer)
	case p.Proto != "" && r.Status != 0 && r.Proto != p.Proto:
		return fmt.Errorf("the protocol is %q, want %q", r.Proto, p.Proto)
	}
	return nil
}

// recorded reports whether f is the expected record of p.
func (p probe) recorded(f sandbox.Flow) bool {
	verdict, rule, _ := strings.Cut(p.flow, " ")
	u, err := url.Parse(p.URL)
	if err != nil {
		return false
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	if strings.HasPrefix(u.Scheme, "dns") {
		host = strings.Trim(u.Path, "/")
	}
	addr, _, _ := net.SplitHostPort(f.Address)
	return string(f.Verdict) == verdict && strings.HasPrefix(f.Rule, rule) && (f.Name == host || addr == host) &&
		(f.Verdict == sandbox.Allowed || f.Reason != "")
}

// flowLog is the flow log of a sandbox as it grows.
type flowLog struct {
	stop func()

	mu      sync.Mutex // guards what follows
	flows   map[int64]sandbox.Flow
	changed chan struct{} // closed at the next change
	err     error
}

// follow lets st.flows follow the flow log until the site stops.
func (st *station) follow(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w, err := st.WatchFlows(ctx, sandbox.FlowParams{})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	l := &flowLog{flows: map[int64]sandbox.Flow{}, changed: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for err := error(nil); err == nil; {
			var f sandbox.Flow
			f, err = w.Next()
			l.mu.Lock()
			if l.err = err; err == nil {
				l.flows[f.Seq] = f
			}
			close(l.changed)
			l.changed = make(chan struct{})
			l.mu.Unlock()
		}
	}()
	l.stop = func() {
		cancel()
		<-done
		w.Close()
	}
	st.flows = l
	st.site.mu.Lock()
	defer st.site.mu.Unlock()
	st.site.logs = append(st.site.logs, l)
}

// last returns the number of the newest flow.
func (l *flowLog) last() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var last int64
	for seq := range l.flows {
		last = max(last, seq)
	}
	return last
}

// flowPatience is how long a record may take to arrive: it is written when the
// guest has its answer, and arrives separately.
const flowPatience = time.Minute

// await waits for a flow after seq that matches.
func (l *flowLog) await(t *testing.T, after int64, wanted func(sandbox.Flow) bool) (sandbox.Flow, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), flowPatience)
	defer cancel()
	for {
		l.mu.Lock()
		var seen []string
		for seq, f := range l.flows {
			if seq <= after {
				continue
			}
			if wanted(f) {
				l.mu.Unlock()
				return f, nil
			}
			seen = append(seen, fmt.Sprintf("%04d %s %s %s %s: %s (%.80s)", seq, f.Protocol, f.Name, f.Address, f.Verdict, f.Rule, f.Reason))
		}
		err, changed := l.err, l.changed
		l.mu.Unlock()
		if err != nil {
			return sandbox.Flow{}, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			slices.Sort(seen)
			return sandbox.Flow{}, fmt.Errorf("there are only\n%s", strings.Join(seen[max(0, len(seen)-8):], "\n"))
		}
	}
}

// trustInternet makes this process trust the servers of networktest, besides
// those that it trusts anyway: guests get that trust from their daemon. It is
// for TestMain, because it changes the environment.
func trustInternet() (undo func(), err error) {
	bundle := networktest.RootPEM()
	for _, path := range []string{os.Getenv("SSL_CERT_FILE"), "/etc/ssl/certs/ca-certificates.crt"} {
		if b, err := os.ReadFile(path); err == nil {
			bundle = append(append(b, '\n'), bundle...)
			break
		}
	}
	f, err := os.CreateTemp("", "cay-test-bundle-*.pem")
	if err != nil {
		return nil, err
	}
	undo = func() { os.Remove(f.Name()) }
	if _, err := f.Write(bundle); err != nil {
		undo()
		return nil, err
	}
	if err := f.Close(); err != nil {
		undo()
		return nil, err
	}
	return undo, os.Setenv("SSL_CERT_FILE", f.Name())
}

func matches(expr, text string) bool { return regexp.MustCompile(expr).MatchString(text) }

// only returns a policy that allows names.
func only(names ...string) sandbox.Network {
	n := sandbox.Network{Mode: sandbox.Custom}
	for _, name := range names {
		n.Allow = append(n.Allow, sandbox.Domain{Name: name})
	}
	return n
}
