package network

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/network/intercept"
	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/internal/sandboxd/network/sniff"
	"github.com/cayhq/cay/sandbox"
)

const (
	sniffTimeout = 10 * time.Second // for a guest to send its first bytes
	maxHTTPHead  = 16 << 10         // bytes read to find a Host that only a proxy needs
)

// inspect reads the name that an accepted connection is for, and decides.
func (f *flow) inspect(conn *guestConn) {
	protocol, first, err := f.guess(conn, f.link.egress.sniffTimeout)
	f.inspectAs(conn, protocol, first, err)
}

// inspectAs is inspect for a connection whose first bytes guess has read already; the
// other arguments are guess's results.
func (f *flow) inspectAs(conn *guestConn, protocol sniff.Protocol, first []byte, err error) {
	if err == nil && protocol == sniff.PostgresGSS {
		// As a server without GSSAPI says; TLS is asked for next.
		if _, err = conn.Write([]byte{'N'}); err == nil {
			protocol, first, err = f.guess(conn, f.link.egress.sniffTimeout)
		}
	}
	switch {
	case protocol == sniff.TLS:
		f.inspectTLS(conn, first, false)
	case protocol == sniff.HTTP:
		f.inspectHTTP(conn, first)
	case protocol == sniff.PostgresTLS && len(first) == len(sniff.PostgresSSLRequest):
		if _, err := conn.Write([]byte{'S'}); err == nil {
			f.inspectTLS(conn, nil, true)
		}
	case isTimeout(err):
		f.nameless(conn, first, "the client said nothing for %s; where the server speaks first only allow_cidrs can allow a connection", f.link.egress.sniffTimeout)
	case err != nil && len(first) == 0:
		f.nameless(conn, first, "the client left without a word")
	default:
		f.nameless(conn, first, "the connection speaks neither TLS nor HTTP, so that it has no name; only allow_cidrs can allow it")
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// nameless ends a connection without a name, unless the policy allows its address.
func (f *flow) nameless(conn *guestConn, first []byte, format string, args ...any) {
	// With the deadline off before anything is relayed.
	if conn.SetReadDeadline(time.Time{}) != nil {
		return
	}
	if !f.byAddressAlone(conn, first, policy.Decision{Rule: "no name", Reason: fmt.Sprintf(format, args...)}) {
		reset(conn)
	}
}

// guess reads until the guest's protocol is known, for patience at most. first has the
// bytes read, also if there is an error.
func (f *flow) guess(conn *guestConn, patience time.Duration) (protocol sniff.Protocol, first []byte, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return sniff.Unknown, nil, err
	}
	buf := make([]byte, 2<<10)
	for more := true; more && len(first) < len(buf); {
		n, err := conn.Read(buf[len(first):])
		first = buf[:len(first)+n]
		if err != nil {
			return sniff.Unknown, first, err
		}
		protocol, more = sniff.Guess(first)
	}
	return protocol, first, nil
}

// hello reads the rest of a TLS hello. raw has all bytes read, including first.
func (f *flow) hello(conn *guestConn, first []byte) (hello *sniff.ClientHello, raw []byte, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(f.link.egress.sniffTimeout)); err != nil {
		return nil, first, err
	}
	rest := bytes.NewReader(first)
	hello, raw, err = sniff.ReadClientHello(io.MultiReader(rest, conn))
	return hello, before(raw, rest), errors.Join(err, conn.SetReadDeadline(time.Time{}))
}

// before returns read, followed by the bytes that r has left.
func before(read []byte, r *bytes.Reader) []byte {
	rest := make([]byte, r.Len())
	_, _ = r.Read(rest) // from memory
	return append(read, rest...)
}

func (f *flow) inspectTLS(conn *guestConn, first []byte, postgres bool) {
	f.learn(func(k *facts) { k.protocol = "tls" })
	hello, raw, err := f.hello(conn, first)
	l := f.link
	// If the policy allows the address, only the host's proxy needs a name.
	optional := l.byAddress(l.policy.Load(), f.dst).Verdict == policy.Allow
	var name string
	switch {
	case err != nil:
		err = fmt.Errorf("what the client sent is no TLS hello to go by: %w", err)
	case hello.ServerName == "":
		err = errors.New("the TLS hello names no server")
	default:
		name, err = policy.CleanName(hello.ServerName)
	}
	if err != nil {
		if optional {
			f.nameless(conn, raw, "%v", err)
			return
		}
		f.refuse(conn, raw, policy.Decision{Rule: "no name", Reason: err.Error()})
		return
	}
	f.learn(func(k *facts) { k.name = name })
	d, domain := l.policy.Load().Name(name, f.dst.Port())
	switch {
	case d.Verdict != policy.Allow:
		f.refuse(conn, raw, d)
	case domain.Intercept && postgres:
		f.refuse(conn, raw, policy.Decision{Rule: d.Rule, Reason: fmt.Sprintf("the rules for %q are for HTTP, and the connection speaks PostgreSQL", name)})
	case domain.Intercept:
		f.intercept(conn, raw, name)
	case hello.ECH && !optional:
		f.refuse(conn, raw, policy.Decision{Rule: d.Rule, Reason: fmt.Sprintf("the TLS hello for %q has an encrypted one in it, which may name another server", name)})
	default:
		f.passOn(conn, raw, name, postgres)
	}
}

// askPostgres asks a server for TLS.
func askPostgres(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, sniff.PostgresSSLRequest); err != nil {
		return fmt.Errorf("ask the server for TLS: %w", err)
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return fmt.Errorf("read whether the server speaks TLS: %w", err)
	}
	if answer[0] != 'S' {
		return errors.New("the PostgreSQL server does not speak TLS, without which it has no name")
	}
	return conn.SetDeadline(time.Time{})
}

// inspectHTTP judges each request separately; in the mode allow-all, where only the
// host's proxy needs the name, the first request is enough.
func (f *flow) inspectHTTP(conn *guestConn, first []byte) {
	l := f.link
	if l.policy.Load().Mode() == sandbox.AllowAll {
		name, head := f.host(conn, first)
		if name == "" {
			f.nameless(conn, head, "the HTTP request names no host")
			return
		}
		f.learn(func(k *facts) { k.protocol = "http" })
		f.passOn(conn, head, name, false)
		return
	}
	f.intercept(conn, first, "")
}

// host reads the head of a request. name is empty if the request names no host; read has
// all bytes read, including first.
func (f *flow) host(conn *guestConn, first []byte) (name string, read []byte) {
	var seen bytes.Buffer
	r := io.TeeReader(io.LimitReader(io.MultiReader(bytes.NewReader(first), conn), maxHTTPHead), &seen)
	req, err := http.ReadRequest(bufio.NewReader(r))
	read = seen.Bytes()
	if len(read) < len(first) {
		read = first
	}
	if err != nil || conn.SetReadDeadline(time.Time{}) != nil {
		return "", read
	}
	host := req.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if name, err = policy.CleanName(host); err != nil {
		return "", read
	}
	return name, read
}

// intercept passes the connection to package intercept. name is the TLS server name, or
// empty for plain HTTP.
func (f *flow) intercept(conn *guestConn, first []byte, name string) {
	d := f.learn(func(k *facts) {
		k.stage, k.name, k.protocol = opened, name, "https"
		if name == "" {
			k.protocol = "http"
		}
	})
	if d.Verdict != policy.Allow {
		f.refuse(conn, first, d)
		return
	}
	f.serve(conn, first, name, nil)
}

// serve answers requests, by the policy and servers, or by a refusal.
func (f *flow) serve(conn *guestConn, first []byte, name string, refusal *policy.Decision) {
	l := f.link
	proxy := l.egress.cfg.Proxy
	if proxy == nil {
		f.denied(policy.Decision{Rule: "no interception", Reason: "requests would have to be read, and this daemon cannot do that"})
		reset(conn)
		return
	}
	if conn.SetReadDeadline(time.Time{}) != nil {
		return
	}
	s := &intercept.Session{
		Name: name, Port: f.dst.Port(), Address: f.dst,
		Policy: l.policy.Load, Refusal: refusal,
		Dial: l.servers.dial, Upstream: l.servers.pool, Memory: memory{l.share},
		Record: func(r sandbox.Flow) { l.records.add(r) },
	}
	if token := l.egress.cfg.ForwardToken; token != nil {
		s.ForwardToken = func(ctx context.Context, audience string) (string, error) { return token(ctx, l.machine, audience) }
	}
	c := &metered{Conn: replay(conn, first), flow: f}
	if name == "" {
		proxy.ServeHTTP1(f.ctx, c, s)
	} else {
		proxy.ServeTLS(f.ctx, c, s)
	}
}

// explain tells the client of a flow denied by its address why it was denied.
func (f *flow) explain(conn *guestConn, d policy.Decision) {
	protocol, first, err := f.guess(conn, f.link.egress.sniffTimeout)
	switch {
	case err != nil:
		f.denied(d)
		reset(conn)
	case protocol == sniff.HTTP:
		f.learn(func(k *facts) { k.protocol = "http" })
		f.refuse(conn, first, d)
	case protocol == sniff.TLS:
		hello, _, err := f.hello(conn, first)
		f.learn(func(k *facts) {
			k.protocol = "tls"
			if err != nil {
				return
			}
			if name, err := policy.CleanName(hello.ServerName); err == nil {
				k.name = name
			}
		})
		f.refuse(conn, first, d)
	default:
		f.denied(d)
		reset(conn)
	}
}
