package networktest

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
)

// Request is a request to an HTTP server.
type Request struct {
	Server string      `json:"server"` // which of ours, as "api"
	Proto  string      `json:"proto"`
	SNI    string      `json:"sni,omitempty"`
	Method string      `json:"method"`
	Host   string      `json:"host"`
	URI    string      `json:"uri"`
	Header http.Header `json:"header"`
	Body   string      `json:"body,omitempty"` // of /echo
}

// maxEcho bounds the body that /echo reads, in bytes.
const maxEcho = 1 << 20

// Handler serves, and records, what a web server of an Internet serves:
//
//	/echo            the Request, as JSON; its body too
//	/reflect         the request's headers as text and as headers X-Reflect-*,
//	                 compressed if the client takes gzip
//	/bytes/N         N bytes; Sum(N) is their SHA-256
//	/upload          the number of bytes in the body and their SHA-256
//	/drip            a line every 10 ms until the client leaves
//	/events          three server-sent events
//	/trailers        a body with the trailer X-Sum
//	/ws              a WebSocket that echoes
//	/status/N        that status
//	/redirect?to=U   a redirect
//
// and answers all else like /echo.
func (n *Internet) Handler(server string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", handleEcho)
	mux.HandleFunc("/reflect", handleReflect)
	mux.HandleFunc("/bytes/{n}", handleBytes)
	mux.HandleFunc("/upload", handleUpload)
	mux.HandleFunc("/drip", handleDrip)
	mux.HandleFunc("/events", handleEvents)
	mux.HandleFunc("/trailers", handleTrailers)
	mux.HandleFunc("/ws", handleWebSocket)
	mux.HandleFunc("/status/{n}", handleStatus)
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.FormValue("to"), http.StatusFound)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := Request{Server: server, Proto: r.Proto, Method: r.Method, Host: r.Host, URI: r.RequestURI, Header: r.Header.Clone()}
		if r.TLS != nil {
			seen.SNI = r.TLS.ServerName
		}
		n.mu.Lock()
		n.requests = append(n.requests, seen)
		close(n.requested)
		n.requested = make(chan struct{})
		n.mu.Unlock()
		w.Header().Set("X-Server", server)
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), seenKey{}, seen)))
	})
}

type seenKey struct{}

func handleEcho(w http.ResponseWriter, r *http.Request) {
	seen := r.Context().Value(seenKey{}).(Request)
	body, err := io.ReadAll(io.LimitReader(r.Body, maxEcho))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	seen.Body = string(body)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(seen) // the client may have left
}

func handleReflect(w http.ResponseWriter, r *http.Request) {
	var text strings.Builder
	for name, values := range r.Header {
		for _, v := range values {
			fmt.Fprintf(&text, "%s: %s\n", name, v)
			w.Header().Add("X-Reflect-"+name, v)
		}
	}
	if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		_, _ = io.WriteString(w, text.String())
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	z := gzip.NewWriter(w)
	_, _ = io.WriteString(z, text.String())
	_ = z.Close()
}

// content is n bytes without a pattern.
func content(n int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{1}), n)
}

// Sum returns the SHA-256, in hexadecimal, of the body of /bytes/n.
func Sum(n int64) string {
	sum := sha256.New()
	if _, err := io.Copy(sum, content(n)); err != nil {
		panic(err) // neither can fail
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func handleBytes(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	_, _ = io.Copy(w, content(size))
}

func handleUpload(w http.ResponseWriter, r *http.Request) {
	sum := sha256.New()
	size, err := io.Copy(sum, r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(w, "%d %x", size, sum.Sum(nil))
}

// handleDrip is slow because it paces itself, not because the connection is blocked.
func handleDrip(w http.ResponseWriter, r *http.Request) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := io.WriteString(w, "drip\n"); err != nil {
			return
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}

func handleEvents(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range 3 {
		fmt.Fprintf(w, "id: %d\ndata: event %d\n\n", i, i)
		if http.NewResponseController(w).Flush() != nil {
			return
		}
	}
}

func handleTrailers(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Trailer", "X-Sum")
	_, _ = io.WriteString(w, "a body with a trailer\n")
	w.Header().Set("X-Sum", "the trailer")
}

func handleStatus(w http.ResponseWriter, r *http.Request) {
	code, err := strconv.Atoi(r.PathValue("n"))
	if err != nil || code < 200 || code > 599 {
		code = http.StatusBadRequest
	}
	w.WriteHeader(code)
}

func handleWebSocket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // any origin
	if err != nil {
		return // it has answered
	}
	defer c.CloseNow()
	for {
		kind, data, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if err := c.Write(r.Context(), kind, data); err != nil {
			return
		}
	}
}
