package bench

import (
	"context"
	"errors"
	"io"
	"maps"
	"runtime"
	"time"
)

// GatewayOptions are the options of the suite of the AI gateway.
type GatewayOptions struct {
	// Program is the argv of a program that calls ServeField with the added
	// arguments.
	Program []string
	// Serve is the argv of "cay serve".
	Serve []string
	// Portkey is the directory of @portkey-ai/gateway.
	Portkey string
	// Opponents says whether to measure the opponents. The plain reverse proxy is
	// measured in any case, because ratios refer to it.
	Opponents bool
	WorkDir   string // of the daemon's data: on the disk that is to be measured
	Stderr    io.Writer
	// Seconds is how long a sample lasts; 0: 3.
	Seconds float64
	// Divide divides all numbers of clients, for tests. 0 means 1.
	Divide int
}

// gatewayBench has the common state of the suite's probes.
type gatewayBench struct{ o GatewayOptions }

// NewGatewaySuite returns the suite of the AI gateway: a daemon with a key, a
// budget and records, on one core, between clients and a provider that answers at
// once, on another.
func NewGatewaySuite(o GatewayOptions) *Suite {
	if o.Seconds == 0 {
		o.Seconds = 3
	}
	o.Divide = max(o.Divide, 1)
	g := &gatewayBench{o}
	return &Suite{
		Name: "gateway",
		Probes: []Probe{
			g.calls("plain", fieldRequest{C: 64}, 60, 15_000),
			g.added("added", fieldRequest{C: 1}, false, 0.25),
			g.calls("stream", fieldRequest{C: 64, Stream: true, Pace: 40}, 600, 0),
			g.added("first_token", fieldRequest{C: 1, Stream: true, Pace: 5}, true, 0.5),
			g.added("first_token_64", fieldRequest{C: 64, Stream: true, Pace: 40}, true, 0.5),
			g.added("first_token_256", fieldRequest{C: 256, Stream: true, Pace: 40}, true, 0.5),
			g.calls("prompt_200k", fieldRequest{C: 16, Prompt: 200 << 10}, 0, 0),
			g.calls("cross_stream", fieldRequest{C: 64, Stream: true, Pace: 40, Model: crossed}, 0, 0),
			g.held("open_256", 256, 80),
			g.held("open_2000", 2000, 0),
		},
		Close: func() error { return nil },
	}
}

// plainProxy is the subject that ratios refer to.
const plainProxy = "reverse proxy"

// crossed is the model whose provider speaks another format.
const crossed = "crossed"

// stage is a gateway, the plain proxy beside it, and the field.
type stage struct {
	*gatewayBench
	field      *fieldPeer
	peer, base *gatewayPeer
}

// subjects are cay and its opponents.
func (g *gatewayBench) subjects(open func(s *stage) *Session) []Subject {
	starts := []struct {
		name, skip string
		start      func(context.Context, *fieldPeer) (*gatewayPeer, error)
	}{
		{Cay, "", g.startCay},
		{plainProxy, "", g.startProxy},
		{"portkey", missingPortkey(g.o.Portkey), g.startPortkey},
	}
	var all []Subject
	for _, c := range starts {
		if c.name == "portkey" && !g.o.Opponents {
			continue
		}
		sub := Subject{Name: c.name, Skip: c.skip}
		if why := unpinnable(runtime.NumCPU()); why != "" {
			sub.Skip = why
		}
		sub.Open = func(ctx context.Context, _ int) (_ *Session, err error) {
			s := &stage{gatewayBench: g}
			closeAll := func(context.Context) error { return s.close() }
			defer func() {
				if err != nil {
					err = errors.Join(err, s.close())
				}
			}()
			if s.field, err = g.startField(); err != nil {
				return nil, err
			}
			if s.peer, err = c.start(ctx, s.field); err != nil {
				return nil, err
			}
			if s.base, err = g.startProxy(ctx, s.field); err != nil {
				return nil, err
			}
			session := open(s)
			session.Close = closeAll
			return session, nil
		}
		all = append(all, sub)
	}
	return all
}

func (s *stage) close() error {
	var err error
	for _, p := range []*gatewayPeer{s.peer, s.base} {
		if p != nil {
			err = errors.Join(err, p.close())
		}
	}
	if s.field != nil {
		err = errors.Join(err, s.field.close())
	}
	return err
}

// scaled returns a request scaled to the machine's, or a test's, size.
func (s *stage) scaled(r fieldRequest) fieldRequest {
	r.C = max(r.C/s.o.Divide, 1)
	r.Seconds = s.o.Seconds
	return r
}

// of returns a request to a peer.
func (s *stage) of(p *gatewayPeer, r fieldRequest) (fieldRequest, *gatewayPeer, error) {
	if r.Model != crossed {
		return r, p, nil
	}
	r.Model = p.cross
	switch p.name {
	case plainProxy: // the same clients, without the translation
		r.Model = p.model
	case "portkey":
		q := *p
		q.head = maps.Clone(p.head)
		q.head["x-portkey-provider"] = "anthropic"
		return r, &q, nil
	}
	return r, p, nil
}

// load runs calls through a peer, and returns the peer's CPU time, in seconds.
func (s *stage) load(ctx context.Context, p *gatewayPeer, r fieldRequest) (fieldAnswer, float64, error) {
	r, p, err := s.of(p, s.scaled(r))
	if err != nil {
		return fieldAnswer{}, 0, err
	}
	r.Do = "call"
	var used float64
	a, err := p.retried(ctx, func() (fieldAnswer, error) {
		before, err := p.cpu()
		if err != nil {
			return fieldAnswer{}, err
		}
		a, err := s.field.do(ctx, p, r)
		if err != nil {
			return a, err
		}
		after, err := p.cpu()
		used = after - before
		return a, err
	})
	return a, used, err
}

// retried calls do, and retries it for the plain proxy. On a busy machine the plain
// proxy breaks off a stream now and then, with "context canceled" although nothing
// has canceled it; so the plain proxy, and only the plain proxy, gets three tries.
func (p *gatewayPeer) retried(ctx context.Context, do func() (fieldAnswer, error)) (a fieldAnswer, err error) {
	for range 3 {
		if a, err = do(); err == nil || p == nil || p.name != plainProxy || ctx.Err() != nil {
			break
		}
	}
	return a, err
}

// calls measures the core time that a gateway needs for a call, and the calls a
// second that follow from it: .per_core is the rate that a whole core could serve,
// .seen the measured rate.
func (g *gatewayBench) calls(row string, r fieldRequest, budget, rate float64) Probe {
	return Probe{
		Rows: []Row{{row, "us", budget}, {row + ".per_core", "calls/s", rate}, {row + ".seen", "calls/s", 0}, {row + ".to_proxy", "x", 0}},
		N:    5, Warmup: 1,
		Subjects: g.subjects(func(s *stage) *Session {
			return &Session{Sample: func(ctx context.Context) ([]float64, error) {
				base, baseCPU, err := s.load(ctx, s.base, r)
				if err != nil {
					return nil, err
				}
				a, cpu, err := s.load(ctx, s.peer, r)
				if err != nil {
					return nil, err
				}
				each, plain := cpu/float64(a.Calls), baseCPU/float64(base.Calls)
				return []float64{each * 1e6, 1 / each, float64(a.Calls) / a.Seconds, each / plain}, nil
			}}
		}),
	}
}

// added measures how much longer calls take, or their first token, than without a
// gateway: the difference of medians in the same round.
func (g *gatewayBench) added(row string, r fieldRequest, first bool, budget float64) Probe {
	return Probe{
		Rows: []Row{{row, "ms", budget}, {row + ".to_proxy", "x", 0}}, N: 5, Warmup: 1,
		Subjects: g.subjects(func(s *stage) *Session {
			return &Session{Sample: func(ctx context.Context) ([]float64, error) {
				var p50 [3]float64
				for i, p := range []*gatewayPeer{nil, s.base, s.peer} {
					q := s.scaled(r)
					q.Do = "call"
					if p == nil {
						q.Model = "field"
					}
					a, err := p.retried(ctx, func() (fieldAnswer, error) { return s.field.do(ctx, p, q) })
					if err != nil {
						return nil, err
					}
					if p50[i] = a.P50; first {
						p50[i] = a.First
					}
				}
				return []float64{p50[2] - p50[0], (p50[2] - p50[0]) / (p50[1] - p50[0])}, nil
			}}
		}),
	}
}

// held measures a gateway's memory while n silent streams are open, and the core
// time that the gateway needs for them, in milliseconds a second.
func (g *gatewayBench) held(row string, n int, budget float64) Probe {
	return Probe{
		Rows: []Row{{row, "MB", budget}, {row + ".anonymous", "MB", 0}, {row + ".grown", "MB", 0}, {row + ".cpu_a_second", "ms", 0}}, N: 3,
		Subjects: g.subjects(func(s *stage) *Session {
			return &Session{Sample: func(ctx context.Context) (_ []float64, err error) {
				empty, _, err := s.peer.rss()
				if err != nil {
					return nil, err
				}
				r := s.scaled(fieldRequest{C: n, Stream: true})
				r.Do = "hold"
				if _, err := s.field.do(ctx, s.peer, r); err != nil {
					return nil, err
				}
				defer func() {
					_, rerr := s.field.do(ctx, s.peer, fieldRequest{Do: "release"})
					err = errors.Join(err, rerr)
				}()
				before, err := s.peer.cpu()
				if err != nil {
					return nil, err
				}
				wait := time.NewTimer(time.Duration(s.o.Seconds * float64(time.Second)))
				defer wait.Stop()
				select {
				case <-wait.C:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
				after, err := s.peer.cpu()
				if err != nil {
					return nil, err
				}
				full, anonymous, err := s.peer.rss()
				if err != nil {
					return nil, err
				}
				return []float64{full, anonymous, full - empty, (after - before) / s.o.Seconds * 1000}, nil
			}}
		}),
	}
}
