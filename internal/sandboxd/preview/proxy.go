package preview

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

const (
	dialTimeout = 10 * time.Second
	// idleTimeout is how long an idle connection to a guest is kept: less than the 5 s
	// after which Node's servers close connections, which would break a request sent at
	// that moment.
	idleTimeout = 4 * time.Second
	idlePerPort = 32
	idleInAll   = 2048

	maxAnswerHeader = 256 << 10 // bytes
	copyBuffer      = 32 << 10  // bytes
)

// proxy passes requests on to guests.
type proxy struct {
	h       *Handler
	reverse *httputil.ReverseProxy
	// The transports for guests. The proxy cannot tell in advance which one a server
	// supports, but gRPC never uses HTTP/1.1.
	http1, http2 *http.Transport
}

// newProxy returns a proxy. Its transport keeps idle connections by label, which is the
// host of the URL: a label stands for the same port of the same sandbox forever.
func newProxy(h *Handler) *proxy {
	p := &proxy{h: h}
	transport := func() *http.Transport {
		return &http.Transport{
			DialContext:            dial,
			MaxConnsPerHost:        h.cfg.LabelRequests,
			MaxIdleConnsPerHost:    idlePerPort,
			MaxIdleConns:           idleInAll,
			IdleConnTimeout:        idleTimeout,
			ResponseHeaderTimeout:  h.cfg.AnswerTimeout,
			ExpectContinueTimeout:  time.Second,
			MaxResponseHeaderBytes: maxAnswerHeader,
			DisableCompression:     true, // the visitor's own Accept-Encoding counts
			Protocols:              new(http.Protocols),
		}
	}
	p.http1, p.http2 = transport(), transport()
	p.http1.Protocols.SetHTTP1(true)
	p.http2.Protocols.SetUnencryptedHTTP2(true)
	p.reverse = &httputil.ReverseProxy{
		Transport:      p,
		Rewrite:        p.rewrite,
		ModifyResponse: modifyResponse,
		ErrorHandler:   p.failed,
		FlushInterval:  -1, // bytes from a guest are sent at once
		BufferPool:     buffers{},
		ErrorLog:       slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}
	return p
}

func (p *proxy) close() {
	p.http1.CloseIdleConnections()
	p.http2.CloseIdleConnections()
}

// serve forwards a request, whose context carries its visit.
func (p *proxy) serve(w *recorder, r *http.Request) {
	w.visit = r.Context()
	p.reverse.ServeHTTP(w, r)
	// A guest whose connection is cut may still end its answer in good order. The visitor
	// must not take such an answer for complete.
	if r.Context().Err() != nil && !visitOf(r.Context()).failed {
		panic(http.ErrAbortHandler)
	}
}

// RoundTrip implements http.RoundTripper.
func (p *proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	if isGRPC(r.Header.Get("Content-Type")) {
		return p.http2.RoundTrip(r)
	}
	return p.http1.RoundTrip(r)
}

// isGRPC tells gRPC from gRPC-Web, which is spoken by HTTP/1.1.
func isGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// dialError is an error of Target.Dial.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// dial connects to the port of the visit ctx carries.
func dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := visitOf(ctx).target.Dial(ctx)
	if err != nil {
		return nil, &dialError{err}
	}
	return conn, nil
}

func (p *proxy) rewrite(pr *httputil.ProxyRequest) {
	v := visitOf(pr.In.Context())
	out := pr.Out
	out.URL.Scheme, out.URL.Host = "http", v.label
	out.URL.RawQuery = p.h.cleanQuery(pr.In.URL.RawQuery)
	out.Trailer = pr.In.Trailer // its values come with the end of the body
	if out.Body != nil {
		out.Body = v.body
	}
	p.h.cleanRequest(out.Header)
	if up := out.Header.Get("Upgrade"); up != "" && !strings.EqualFold(up, "websocket") {
		// Inside another protocol, above all h2c, requests would pass without being
		// cleaned.
		out.Header.Del("Upgrade")
		out.Header.Del("Connection")
	}
	pr.SetXForwarded()
	out.Header.Set("X-Forwarded-Proto", p.h.scheme(pr.In))
}

func modifyResponse(resp *http.Response) error {
	if resp.StatusCode == http.StatusSwitchingProtocols && !strings.EqualFold(resp.Request.Header.Get("Upgrade"), resp.Header.Get("Upgrade")) {
		return errUnasked // package httputil would notice too, but leave the connection open
	}
	cleanResponse(resp.Header)
	if resp.StatusCode != http.StatusSwitchingProtocols { // an upgraded connection has no trailers
		resp.Body = &answer{ReadCloser: resp.Body, resp: resp}
	}
	return nil
}

// answer is the body of a guest's answer. At its end the trailers are cleaned, as the
// headers were.
type answer struct {
	io.ReadCloser
	resp *http.Response
}

// Read implements io.Reader.
func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err == io.EOF {
		cleanResponse(a.resp.Trailer)
	}
	return n, err
}

var errUnasked = errors.New("the guest switches to a protocol nobody asked for")

// failed answers when there was no answer of the guest.
func (p *proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	rw := w.(*recorder)
	v := visitOf(r.Context())
	if ctx := r.Context(); ctx.Err() != nil {
		err = context.Cause(ctx)
		if errors.Is(err, context.Canceled) { // the visitor left
			panic(http.ErrAbortHandler)
		}
	}
	v.failed = true
	p.h.fail(rw, r, v, err)
}

// pageFor returns the page that explains err, and false if the cause is cay's own.
func pageFor(err error, v *visit) (page, bool) {
	var e *cay.Error
	var timeout net.Error
	var dialing *dialError
	switch {
	case errors.Is(err, errStarting):
		return pageStarting, true
	case errors.Is(err, errChanged):
		return pageGone, true
	case errors.Is(err, errExpired):
		return pagePrivate, true
	case errors.Is(err, errClosing):
		return pageClosing, true
	case errors.As(err, &e):
		switch e.Code {
		case cay.NotFound:
			return pageUnknown, true
		case cay.Stopped:
			return pageGone, true
		case cay.Conflict:
			return pagePaused, true
		case cay.QuotaExceeded:
			return pageBusy, true
		case cay.DeadlineExceeded:
			return pageSilent(v), true
		case cay.Canceled:
			return pageClosing, true
		case cay.Unavailable:
			if errors.As(err, &dialing) {
				return pageNotListening(v), true
			}
			return pageStarting, true
		}
		return pageBroken, false
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return pageSilent(v), true
	case v.target == nil:
		return pageBroken, false
	}
	return pageGarbled(v), true
}

// buffers lends the buffers through which content is copied.
type buffers struct{}

var bufferPool = sync.Pool{New: func() any { return new([copyBuffer]byte) }}

// Get implements httputil.BufferPool.
func (buffers) Get() []byte { return bufferPool.Get().(*[copyBuffer]byte)[:] }

// Put implements httputil.BufferPool.
func (buffers) Put(b []byte) { bufferPool.Put((*[copyBuffer]byte)(b)) }
