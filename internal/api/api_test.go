package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/wire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// logged serves one request to h behind Log, and returns the answer and the log.
func logged(t *testing.T, h http.Handler, r *http.Request) (*httptest.ResponseRecorder, string) {
	t.Helper()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w := httptest.NewRecorder()
	func() {
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				panic(p)
			}
		}()
		api.Log(logger, h).ServeHTTP(w, r)
	}()
	return w, log.String()
}

// answerOf decodes the error in an answer.
func answerOf(t *testing.T, w *httptest.ResponseRecorder) *cay.Error {
	t.Helper()
	var body wire.ErrorBody
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || body.Error == nil {
		t.Fatalf("the answer is %q", w.Body)
	}
	return body.Error.Err()
}

func TestStatus(t *testing.T) {
	t.Parallel()
	want := map[cay.Code]int{
		cay.Invalid: 400, cay.Unauthenticated: 401, cay.PermissionDenied: 403, cay.NotFound: 404, cay.FileNotFound: 404,
		cay.AlreadyExists: 409, cay.Conflict: 409, cay.Stopped: 410, cay.ExecutableMissing: 422, cay.TooLarge: 413,
		cay.QuotaExceeded: 429, cay.NoSpace: 507, cay.NotSupported: 501, cay.SourceUnavailable: 502, cay.Unavailable: 503, cay.DeadlineExceeded: 504,
		cay.Canceled: 499, cay.Internal: 500, "made_up": 500,
	}
	for code, status := range want {
		if got := api.Status(code); got != status {
			t.Errorf("%s is %d, want %d", code, got, status)
		}
	}
}

func TestHandler_Errors(t *testing.T) {
	t.Parallel()
	quota := cay.Errorf(cay.QuotaExceeded, "too many")
	quota.RetryAfter = 1200e6
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name  string
		err   error
		ctx   context.Context
		code  cay.Code
		retry string
		level string
	}{
		{"coded", cay.Errorf(cay.NotFound, "no"), nil, cay.NotFound, "", "DEBUG"},
		{"coded, wrapped", fmt.Errorf("get: %w", cay.Errorf(cay.NotFound, "no")), nil, cay.NotFound, "", "DEBUG"},
		{"quota", quota, nil, cay.QuotaExceeded, "2", "DEBUG"},
		{"unavailable", cay.Errorf(cay.Unavailable, "no"), nil, cay.Unavailable, "1", "DEBUG"},
		{"uncoded", errors.New("secret"), nil, cay.Internal, "", "ERROR"},
		{"internal", cay.Errorf(cay.Internal, "secret"), nil, cay.Internal, "", "ERROR"},
		{"client left", fmt.Errorf("secret: %w", context.Canceled), gone, cay.Canceled, "", "DEBUG"},
		{"canceled by ourselves", fmt.Errorf("secret: %w", context.Canceled), nil, cay.Internal, "", "ERROR"},
		{"deadline", fmt.Errorf("secret: %w", context.DeadlineExceeded), nil, cay.DeadlineExceeded, "", "DEBUG"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx := tt.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			w, log := logged(t, api.Handler(func(http.ResponseWriter, *http.Request) error { return tt.err }),
				httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			e := answerOf(t, w)
			if e.Code != tt.code || w.Code != api.Status(tt.code) || w.Header().Get("Retry-After") != tt.retry || strings.Contains(w.Body.String(), "secret") {
				t.Errorf("answer %d, retry after %q: %s", w.Code, w.Header().Get("Retry-After"), w.Body)
			}
			if strings.Count(log, "\n") != 1 || !strings.Contains(log, "level="+tt.level) || !strings.Contains(log, w.Header().Get(wire.HeaderRequestID)) {
				t.Errorf("log:\n%s", log)
			}
		})
	}
}

// Half an answer must not look like a whole one.
func TestHandler_ErrorAfterAnswerBreaksConnection(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]api.Handler{
		"error": func(w http.ResponseWriter, _ *http.Request) error {
			w.Write([]byte("half"))
			return errors.New("lost")
		},
		"panic": func(w http.ResponseWriter, _ *http.Request) error {
			w.Write([]byte("half"))
			panic("lost")
		},
	} {
		w, log := logged(t, panics{t, h}, httptest.NewRequest("GET", "/", nil))
		if w.Body.String() != "half" || !strings.Contains(log, "lost") || !strings.Contains(log, "level=ERROR") {
			t.Errorf("%s: answer %q, log %s", name, w.Body, log)
		}
	}
}

// panics checks that h ends in a panic.
type panics struct {
	t *testing.T
	h http.Handler
}

func (p panics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		v := recover()
		if v == nil {
			p.t.Error("the handler returned")
		}
		panic(v)
	}()
	p.h.ServeHTTP(w, r)
}

func TestLog_Panic(t *testing.T) {
	t.Parallel()
	w, log := logged(t, api.Handler(func(http.ResponseWriter, *http.Request) error { panic("at the disco") }), httptest.NewRequest("GET", "/", nil))
	if e := answerOf(t, w); e.Code != cay.Internal || strings.Contains(w.Body.String(), "disco") {
		t.Errorf("answer %s", w.Body)
	}
	if !strings.Contains(log, "disco") || !strings.Contains(log, "api_test.go") {
		t.Errorf("the log lacks the stack: %s", log)
	}
}

// Neither tokens nor queries get into the log.
func TestLog_KeepsSecrets(t *testing.T) {
	t.Parallel()
	mux := api.NewMux(refusing{})
	mux.Handle("GET /v1/x", func(http.ResponseWriter, *http.Request) error { return nil })
	for _, header := range []string{"Authorization", "Sec-WebSocket-Protocol", "Cookie"} {
		r := httptest.NewRequest("GET", "/v1/x?token=hunter2", nil)
		r.Header.Set(header, "Bearer hunter2, cay.bearer.hunter2")
		r.Header.Set("Upgrade", "websocket")
		w, log := logged(t, mux, r)
		if w.Code != 401 || strings.Contains(log+w.Body.String(), "hunter2") {
			t.Errorf("%s: %d %s\n%s", header, w.Code, w.Body, log)
		}
	}
}

type refusing struct{}

func (refusing) Authenticate(context.Context, string) (api.Principal, error) {
	return api.Principal{}, cay.Errorf(cay.Unauthenticated, "the token is not valid")
}

func TestCheckHost(t *testing.T) {
	t.Parallel()
	h := api.CheckHost([]string{"Cay.example.com", "*.boxes.example"}, http.NotFoundHandler())
	for host, ok := range map[string]bool{
		"127.0.0.1:7070": true, "localhost": true, "LOCALHOST:7070": true, "[::1]:7070": true, "127.8.8.8": true,
		"localhost.": true, "cay.example.com": true, "cay.example.com:443": true, "x.boxes.example": true, "a.b.boxes.example": true,
		"a.localhost": false, "a.localhost:7070": false, "a.b.localhost.": false, // previews are there
		"": false, "evil.example": false, "cay.example.com.evil.example": false, "evilboxes.example": false, "boxes.example": false,
		".boxes.example": false, "127.0.0.1.evil.example": false, "localhost.evil.example": false, "192.168.1.5": false, "notlocalhost": false,
		"169.254.169.254": false, "0.0.0.0": false,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Code == 404; got != ok {
			t.Errorf("%q: %d, want allowed %v", host, w.Code, ok)
		}
	}
}

func TestSecurityHeaders(t *testing.T) {
	t.Parallel()
	srv := api.NewServer(http.NotFoundHandler(), nil, slog.New(slog.DiscardHandler))
	r := httptest.NewRequest("GET", "/", nil)
	r.Host = "localhost"
	r.Header.Set("Origin", "https://evil.example")
	w := httptest.NewRecorder()
	srv.Handler.ServeHTTP(w, r)
	for _, name := range []string{"Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", "Cache-Control", wire.HeaderRequestID} {
		if w.Header().Get(name) == "" {
			t.Errorf("no %s", name)
		}
	}
	for name := range w.Header() {
		if strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("%s is set", name)
		}
	}
}

func TestMergeOpenAPI_RefusesTwice(t *testing.T) {
	t.Parallel()
	a := json.RawMessage(`{"paths":{"/x":{"get":{}}}}`)
	b := json.RawMessage(`{"paths":{"/x":{"put":{}}}}`)
	if _, err := api.MergeOpenAPI("v", []json.RawMessage{a, b}); err != nil {
		t.Errorf("two methods of a path: %v", err)
	}
	if _, err := api.MergeOpenAPI("v", []json.RawMessage{a, b, a}); err == nil {
		t.Error("one method twice was taken")
	}
}

// Routes of other protocols answer all errors in the protocol's shape.
func TestMux_HandleIn(t *testing.T) {
	t.Parallel()
	mux := api.NewMux(knowing{})
	mux.HandleIn("GET /x", func(http.ResponseWriter, *http.Request) error {
		return fmt.Errorf("so: %w", cay.Errorf(cay.QuotaExceeded, "no more"))
	}, func(w http.ResponseWriter, err error, public *cay.Error) {
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s|%v|%s", public.Code, err, public.Message)
	})
	for token, want := range map[string]string{"": "unauthenticated|the request carries no token|the request carries no token", "good": "quota_exceeded|so: no more|no more"} {
		r := httptest.NewRequest("GET", "/x", nil)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if w.Code != http.StatusTeapot || w.Body.String() != want || (token == "good") != (w.Header().Get("Retry-After") == "1") {
			t.Errorf("token %q: %d %q %v, want %q", token, w.Code, w.Body, w.Header(), want)
		}
	}
}

type knowing struct{}

func (knowing) Authenticate(context.Context, string) (api.Principal, error) {
	return api.Principal{TokenID: "tok_x", TeamID: "team_x"}, nil
}
