package vercelworkflow

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

// The SDK decides by the status: 404 there is no such thing, 409 somebody else was
// first, 410 the run has ended, 425 come again after Retry-After, 429 and 5xx later.

// refusal is an error with a status of its own.
type refusal struct {
	status int
	error
}

func (r *refusal) Unwrap() error { return r.error }

// refused gives the error of an event that a log does not allow its status.
func refused(typ history.Type, err error) error {
	switch {
	case errors.Is(err, workflowd.ErrTooEarly):
		return &refusal{http.StatusTooEarly, err}
	case errors.Is(err, workflowd.ErrRunEnded):
		switch typ {
		case history.RunStarted, history.HookReceived, history.StepStarted, history.StepCompleted, history.StepFailed, history.StepRetrying:
			return &refusal{http.StatusGone, err}
		}
		return &refusal{http.StatusConflict, err}
	case cay.CodeOf(err) == cay.Conflict && typ == history.HookReceived:
		return &refusal{http.StatusNotFound, err} // the hook is over, or its key was used
	}
	return err
}

// statusOf is the status of an error.
func statusOf(err error) int {
	var r *refusal
	if errors.As(err, &r) {
		return r.status
	}
	return api.Status(cay.CodeOf(err))
}

// writeError is an api.ErrorWriter.
func writeError(w http.ResponseWriter, err error, public *cay.Error) {
	status := statusOf(err)
	if public.Code == cay.Internal {
		status = http.StatusInternalServerError
	}
	var early *workflowd.EarlyError
	if errors.As(err, &early) {
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(time.Until(early.Until).Seconds())))))
	}
	message := public.Message
	if public.Hint != "" {
		message += " (" + public.Hint + ")" // clients show nothing else
	}
	// Encoding two texts cannot fail, and a client that left is nobody to tell.
	_ = api.WriteJSON(w, status, map[string]string{"code": string(public.Code), "error": string(public.Code), "message": message})
}
