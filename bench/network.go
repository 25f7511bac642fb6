package bench

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/sandbox"
)

// NetworkOptions are the options of the network suite.
type NetworkOptions struct {
	// Daemon was started with the map of World.
	Daemon *Daemon
	World  *World
	// Opponents adds programs that reach World's servers without a sandbox, and
	// names proxies that are not installed. Images and WorkDir are as in
	// SandboxOptions.
	Opponents bool
	Images    *image.Store
	WorkDir   string
	// Flows is how many connections one sandbox opens, and Sandboxes how many
	// open a tenth of that each. 0 means 1000 and 50.
	Flows, Sandboxes int
	// Stream is how many bytes a stream has. 0 means 256 MiB.
	Stream int64
}

// The programs in sandboxes.
var (
	//go:embed workload/net.py
	netProgram string
	//go:embed workload/web.js
	webProgram string
)

// NewNetworkSuite returns the suite of the path between a sandbox and the
// outside: streams, new connections and many connections, under policies of
// different cost, and previews of ports.
func NewNetworkSuite(o NetworkOptions) *Suite {
	if o.Flows == 0 {
		o.Flows = 1000
	}
	if o.Sandboxes == 0 {
		o.Sandboxes = 50
	}
	if o.Stream == 0 {
		o.Stream = 256 << 20
	}
	n := &networkBench{o}
	byName := sandbox.Network{Allow: []sandbox.Domain{{Name: "*." + worldDomain}}}
	byAddress := sandbox.Network{AllowCIDRs: []string{worldAddr.String() + "/32"}}
	opened := sandbox.Network{Allow: []sandbox.Domain{{Name: "*." + worldDomain, Rules: []sandbox.Rule{
		{SetHeaders: map[string]string{"Authorization": "Bearer bench"}},
	}}}}

	var native contender
	if o.Opponents {
		native = newNative(o.Images, o.WorkDir)
	}
	alone := func(policy sandbox.Network, measure measurement) []Subject {
		return []Subject{subject(Cay, "", n.inSandbox(policy), measure)}
	}
	beside := func(policy sandbox.Network, measure measurement) []Subject {
		all := alone(policy, measure)
		if o.Opponents {
			all = append(all, subject(native.name, native.skip, n.onHost(native), measure))
		}
		return all
	}
	plain := beside(byName, n.download("http", httpPort))
	if o.Opponents {
		plain = append(plain, n.throughNginx(native))
	}
	flows := fmt.Sprintf("flows_%d", o.Flows)
	each := max(o.Flows/10, 1)
	return &Suite{Name: "network", Close: func() error { return nil }, Probes: []Probe{
		{Rows: []Row{{"stream", "MB/s", 600}}, N: 5, Warmup: 1, Subjects: beside(byName, n.stream)},
		{Rows: []Row{{"stream_by_address", "MB/s", 0}}, N: 5, Warmup: 1, Subjects: alone(byAddress, n.stream)},
		{Rows: []Row{{"stream_http", "MB/s", 0}}, N: 5, Warmup: 1, Subjects: plain},
		{Rows: []Row{{"stream_tls", "MB/s", 0}}, N: 5, Warmup: 1, Subjects: beside(byName, n.download("https", httpsPort))},
		{Rows: []Row{{"stream_intercepted", "MB/s", 250}}, N: 5, Warmup: 1, Subjects: beside(opened, n.download("https", httpsPort))},
		{Rows: []Row{{"curl", "MB/s", 0}}, N: 5, Warmup: 1, Subjects: beside(byName, n.curl)},
		{Rows: []Row{{"curl_intercepted", "MB/s", 0}}, N: 5, Warmup: 1, Subjects: beside(opened, n.curl)},
		{Rows: []Row{{"connect", "ms", 0}, {"connect.added", "ms", 1}}, N: 20, Warmup: 1, Subjects: beside(byName, n.connect)},
		{Rows: []Row{{"connect_intercepted", "ms", 0}, {"connect_intercepted.added", "ms", 5}}, N: 20, Warmup: 1,
			Subjects: beside(opened, n.connect)},
		{Rows: []Row{{flows, "s", 0}}, N: 3, Warmup: 1, Subjects: beside(byName, n.flows(o.Flows))},
		{Rows: []Row{{fmt.Sprintf("flows_%dx%d", o.Sandboxes, each), "s", 0}}, N: 3,
			Subjects: []Subject{{Name: Cay, Open: n.crowd(byName, o.Sandboxes, each)}}},
		{Rows: []Row{{"preview", "ms", 0}, {"preview.added", "ms", 1.5}}, N: 20, Warmup: 1,
			Subjects: []Subject{{Name: Cay, Open: n.preview(n.previewLatency)}}},
		{Rows: []Row{{"preview_rate", "requests/s", 5000}}, N: 5, Warmup: 1, Subjects: []Subject{
			{Name: Cay, Open: n.preview(n.previewRate)}, {Name: "inside", Open: n.preview(insideRate)},
		}},
	}}
}

// networkBench has the common state of the suite's probes.
type networkBench struct{ o NetworkOptions }

// visitor is where a client of the World's servers runs.
type visitor struct {
	box box
	// plain is a sandbox with unrestricted network, to compare with. Nil if
	// there is nothing to compare.
	plain box
	// at returns the host and port at which a server is reached.
	at    func(port int) (host, realPort string)
	close func(ctx context.Context) error
}

// measurement does the work once.
type measurement func(ctx context.Context, v *visitor) ([]float64, error)

func subject(name, skip string, open func(ctx context.Context) (*visitor, error), measure measurement) Subject {
	return Subject{Name: name, Skip: skip, Open: func(ctx context.Context, _ int) (*Session, error) {
		v, err := open(ctx)
		if err != nil {
			return nil, err
		}
		return &Session{Sample: func(ctx context.Context) ([]float64, error) { return measure(ctx, v) }, Close: v.close}, nil
	}}
}

// host is the name that sandboxes use for all servers.
const host = "www." + worldDomain

// inSandbox opens a sandbox with a policy, and a sandbox with unrestricted
// network.
func (n *networkBench) inSandbox(policy sandbox.Network) func(context.Context) (*visitor, error) {
	return func(ctx context.Context) (*visitor, error) {
		var boxes []box
		for _, p := range []sandbox.Network{policy, {Mode: sandbox.AllowAll}} {
			b, err := n.create(ctx, sandbox.CreateParams{Network: p})
			if err != nil {
				return nil, errors.Join(err, removeAll(ctx, boxes))
			}
			boxes = append(boxes, b)
		}
		v := visitorIn(boxes[0])
		v.plain, v.close = boxes[1], func(ctx context.Context) error { return removeAll(ctx, boxes) }
		return v, nil
	}
}

// visitorIn returns a visitor for the programs in a sandbox.
func visitorIn(b box) *visitor {
	return &visitor{box: b, at: func(port int) (string, string) { return host, strconv.Itoa(port) }}
}

func (n *networkBench) create(ctx context.Context, p sandbox.CreateParams) (*sandboxBox, error) {
	return newSandbox(ctx, n.o.Daemon.Client, p)
}

// onHost returns visitors that run the same programs as plain processes.
func (n *networkBench) onHost(native contender) func(context.Context) (*visitor, error) {
	return func(ctx context.Context) (*visitor, error) {
		b, err := native.runner.create(ctx)
		if err != nil {
			return nil, err
		}
		return &visitor{box: b, at: n.o.World.at, close: b.remove}, nil
	}
}

// program runs net.py, which prints a number.
func (v *visitor) program(ctx context.Context, b box, what, name string, port, count int) (float64, error) {
	to, realPort := v.at(port)
	out, err := b.run(ctx, "python3", "-c", netProgram, what, name, to, realPort, strconv.Itoa(count))
	if err != nil {
		return 0, err
	}
	return parseNumber(out)
}

func parseNumber(out string) (float64, error) {
	v, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	if err != nil {
		return 0, fmt.Errorf("a program wrote %q instead of a number", out)
	}
	return v, nil
}

// stream measures a connection that is passed on unread.
func (n *networkBench) stream(ctx context.Context, v *visitor) ([]float64, error) {
	rate, err := v.program(ctx, v.box, "stream", worldDomain, helloPort, int(n.o.Stream))
	return []float64{rate}, err
}

// download measures a response to HTTP/1.1.
func (n *networkBench) download(scheme string, port int) measurement {
	return func(ctx context.Context, v *visitor) ([]float64, error) {
		rate, err := v.program(ctx, v.box, scheme, host, port, int(n.o.Stream))
		return []float64{rate}, err
	}
}

// curl measures a download with curl, which uses HTTP/2 here.
func (n *networkBench) curl(ctx context.Context, v *visitor) ([]float64, error) {
	to, realPort := v.at(httpsPort)
	out, err := v.box.run(ctx, "curl", "-fsSk", "-o", "/dev/null", "-w", "%{size_download} %{time_total}",
		fmt.Sprintf("https://%s/%d", net.JoinHostPort(to, realPort), n.o.Stream))
	if err != nil {
		return nil, err
	}
	var size, seconds float64
	if _, err := fmt.Sscan(out, &size, &seconds); err != nil || int64(size) != n.o.Stream || seconds <= 0 {
		return nil, fmt.Errorf("curl wrote %q after a download of %d bytes", out, n.o.Stream)
	}
	return []float64{size / 1e6 / seconds}, nil
}

// connects is how many consecutive connections make one sample of latency.
const connects = 20

// connect measures new connections, and how much longer they take than without
// restrictions.
func (n *networkBench) connect(ctx context.Context, v *visitor) ([]float64, error) {
	took, err := v.program(ctx, v.box, "connect", host, httpsPort, connects)
	if err != nil || v.plain == nil {
		return []float64{took}, err
	}
	plain, err := v.program(ctx, v.plain, "connect", host, httpsPort, connects)
	return []float64{took, took - plain}, err
}

// flows measures many connections at once.
func (n *networkBench) flows(count int) measurement {
	return func(ctx context.Context, v *visitor) ([]float64, error) {
		return n.race(ctx, []*visitor{v}, count)
	}
}

// race measures from when all visitors' programs are ready until each has
// opened and used its connections.
func (n *networkBench) race(ctx context.Context, visitors []*visitor, count int) ([]float64, error) {
	race := n.o.World.rally.expect(len(visitors))
	programs, ctx := errgroup.WithContext(ctx)
	for _, v := range visitors {
		programs.Go(func() error {
			_, err := v.program(ctx, v.box, "flows", worldDomain, helloPort, count)
			if b, ok := v.box.(*sandboxBox); ok && err != nil {
				err = errors.Join(err, b.explain(ctx))
			}
			return err
		})
	}
	took, err := race.wait(ctx)
	// The error of a failed program explains more than the error of the race
	// that the program left.
	if err := programs.Wait(); err != nil {
		return nil, err
	}
	return []float64{took.Seconds()}, err
}

// explain returns the flow log's reasons for connections that failed.
func (b *sandboxBox) explain(ctx context.Context) error {
	ctx, cancel := cleanup(ctx)
	defer cancel()
	for _, verdict := range []sandbox.Verdict{sandbox.Denied, sandbox.Broken} {
		page, err := b.c.Flows(ctx, b.id, sandbox.FlowParams{Verdict: verdict})
		if err != nil {
			return err
		}
		if len(page.Items) > 0 {
			f := page.Items[0]
			return fmt.Errorf("the first of %d connections that were %s: %s: %s", len(page.Items), verdict, f.Rule, f.Reason)
		}
	}
	return nil
}

// crowd measures many sandboxes with many connections each.
func (n *networkBench) crowd(policy sandbox.Network, size, count int) func(context.Context, int) (*Session, error) {
	return func(ctx context.Context, _ int) (*Session, error) {
		boxes, err := createAll(ctx, policyRunner{n, policy}, size, 4)
		if err != nil {
			return nil, errors.Join(err, removeAll(ctx, boxes))
		}
		var visitors []*visitor
		for _, b := range boxes {
			visitors = append(visitors, visitorIn(b))
		}
		return &Session{
			Sample: func(ctx context.Context) ([]float64, error) { return n.race(ctx, visitors, count) },
			Close:  func(ctx context.Context) error { return removeAll(ctx, boxes) },
		}, nil
	}
}

// policyRunner makes sandboxes with a policy.
type policyRunner struct {
	n      *networkBench
	policy sandbox.Network
}

func (r policyRunner) create(ctx context.Context) (box, error) {
	b, err := r.n.create(ctx, sandbox.CreateParams{Network: r.policy})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// previewed is a sandbox with a server.
type previewed struct {
	box  *sandboxBox
	url  *url.URL // of the preview
	addr string   // where the daemon listens
}

const previewPort = 3000

// preview opens a sandbox with a trivial server.
func (n *networkBench) preview(measure func(ctx context.Context, p *previewed) ([]float64, error)) func(context.Context, int) (*Session, error) {
	return func(ctx context.Context, _ int) (_ *Session, err error) {
		b, err := n.create(ctx, sandbox.CreateParams{Ports: []sandbox.PortParams{{Port: previewPort}}})
		if err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				removeBox(ctx, b, &err)
			}
		}()
		p := &previewed{box: b}
		s, err := b.c.Get(ctx, b.id)
		if err != nil {
			return nil, err
		}
		if p.url, err = url.Parse(s.Ports[0].URL); err != nil {
			return nil, fmt.Errorf("read the URL of a preview: %w", err)
		}
		api, err := url.Parse(n.o.Daemon.at.URL)
		if err != nil {
			return nil, fmt.Errorf("read the URL of the daemon: %w", err)
		}
		p.addr = api.Host
		server, err := b.c.Exec(ctx, b.id, sandbox.CommandParams{Argv: []string{"node", "-e", webProgram, "serve", strconv.Itoa(previewPort)}})
		if err != nil {
			return nil, err
		}
		e, err := server.Next()
		for err == nil && len(e.Data) == 0 {
			e, err = server.Next()
		}
		if err == nil && !strings.HasPrefix(string(e.Data), "listening") {
			err = fmt.Errorf("the server in the sandbox wrote %q", e.Data)
		}
		if err != nil {
			return nil, errors.Join(err, server.Close())
		}
		return &Session{
			Sample: func(ctx context.Context) ([]float64, error) { return measure(ctx, p) },
			Close:  func(ctx context.Context) error { return errors.Join(server.Close(), b.remove(ctx)) },
		}, nil
	}
}

// The duration of the use of a preview, and the number of connections for
// measuring the rate.
const (
	previewTime  = time.Second
	previewConns = 32
)

// previewLatency measures consecutive requests, and how much longer they take
// than from within the sandbox.
func (n *networkBench) previewLatency(ctx context.Context, p *previewed) ([]float64, error) {
	_, took, err := p.load(ctx, 1)
	if err != nil {
		return nil, err
	}
	_, inside, err := p.loadInside(ctx, 1)
	return []float64{took, took - inside}, err
}

func (n *networkBench) previewRate(ctx context.Context, p *previewed) ([]float64, error) {
	rate, _, err := p.load(ctx, previewConns)
	return []float64{rate}, err
}

// insideRate measures the rate of the guest's own server with the guest's own
// client.
func insideRate(ctx context.Context, p *previewed) ([]float64, error) {
	rate, _, err := p.loadInside(ctx, previewConns)
	return []float64{rate}, err
}

func (p *previewed) loadInside(ctx context.Context, conns int) (rate, median float64, err error) {
	out, err := p.box.run(ctx, "node", "-e", webProgram, "load", strconv.Itoa(previewPort), strconv.Itoa(conns),
		strconv.FormatInt(previewTime.Milliseconds(), 10))
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscan(out, &rate, &median); err != nil {
		return 0, 0, fmt.Errorf("a program wrote %q instead of two numbers", out)
	}
	return rate, median, nil
}

// load sends requests over conns connections, and returns the requests answered
// in a second and the median duration in milliseconds.
func (p *previewed) load(ctx context.Context, conns int) (rate, median float64, err error) {
	g, ctx := errgroup.WithContext(ctx)
	took := make([][]float64, conns)
	begun := time.Now()
	for i := range conns {
		g.Go(func() (err error) {
			took[i], err = p.requests(ctx, begun.Add(previewTime))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, 0, err
	}
	elapsed := time.Since(begun)
	all := slices.Sorted(slices.Values(slices.Concat(took...)))
	return float64(len(all)) / elapsed.Seconds(), all[len(all)/2], nil
}

// requests sends requests one after the other, over one connection.
func (p *previewed) requests(ctx context.Context, until time.Time) (took []float64, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	request := fmt.Appendf(nil, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", p.url.Host)
	answers := bufio.NewReader(conn)
	for len(took) == 0 || time.Now().Before(until) {
		begun := time.Now()
		if _, err := conn.Write(request); err != nil {
			return nil, err
		}
		answer, err := http.ReadResponse(answers, nil)
		if err != nil {
			return nil, fmt.Errorf("read a preview: %w", err)
		}
		body, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("a preview answered %s: %.200q (%v)", answer.Status, body, err)
		}
		took = append(took, ms(time.Since(begun)))
	}
	return took, nil
}
