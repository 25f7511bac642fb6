package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// failure is an error with the status that the protocol has for it.
type failure struct {
	status  int
	message string
}

func (f *failure) Error() string { return f.message }

func failf(status int, format string, args ...any) error {
	return &failure{status, fmt.Sprintf(format, args...)}
}

// statuses has the codes of cay for which Docker uses another status than cay's API.
var statuses = map[cay.Code]int{
	cay.AlreadyExists:     http.StatusConflict,
	cay.FileNotFound:      http.StatusNotFound,
	cay.ExecutableMissing: http.StatusBadRequest,
	cay.Stopped:           http.StatusConflict,
	cay.NotSupported:      http.StatusNotImplemented,
	cay.Unauthenticated:   http.StatusForbidden, // by the daemon; 401 would make clients ask for a password
}

// shape returns the status and the message of an error.
func shape(err error) (int, string) {
	var f *failure
	if errors.As(err, &f) {
		return f.status, f.message
	}
	code := cay.CodeOf(err)
	status, ok := statuses[code]
	if !ok {
		status = api.Status(code)
	}
	var e *cay.Error
	if !errors.As(err, &e) {
		return http.StatusInternalServerError, "internal error"
	}
	message := e.Message
	if code == cay.ExecutableMissing {
		message += ": executable file not found in $PATH" // by which the docker command line knows exit code 127
	}
	if e.Hint != "" {
		message += " (" + e.Hint + ")"
	}
	return status, message
}

func writeError(w http.ResponseWriter, err error) {
	status, message := shape(err)
	w.Header().Del("Content-Length")
	// Encoding a text cannot fail, and a client that left is nobody to tell.
	_ = writeJSON(w, status, map[string]string{"message": message})
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(v)
}

func noContent(w http.ResponseWriter) error {
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// maxBody is the most bytes of a JSON request.
const maxBody = 4 << 20

// readJSON decodes the body of a request into v. Clients of other versions send
// fields that v lacks; those are left out. An empty body leaves v as it is.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	switch err := d.Decode(v); {
	case err == nil || r.ContentLength == 0 || errors.Is(err, io.EOF):
		return nil
	case errors.As(err, new(*http.MaxBytesError)):
		return failf(http.StatusRequestEntityTooLarge, "the request has more than %d bytes", maxBody)
	default:
		return failf(http.StatusBadRequest, "the request is not the JSON that was expected: %v", err)
	}
}
