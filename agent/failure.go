package agent

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// patience is the longest time that a call is put off because the gateway asks
// to. A call that would have to wait longer fails: the run would seem to hang.
const patience = 15 * time.Minute

// failureJSON is an error in the gateway's JSON.
type failureJSON struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Status  int    `json:"statusCode"` // in the middle of an answer
}

// readFailure returns the error that an answer broke off with.
func readFailure(raw json.RawMessage) error { return failure(raw, 0, 0) }

// failure returns an error of the gateway. status is 0 if raw has the status.
func failure(raw json.RawMessage, status int, after time.Duration) error {
	var w failureJSON
	if json.Unmarshal(raw, &w) != nil {
		_ = json.Unmarshal(raw, &w.Message) // some say it in a word
	}
	if status == 0 {
		status = w.Status
	}
	if w.Message == "" {
		if w.Message = http.StatusText(status); w.Message == "" {
			w.Message = "the model failed and did not say why"
		}
	}
	e := cay.Errorf(codeOf(status), "%s", w.Message)
	e.RetryAfter = after
	if status == http.StatusPaymentRequired {
		return workflow.Fatal(e.WithHint("raise the budget, or wait for its next period"))
	}
	return e
}

// codeOf returns the code for an HTTP status of the gateway. See its table of
// errors.
func codeOf(status int) cay.Code {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return cay.Invalid
	case http.StatusUnauthorized:
		return cay.Unauthenticated
	case http.StatusPaymentRequired, http.StatusTooManyRequests:
		return cay.QuotaExceeded
	case http.StatusForbidden:
		return cay.PermissionDenied
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return cay.NotFound
	case http.StatusRequestEntityTooLarge:
		return cay.TooLarge
	case http.StatusFailedDependency, http.StatusNotImplemented:
		return cay.NotSupported
	case 499: // the gateway thinks we have left
		return cay.Unavailable
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly:
		return cay.Unavailable
	}
	if status/100 == 4 {
		return cay.Invalid
	}
	return cay.Unavailable
}

// retryAfter reads how long to wait, from the more precise of the two headers.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 && ms < 1e12 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	if s, err := strconv.Atoi(h.Get("Retry-After")); err == nil && s > 0 && s < 1e9 {
		return time.Duration(s) * time.Second
	}
	return 0
}

// again marks an error of Models for the step that calls them: errors that the
// next attempt would meet again are final, and errors that say when to retry are
// obeyed.
func again(err error) error {
	var fatal *workflow.FatalError
	var later *workflow.RetryableError
	var e *cay.Error
	if err == nil || errors.As(err, &fatal) || errors.As(err, &later) || !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case cay.QuotaExceeded, cay.Unavailable:
		switch {
		case e.RetryAfter > patience:
			return workflow.Fatal(err)
		case e.RetryAfter > 0:
			return workflow.Retryable(err, e.RetryAfter)
		}
		return err
	case cay.Internal, cay.DeadlineExceeded, cay.Canceled, cay.NoSpace:
		return err
	}
	return workflow.Fatal(err)
}
