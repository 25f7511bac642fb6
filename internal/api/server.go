package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// NewServer returns a server of h with the middleware of all requests. hosts
// are the names, besides this machine's own, by which clients may address the
// server: "cay.example.com", or "*.example.com" for all names below.
//
// There is no timeout on whole requests, because streams last. Instead headers
// have one, handlers set one on each read and write, and idle connections are
// closed.
//
// It speaks HTTP/1.1, HTTP/2 over TLS, and HTTP/2 without TLS to clients that
// begin with it (h2c by prior knowledge).
func NewServer(h http.Handler, hosts []string, logger *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           Log(logger, SecurityHeaders(CheckHost(hosts, SameOrigin(h)))),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		Protocols:         protocols,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug), // the noise of broken connections
	}
}

// Log gives each request an id, turns panics into internal errors and writes
// the log: at Debug a line for each request, without its query and headers, and
// at Error a line for each request that failed by our fault.
func Log(logger *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{id: rand.Text()[:16]}
		ctx := context.WithValue(r.Context(), exchangeKey{}, x)
		rw := track(w)
		rw.Header().Set(wire.HeaderRequestID, x.id)
		start := time.Now()
		defer func() {
			p := recover()
			if p != nil && p != http.ErrAbortHandler {
				x.note(fmt.Errorf("panic: %v\n%s", p, debug.Stack()), true)
				if rw.status == 0 {
					Handler(func(http.ResponseWriter, *http.Request) error { return errors.New("panic") }).ServeHTTP(rw, r.WithContext(ctx))
					p = nil
				} else {
					p = http.ErrAbortHandler
				}
			}
			err, fault := x.outcome()
			attrs := []slog.Attr{
				slog.String("request", x.id), slog.String("method", r.Method), slog.String("path", r.URL.Path),
				slog.Int("status", rw.status), slog.Int64("bytes", rw.bytes), slog.Duration("took", time.Since(start)),
			}
			level := slog.LevelDebug
			message := "request"
			if fault {
				level, message = slog.LevelError, "request failed"
			}
			if err != nil {
				attrs = append(attrs, slog.String("error", err.Error()))
			}
			logger.LogAttrs(ctx, level, message, attrs...)
			if p != nil {
				panic(p)
			}
		}()
		next.ServeHTTP(rw, r.WithContext(ctx))
	})
}

// CheckHost refuses requests for a host name that is not the daemon's. A page
// on such a name that resolves to this machine would otherwise count as the
// daemon's own origin in a browser (DNS rebinding).
func CheckHost(hosts []string, next http.Handler) http.Handler {
	return Handler(func(w http.ResponseWriter, r *http.Request) error {
		if !hostAllowed(r, hosts) {
			return cay.Errorf(cay.PermissionDenied, "the daemon does not serve the host %q", r.Host).
				WithHint("add it to allowed_hosts if it is the daemon's name")
		}
		next.ServeHTTP(w, r)
		return nil
	})
}

// HostAllowed reports whether a request's host is a name of the daemon; see
// CheckHost.
func HostAllowed(r *http.Request, hosts []string) bool { return hostAllowed(r, hosts) }

func hostAllowed(r *http.Request, hosts []string) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	if ip := net.ParseIP(host); ip != nil {
		// An address cannot be rebound: it is the daemon's if the connection
		// came to it.
		local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		if ip.IsLoopback() || ok && local.IP.Equal(ip) {
			return true
		}
	}
	if host == "localhost" { // not names below it: those are for previews
		return true
	}
	for _, allowed := range hosts {
		allowed = strings.ToLower(allowed)
		if suffix, ok := strings.CutPrefix(allowed, "*"); ok && strings.HasPrefix(suffix, ".") {
			if strings.HasSuffix(host, suffix) && len(host) > len(suffix) {
				return true
			}
		} else if host == allowed {
			return true
		}
	}
	return false
}

// SameOrigin refuses requests that a browser makes for a page of another
// origin, "null" included, except for reads. Such a page cannot read the
// answer, since the answer carries no CORS headers.
func SameOrigin(next http.Handler) http.Handler {
	var protection http.CrossOriginProtection
	return Handler(func(w http.ResponseWriter, r *http.Request) error {
		if err := protection.Check(r); err != nil {
			return cay.Errorf(cay.PermissionDenied, "the request comes from another origin, %q", r.Header.Get("Origin")).
				WithHint("call the API from a server, not from a page of another site")
		}
		next.ServeHTTP(w, r)
		return nil
	})
}

// SecurityHeaders sets headers that make a browser treat every answer as data
// only. Handlers that serve pages replace the policy by their own.
func SecurityHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		next.ServeHTTP(w, r)
	})
}
