package cloudflare

import (
	"errors"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// Codes of errors that clients of the bridge know.
const (
	codeInvalid       = "invalid_request"
	codeUnauthorized  = "unauthorized"
	codeTooLarge      = "payload_too_large"
	codeCapacity      = "capacity_exceeded"
	codeFileNotFound  = "workspace_read_not_found"
	codeArchiveRead   = "workspace_archive_read_error"
	codeArchiveWrite  = "workspace_archive_write_error"
	codeExec          = "exec_error"
	codeExecTransport = "exec_transport_error"
	codeSession       = "session_error"
	codeMount         = "mount_error"
	codeUnmount       = "unmount_error"
	codeTunnel        = "tunnel_error"
	codePool          = "pool_error"
)

// errorShape is the status and the code of an error on the wire.
type errorShape struct {
	status int
	code   string
}

// shapes has the codes of ours that have another status or name in the protocol. Clients
// repeat requests that fail with 503.
var shapes = map[cay.Code]errorShape{
	cay.Invalid:         {http.StatusBadRequest, codeInvalid},
	cay.Unauthenticated: {http.StatusUnauthorized, codeUnauthorized},
	cay.TooLarge:        {http.StatusRequestEntityTooLarge, codeTooLarge},
	cay.QuotaExceeded:   {http.StatusServiceUnavailable, codeCapacity},
	cay.NoSpace:         {http.StatusServiceUnavailable, codeCapacity},
}

// errorBody is the body of an error, and the data of an error event.
type errorBody struct {
	Error string `json:"error"`
	Code  string `json:"code"`
}

// shapeOf returns the status of an error and its body. Clients show the text alone, so
// the hint is part of it.
func shapeOf(err error, public *cay.Error) (int, errorBody) {
	shape, ok := shapes[public.Code]
	if !ok {
		shape = errorShape{api.Status(public.Code), string(public.Code)}
	}
	var f *failure
	if errors.As(err, &f) && public.Code != cay.Internal && public.Code != cay.Unauthenticated {
		shape = f.shape
	}
	body := errorBody{Error: public.Message, Code: shape.code}
	if public.Hint != "" {
		body.Error += " (" + public.Hint + ")"
	}
	return shape.status, body
}

// writeError is an api.ErrorWriter.
func writeError(w http.ResponseWriter, err error, public *cay.Error) {
	status, body := shapeOf(err, public)
	// Encoding two strings cannot fail, and a client that left gets no answer.
	_ = api.WriteJSON(w, status, body)
}

// failure is an error whose status and code were chosen where it was made.
type failure struct {
	shape errorShape
	error
}

func (f *failure) Unwrap() error { return f.error }

// shaped gives err a status and a code of the protocol. err is a *cay.Error, or is shown
// as an internal error.
func shaped(status int, code string, err error) error {
	return &failure{errorShape{status, code}, err}
}

// forCodes shapes an error that has one of the codes. Other errors stay unchanged.
func forCodes(status int, code string, err error, codes ...cay.Code) error {
	for _, c := range codes {
		if cay.CodeOf(err) == c {
			return shaped(status, code, err)
		}
	}
	return err
}

// outside says that a path of a request is not below the workspace.
func outside(name, value string) error {
	return shaped(http.StatusForbidden, codeInvalid,
		cay.Errorf(cay.Invalid, "%s must resolve to a location within %s; %.200q does not", name, workspace, value))
}
