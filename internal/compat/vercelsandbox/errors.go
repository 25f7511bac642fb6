package vercelsandbox

import (
	"errors"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// The codes that clients react to.
const (
	codeBadRequest       = "bad_request"
	codeNotFound         = "not_found"
	codePathNotFound     = "path_not_found"
	codeTimeoutInvalid   = "sandbox_timeout_invalid"
	codeStopped          = "sandbox_stopped"
	codeStopping         = "sandbox_stopping"
	codeSnapshotting     = "sandbox_snapshotting"
	codeSnapshotNotFound = "snapshot_not_found"
)

// errorShape is an error's status and code.
type errorShape struct {
	status int
	code   string
}

// shapes has the codes whose status and name differ from cay's own API. No error
// that a user causes is 5xx: clients would retry the request, even a POST.
var shapes = map[cay.Code]errorShape{
	cay.Invalid:           {http.StatusBadRequest, codeBadRequest},
	cay.Unauthenticated:   {http.StatusUnauthorized, "unauthorized"},
	cay.PermissionDenied:  {http.StatusForbidden, "forbidden"},
	cay.FileNotFound:      {http.StatusNotFound, codeNotFound},
	cay.AlreadyExists:     {http.StatusBadRequest, codeBadRequest},
	cay.ExecutableMissing: {http.StatusBadRequest, "executable_not_found"},
	cay.NoSpace:           {http.StatusBadRequest, "no_space"},
	cay.NotSupported:      {http.StatusBadRequest, "not_supported"},
	cay.Internal:          {http.StatusInternalServerError, "internal_server_error"},
}

// shapeOf returns the shape of an error and its public part, for answers and for
// lines of streams.
func shapeOf(err error, public *cay.Error) (errorShape, errorBody) {
	shape, ok := shapes[public.Code]
	if !ok {
		shape = errorShape{api.Status(public.Code), string(public.Code)}
	}
	var f *failure
	if errors.As(err, &f) {
		shape = f.shape
	}
	body := errorBody{Code: shape.code, Message: public.Message}
	if public.Hint != "" {
		body.Message += " (" + public.Hint + ")" // clients show nothing else
	}
	return shape, body
}

type errorBody struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// writeError is an api.ErrorWriter.
func writeError(w http.ResponseWriter, err error, public *cay.Error) {
	shape, body := shapeOf(err, public)
	// Encoding two texts cannot fail, and writing fails only if the client left.
	_ = writeJSON(w, shape.status, struct {
		Error errorBody `json:"error"`
	}{body})
}

// failure is an error with a status and name of its own.
type failure struct {
	shape errorShape
	error
}

func (f *failure) Unwrap() error { return f.error }

// shaped gives err, which has a code, a status and a code of the protocol.
func shaped(status int, code string, err error) error {
	return &failure{errorShape{status, code}, err}
}
