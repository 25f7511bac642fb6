package intercept

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/sandboxd/upload"
)

// dropUpgrade removes the offer to switch to another version of HTTP, or to TLS, on the
// same connection: requests inside would bypass the policy. Servers must go on without.
// Other upgrades, such as to WebSocket, pass.
func dropUpgrade(r *http.Request) {
	for _, offer := range r.Header["Upgrade"] {
		for protocol := range strings.SplitSeq(offer, ",") {
			name, _, _ := strings.Cut(textproto.TrimString(protocol), "/")
			if slices.Contains([]string{"h2c", "h2", "h3", "http", "tls"}, strings.ToLower(name)) {
				delete(r.Header, "Upgrade")
				delete(r.Header, "Http2-Settings")
				return
			}
		}
	}
}

// dropHopByHop removes the headers that are for the guest's connection alone, including
// the headers that Connection names. They are not sent on, so no rule may be satisfied by
// them. The headers of an upgrade stay.
func dropHopByHop(h http.Header) {
	upgrade := false
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			switch name = http.CanonicalHeaderKey(textproto.TrimString(name)); name {
			case "Upgrade":
				upgrade = true
			case "Connection", "Expect": // the server's own
			default:
				delete(h, name)
			}
		}
	}
	if !upgrade {
		delete(h, "Upgrade")
	}
	for _, name := range []string{"Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection"} {
		delete(h, name)
	}
}

// isHeader reports whether a server may confuse two header names: some servers, and all
// that pass headers on as variables, do not distinguish - and _.
func isHeader(a, b string) bool {
	return len(a) == len(b) && strings.EqualFold(strings.ReplaceAll(a, "_", "-"), strings.ReplaceAll(b, "_", "-"))
}

// escapes reports whether an appended path would leave the path before it.
func escapes(path string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == '\\' }),
		func(segment string) bool { return segment == ".." || segment == "." })
}

// rewrite makes the request that is sent on.
func rewrite(pr *httputil.ProxyRequest) {
	x := exchangeOf(pr.In.Context())
	in, out := pr.In, pr.Out
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v := in.Header[name]; v != nil {
			out.Header[name] = v // the guest's own header, which ReverseProxy removed
		}
	}
	out.URL = &url.URL{
		Scheme:     x.guest.protocol(),
		Host:       x.host.name + ":" + strconv.Itoa(int(x.guest.session.Port)),
		Path:       in.URL.Path,
		RawPath:    in.URL.RawPath,
		RawQuery:   in.URL.RawQuery,
		ForceQuery: in.URL.ForceQuery,
	}
	out.Host = x.host.String()
	if x.rule != nil && x.rule.Forward != nil {
		x.redirect(out)
	}
	var banned []string // trailers that a rule's headers must not be overruled by
	if x.rule != nil {
		for name, values := range x.rule.SetHeaders {
			banned = append(banned, name)
			for sent := range out.Header {
				if isHeader(sent, name) {
					delete(out.Header, sent)
				}
			}
			out.Header[name] = values
		}
		if x.rule.Scrub {
			out.Header.Set("Accept-Encoding", "identity")
			delete(out.Header, "Range") // a secret could be asked for in parts
			delete(out.Header, "If-Range")
		}
	}
	if out.Body != nil {
		out.Trailer = trailers(in, banned, x.rule != nil && x.rule.Forward != nil)
		out.Body = &sent{Body: x.body, in: in, x: x, trailer: out.Trailer}
	}
}

// redirect sends the request to the rule's forward URL instead.
func (x *exchange) redirect(out *http.Request) {
	for name := range out.Header {
		if isForwardHeader(name) {
			delete(out.Header, name)
		}
	}
	if !strings.HasPrefix(out.URL.Path, "/") { // empty, or * for the server as a whole
		out.URL.Path, out.URL.RawPath = "/", ""
	}
	path := out.URL.EscapedPath()
	out.Header.Set("vercel-forwarded-host", x.host.name)
	out.Header.Set("vercel-forwarded-scheme", x.guest.protocol())
	out.Header.Set("vercel-forwarded-port", strconv.Itoa(int(x.guest.session.Port)))
	// Receivers put the request's URL together from these alone.
	forwarded := path
	if out.URL.RawQuery != "" {
		forwarded += "?" + out.URL.RawQuery
	}
	out.Header.Set("vercel-forwarded-path", forwarded)
	if x.token != "" {
		out.Header.Set(tokenHeader, x.token)
	}

	to := x.rule.Forward
	u := *out.URL
	u.Scheme, u.Host = to.Scheme, to.Host
	u.Path = strings.TrimSuffix(to.Path, "/") + out.URL.Path
	u.RawPath = strings.TrimSuffix(to.EscapedPath(), "/") + path
	out.URL, out.Host = &u, to.Host
}

// tokenHeader carries Session.ForwardToken.
const tokenHeader = "vercel-sandbox-oidc-token"

// isForwardHeader reports whether a receiver may take a header as a statement of where a
// forwarded request comes from.
func isForwardHeader(name string) bool {
	const prefix = "vercel-forwarded-"
	return isHeader(name, tokenHeader) || len(name) >= len(prefix) && isHeader(name[:len(prefix)], prefix)
}

// audience returns the URL that identifies a receiver of forwarded requests: the rule's
// URL, without the path that each request adds.
func audience(to *url.URL) string {
	host := strings.ToLower(to.Host)
	if usual := map[string]string{"http": ":80", "https": ":443"}[to.Scheme]; usual != "" {
		host = strings.TrimSuffix(host, usual)
	}
	return to.Scheme + "://" + host + strings.TrimRight(to.EscapedPath(), "/")
}

// trailers returns the trailers that the guest has announced and may send.
func trailers(in *http.Request, banned []string, forwarded bool) http.Header {
	if len(in.Trailer) == 0 {
		return nil
	}
	t := http.Header{}
	for name := range in.Trailer {
		if forwarded && isForwardHeader(name) {
			continue
		}
		if !slices.ContainsFunc(banned, func(b string) bool { return isHeader(b, name) }) {
			t[name] = nil
		}
	}
	return t
}

// sent is a request's body on its way to the server.
type sent struct {
	*upload.Body
	in      *http.Request
	x       *exchange
	trailer http.Header // to be filled at the end
}

func (s *sent) Read(p []byte) (int, error) {
	n, err := s.Body.Read(p)
	s.x.egress.Add(int64(n))
	switch {
	case err == io.EOF:
		for name := range s.trailer {
			s.trailer[name] = s.in.Trailer[name]
		}
	case err != nil && !s.GivenUp():
		s.x.cutOff.CompareAndSwap(nil, &err)
	}
	return n, err
}

// roundTripper sends requests on by the transports of their sandbox.
type roundTripper struct{}

func (roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	x := exchangeOf(r.Context())
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		address := info.Conn.RemoteAddr().String()
		x.address.Store(&address)
	}}
	if s := x.scrubber(); s != nil {
		trace.Got1xxResponse = func(_ int, h textproto.MIMEHeader) error { // called before ReverseProxy's hook, which passes the response on
			s.header(http.Header(h))
			return nil
		}
	}
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
	if r.Header.Get("Upgrade") != "" {
		return x.gen.h1.RoundTrip(r)
	}
	return x.gen.any.RoundTrip(r)
}

// scrubber returns a scrubber of this exchange's response, nil if nothing is to be
// scrubbed.
func (x *exchange) scrubber() *scrubber {
	if x.rule == nil || !x.rule.Scrub || len(x.rule.Secrets) == 0 {
		return nil
	}
	return newScrubber(x.rule.Secrets)
}

// errEncoded is returned for responses that cannot be scrubbed.
var errEncoded = errors.New("the response is to be scrubbed, but the server sent it encoded, or in parts")

func modifyResponse(res *http.Response) error {
	x := exchangeOf(res.Request.Context())
	if res.StatusCode == http.StatusSwitchingProtocols {
		// Package httputil would notice too, but leave the connection open.
		if asked, got := res.Request.Header.Get("Upgrade"), res.Header.Get("Upgrade"); !strings.EqualFold(asked, got) {
			return fmt.Errorf("the server switches to the protocol %.60q where %.60q was asked for", got, asked)
		}
		conn, ok := res.Body.(upgradedBody)
		if !ok {
			return fmt.Errorf("upgraded connection is a %T", res.Body)
		}
		x.flow.Status = res.StatusCode
		res.Body = &upgraded{upgradedBody: conn, x: x}
		return nil
	}
	if len(res.Trailer) > 0 && hasBody(res) {
		// HTTP/2 can have both, HTTP/1 has trailers only after chunks.
		res.Header.Del("Content-Length")
		res.ContentLength = -1
	}
	s := x.scrubber()
	if s == nil {
		return nil
	}
	if hasBody(res) {
		encoding := strings.Join(res.Header.Values("Content-Encoding"), ",")
		if encoding != "" && !strings.EqualFold(encoding, "identity") || res.StatusCode == http.StatusPartialContent {
			return errEncoded
		}
		res.ContentLength = -1
	}
	res.Body = &scrubbed{body: res.Body, scrubber: s, res: res} // for the trailers, at least
	for _, name := range []string{"Content-Length", "Accept-Ranges", "Content-Md5", "Digest", "Content-Digest", "Repr-Digest"} {
		res.Header.Del(name) // describes the server's unscrubbed bytes only
	}
	s.header(res.Header)
	return nil
}

func hasBody(res *http.Response) bool {
	return res.Request.Method != http.MethodHead && res.ContentLength != 0 &&
		res.StatusCode != http.StatusNoContent && res.StatusCode != http.StatusNotModified
}

func handleError(_ http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	x.fail(r.Context(), err)
}

// upgradedBody is the body that package http gives to the response of an upgraded
// connection.
type upgradedBody interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// upgraded counts the bytes of an upgraded connection.
type upgraded struct {
	upgradedBody
	x *exchange
}

func (u *upgraded) Read(p []byte) (int, error) {
	n, err := u.upgradedBody.Read(p)
	u.x.ingress.Add(int64(n))
	return n, err
}

func (u *upgraded) Write(p []byte) (int, error) {
	n, err := u.upgradedBody.Write(p)
	u.x.egress.Add(int64(n))
	return n, err
}
