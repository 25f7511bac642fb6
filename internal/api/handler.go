package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// Handler serves a request or returns why it cannot. Errors that are not a
// *cay.Error are the daemon's own: the log has them, and the client gets "internal
// error". If a Handler fails after it began to answer, the connection is aborted,
// so that the client does not take half an answer for a whole one.
type Handler func(w http.ResponseWriter, r *http.Request) error

// status is the only place that maps codes to HTTP. Proxies use 499 for a client
// that left. A missing executable is 422: the request is well formed, but the
// sandbox cannot fulfil it.
var status = map[cay.Code]int{
	cay.Invalid:           http.StatusBadRequest,
	cay.Unauthenticated:   http.StatusUnauthorized,
	cay.PermissionDenied:  http.StatusForbidden,
	cay.NotFound:          http.StatusNotFound,
	cay.FileNotFound:      http.StatusNotFound,
	cay.AlreadyExists:     http.StatusConflict,
	cay.Conflict:          http.StatusConflict,
	cay.Stopped:           http.StatusGone,
	cay.ExecutableMissing: http.StatusUnprocessableEntity,
	cay.TooLarge:          http.StatusRequestEntityTooLarge,
	cay.QuotaExceeded:     http.StatusTooManyRequests,
	cay.NoSpace:           http.StatusInsufficientStorage,
	cay.NotSupported:      http.StatusNotImplemented,
	cay.SourceUnavailable: http.StatusBadGateway,
	cay.Unavailable:       http.StatusServiceUnavailable,
	cay.DeadlineExceeded:  http.StatusGatewayTimeout,
	cay.Canceled:          499,
	cay.Internal:          http.StatusInternalServerError,
}

// Status returns the HTTP status of a code.
func Status(code cay.Code) int {
	if s, ok := status[code]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// ErrorWriter writes an error in the shape of another protocol. err is the
// Handler's error, public is its public part. The headers for the error's code are
// set already.
type ErrorWriter func(w http.ResponseWriter, err error, public *cay.Error)

// ServeHTTP calls h and writes the returned error.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.serve(w, r, func(w http.ResponseWriter, _ error, public *cay.Error) {
		writeErrorStatus(w, Status(public.Code), public)
	})
}

// in returns h with its errors written by write.
func (h Handler) in(write ErrorWriter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, write) })
}

func (h Handler) serve(w http.ResponseWriter, r *http.Request, write ErrorWriter) {
	rw := track(w)
	if rw.body == nil { // the outermost Handler
		rw.body = watchBody(rw, r)
		defer rw.body.finish(rw)
	}
	err := h(rw, r)
	if err == nil {
		return
	}
	public := Public(r.Context(), err)
	if rw.status != 0 {
		panic(http.ErrAbortHandler)
	}
	if !rw.body.ended.Load() {
		// Answer at once, rather than after reading the rest of the body. Without
		// full duplex the answer is only late.
		_ = enableDuplex(rw)
	}
	setErrorHeaders(rw.Header(), public)
	write(rw, err, public)
}

// Public returns the part of err that the client may know. The rest is kept for the
// log.
func Public(ctx context.Context, err error) *cay.Error {
	x := exchangeFrom(ctx)
	var e *cay.Error
	var tooLarge *http.MaxBytesError
	switch {
	case endedBy(ctx) != nil: // takes precedence over errors that follow from it
		x.note(err, false)
		return endedBy(ctx)
	case errors.As(err, &e) && e.Code != cay.Internal:
		x.note(err, false)
		return e
	case errors.Is(err, context.Canceled) && (ctx.Err() != nil || life(ctx).Err() != nil):
		x.note(err, false)
		return cay.Errorf(cay.Canceled, "the client left")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		x.note(err, false)
		return cay.Errorf(cay.DeadlineExceeded, "the operation took too long")
	case errors.As(err, &tooLarge):
		x.note(err, false)
		return cay.Errorf(cay.TooLarge, "the request body is larger than %d bytes", tooLarge.Limit)
	}
	x.note(err, true)
	e = cay.Errorf(cay.Internal, "internal error")
	if x != nil {
		e = e.WithHint("the daemon's log has the cause under request id %s", x.id)
	}
	return e
}

// heldKey is the key of the context that a Holder gave a request.
type heldKey struct{}

// withHeld returns a context of the request in which errors find held, even from
// contexts derived of it.
func withHeld(held context.Context) context.Context {
	return context.WithValue(held, heldKey{}, held)
}

// life returns the context that ends with the request. A context derived from it
// ends a moment later, and a service may already have reported its request as
// canceled by then.
func life(ctx context.Context) context.Context {
	if held, ok := ctx.Value(heldKey{}).(context.Context); ok {
		return held
	}
	return ctx
}

// EndWith returns a request that also ends with a life, if that ends first. Its
// client gets the reason: the life's cause is an error with the code
// unauthenticated or unavailable. Call end when the request was answered.
func EndWith(r *http.Request, life context.Context) (_ *http.Request, end func()) {
	ctx, cancel := context.WithCancelCause(r.Context())
	unhook := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	return r.WithContext(context.WithValue(ctx, heldKey{}, ctx)), func() {
		unhook()
		cancel(nil)
	}
}

// endedBy returns why a request must end, nil if it may continue or its client
// left; see Holder and EndWith.
func endedBy(ctx context.Context) *cay.Error {
	var e *cay.Error
	ctx = life(ctx)
	if ctx.Err() == nil || !errors.As(context.Cause(ctx), &e) || e.Code != cay.Unauthenticated && e.Code != cay.Unavailable {
		return nil
	}
	return e
}

func setErrorHeaders(h http.Header, e *cay.Error) {
	h.Del("Content-Length") // it belongs to the answer that failed
	switch e.Code {
	case cay.Unauthenticated:
		h.Set("WWW-Authenticate", `Bearer realm="cay"`)
	case cay.QuotaExceeded, cay.Unavailable:
		// Whole seconds, at least one.
		h.Set("Retry-After", strconv.FormatInt(max(1, int64((e.RetryAfter+time.Second-1)/time.Second)), 10))
	}
}

func writeErrorStatus(w http.ResponseWriter, status int, e *cay.Error) {
	// A code is encoded as text; encoding cannot fail, and writing fails only if
	// the client left.
	_ = WriteJSON(w, status, wire.ErrorBody{Error: wire.FromError(e)})
}

// WriteJSON answers with v.
func WriteJSON(w http.ResponseWriter, status int, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // nosniff and the content type keep browsers from reading it as HTML
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	h := w.Header()
	h.Set("Content-Type", wire.TypeJSON)
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // fails only when the client left
	return nil
}

// NoContent answers with status 204.
func NoContent(w http.ResponseWriter) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}
