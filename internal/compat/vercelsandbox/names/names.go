// Package names serves the host names of Vercel's API and previews in front of a cay
// daemon, for programs that resolve these names to it and trust its authority. This
// points clients at a daemon without any change in them.
//
//	vercel.com      the API below /api/, terminals too; logins
//	api.vercel.com  the API, there without its /api
//	oidc.vercel.com the same, for receivers of forwarded requests, who believe
//	                this issuer only: it is to be the daemon's public_url then
//	*.vercel.run    previews
//	ai-gateway.vercel.sh  the AI gateway of the daemon, which has an address of its own
//	vercel-workflow.com   events and streams of the Workflow SDK, on the daemon below /vercel/workflow
//	*.vercel-queue.com    its queue, on the daemon below /vercel/queue
//
// It decides what goes where; the daemon serves it, and knows the names as such.
// All else is not found here: nothing is ever passed on to those who own the names.
package names

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/cayhq/cay"
)

// PreviewDomain is the domain that clients expect previews to be below.
const PreviewDomain = "vercel.run"

// Gateway is the host name of the daemon's AI gateway.
const Gateway = "ai-gateway.vercel.sh"

// Workflow is the host name for the events of the Workflow SDK. QueueDomain is the
// domain of the host names of the SDK's queues, which have the region as their label.
const (
	Workflow    = "vercel-workflow.com"
	QueueDomain = "vercel-queue.com"
)

// Hosts are the other host names, which lead to the daemon's API.
var Hosts = []string{apiDomain, apiName, issuerName, Workflow}

const (
	apiDomain  = "vercel.com"
	apiName    = "api.vercel.com"
	issuerName = "oidc.vercel.com"

	maxRequests = 4096 // at one time
)

// Server is the front. Make it with New, then call Serve.
type Server struct {
	authority *Authority
	http      *http.Server
	daemon    *url.URL
	gateway   func(ctx context.Context) (*url.URL, error)
	proxy     *httputil.ReverseProxy
	slots     chan struct{} // one for each request in progress
}

// upstream is the context key for the URL of a request's upstream.
type upstream struct{}

// New returns a front of the daemon at a URL. gateway returns the URL of the daemon's
// AI gateway, or an error of code not_found if the AI gateway is off. It is called
// for each request to the AI gateway, since the daemon may have been restarted.
func New(daemon *url.URL, gateway func(ctx context.Context) (*url.URL, error), a *Authority, log *slog.Logger) *Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	s := &Server{authority: a, daemon: daemon, gateway: gateway, slots: make(chan struct{}, maxRequests)}
	s.proxy = &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.Host = pr.In.Host // which the daemon goes by
			to := pr.In.Context().Value(upstream{}).(*url.URL)
			pr.Out.URL.Scheme, pr.Out.URL.Host = to.Scheme, to.Host
			pr.Out.URL.Path = to.Path + pr.Out.URL.Path
			if pr.Out.URL.RawPath != "" {
				pr.Out.URL.RawPath = to.EscapedPath() + pr.Out.URL.RawPath
			}
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // as it was sent, parsable or not
			pr.Out.Header.Set("X-Forwarded-Proto", "https")
		},
		Transport: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
			TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConnsPerHost: 64,
			IdleConnTimeout:     60 * time.Second,
			DisableCompression:  true,
			Protocols:           protocols,
		},
		FlushInterval: -1, // streams
		ErrorHandler:  s.failed,
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	s.http = &http.Server{
		Handler:           s,
		TLSConfig:         &tls.Config{GetCertificate: a.certificate},
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		Protocols:         protocols,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug), // the noise of broken connections
	}
	return s
}

// Serve serves a listener until ctx ends, and closes it.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = s.http.Close() })() // Serve has what fails
	if err := s.http.ServeTLS(l, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve names: %w", err)
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		answer(w, http.StatusServiceUnavailable, "unavailable", "too many requests at once")
		return
	}
	name, to := hostname(r.Host), s.daemon
	switch {
	case !ours(name):
		answer(w, http.StatusMisdirectedRequest, "bad_request", fmt.Sprintf("cay does not serve the name %q", name))
		return
	case name == Gateway:
		var err error
		switch to, err = s.gateway(r.Context()); {
		case cay.CodeOf(err) == cay.NotFound:
			answer(w, http.StatusNotFound, "not_found", err.Error())
			return
		case err != nil:
			answer(w, http.StatusBadGateway, "unavailable", "the AI gateway cannot be reached: "+err.Error())
			return
		}
	case name == apiName:
		// Below the root are the routes of another API of the daemon.
		below(r.URL, "/api")
	case name == Workflow:
		below(r.URL, "/vercel/workflow")
	case isBelow(name, QueueDomain):
		r.Host = Workflow // the daemon knows no names of regions
		below(r.URL, "/vercel/queue")
	case (name == apiDomain || name == issuerName) && !served(r.URL.Path):
		answer(w, http.StatusNotFound, "not_found", fmt.Sprintf("cay serves Vercel Sandbox in place of %s, and nothing at %s", name, r.URL.Path))
		return
	}
	s.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), upstream{}, to)))
}

// below prepends a prefix to the path of a URL.
func below(u *url.URL, prefix string) {
	u.Path = prefix + u.Path
	if u.RawPath != "" {
		u.RawPath = prefix + u.RawPath
	}
}

// served reports whether the daemon serves a path of vercel.com.
func served(path string) bool {
	for _, prefix := range []string{"/api/", "/.well-known/", "/oauth/"} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return path == "/health"
}

// ours reports whether the front serves a host name.
func ours(name string) bool {
	switch name {
	case apiDomain, apiName, issuerName, Gateway, Workflow:
		return true
	}
	return isBelow(name, PreviewDomain) || isBelow(name, QueueDomain)
}

// isBelow reports whether a name is a label below a domain.
func isBelow(name, domain string) bool {
	label, ok := strings.CutSuffix(name, "."+domain)
	return ok && label != "" && !strings.Contains(label, ".")
}

// hostname returns the name in a Host header.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

func (s *Server) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody listens
	}
	answer(w, http.StatusBadGateway, "unavailable", "the cay daemon does not answer: "+err.Error())
}

// answer writes an error in the shape that the clients know.
func answer(w http.ResponseWriter, status int, code, message string) {
	var body struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	body.Error.Code, body.Error.Message = code, message
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // fails only when the client left
}
