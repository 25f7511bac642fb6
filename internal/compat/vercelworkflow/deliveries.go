package vercelworkflow

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// breath is how often a connection over which nothing is delivered gets an empty frame, so
// that both ends notice when the other is gone.
const breath = 10 * time.Second

// writePatience is how long a process may take to read a frame.
const writePatience = 30 * time.Second

// handleDeliveries answers with frames, one for each message of a deployment: id, topic,
// receipt, attempt and type, and the message. It goes on until the process leaves.
func (h *handler) handleDeliveries(w http.ResponseWriter, r *http.Request) error {
	project, err := h.asked(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	var p struct {
		// Instance names the process. A new connection with the same instance replaces this one.
		Instance string `json:"instance"`
		// Working are the receipts of the deliveries it works on, if it was connected before.
		Working []string `json:"working"`
	}
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	if len(p.Instance) < 16 || len(p.Instance) > 256 {
		return cay.Errorf(cay.Invalid, "instance has %d bytes, and should have 16 to 256 that no other process can guess", len(p.Instance))
	}
	if len(p.Working) > maxWorking {
		return cay.Errorf(cay.Invalid, "working has %d receipts: at most %d are allowed", len(p.Working), maxWorking)
	}
	r, end := api.EndWith(r, h.Pulls.ending)
	defer end()
	c, err := h.Pulls.connect(r.Context(), pullKey{project, r.PathValue("deployment")}, p.Instance, p.Working)
	if err != nil {
		return err
	}
	defer h.Pulls.disconnect(c)
	w.Header().Set("Content-Type", frameType)
	w.WriteHeader(http.StatusOK)
	return h.deliver(w, r, c)
}

// deliver writes what a process gets until its connection ends.
func (h *handler) deliver(w http.ResponseWriter, r *http.Request, c *connection) error {
	out := http.NewResponseController(w)
	tick := time.NewTicker(breath)
	defer tick.Stop()
	empty, err := appendFrame(nil, object{}, nil)
	if err != nil {
		return err
	}
	next := empty
	for {
		if len(next) > 0 {
			if err := out.SetWriteDeadline(time.Now().Add(writePatience)); err != nil && !errors.Is(err, http.ErrNotSupported) {
				return err
			}
			if _, err := w.Write(next); err != nil {
				return err
			}
			if err := out.Flush(); err != nil {
				return err
			}
		}
		next = nil
		select {
		case <-r.Context().Done():
			return r.Context().Err()
		case <-c.cut:
			return cay.Errorf(cay.Conflict, "the process has opened another connection")
		case <-tick.C:
			next = empty
		case <-c.wake:
			for _, pl := range h.Pulls.take(c) {
				m := &pl.m
				if next, err = appendFrame(next, object{
					"id": m.ID, "topic": m.Topic, "receipt": m.Receipt, "attempt": m.Attempt, "type": m.ContentType,
				}, m.Body); err != nil {
					return err
				}
			}
		}
	}
}

// maxSaid bounds what an app says of a delivery that failed, in bytes.
const maxSaid = 2000

// handleSettle notes how a delivery over a connection went.
func (h *handler) handleSettle(w http.ResponseWriter, r *http.Request) error {
	project, err := h.asked(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	var p struct {
		Error      string  `json:"error"`       // "": it is done
		RetryAfter float64 `json:"retry_after"` // seconds; 0: the queue decides
	}
	if err := api.ReadJSON(w, r, &p); err != nil {
		return err
	}
	if !(p.RetryAfter >= 0 && p.RetryAfter <= maxVisibility) {
		return cay.Errorf(cay.Invalid, "retry_after is %v, and can be 0 to %d", p.RetryAfter, maxVisibility)
	}
	key, receipt := pullKey{project, r.PathValue("deployment")}, r.PathValue("receipt")
	switch {
	case p.Error == "":
		err = h.Queue.Acknowledge(r.Context(), project, receipt)
		if err == nil || cay.CodeOf(err) == cay.NotFound {
			h.Pulls.finish(key, receipt, nil)
		}
	case p.RetryAfter > 0:
		err = h.Queue.Extend(r.Context(), project, receipt, time.Duration(p.RetryAfter*float64(time.Second)))
		if err == nil || cay.CodeOf(err) == cay.NotFound {
			h.Pulls.finish(key, receipt, nil)
		}
	default:
		if !h.Pulls.finish(key, receipt, errors.New(strings.ToValidUTF8(p.Error[:min(len(p.Error), maxSaid)], ""))) {
			// A daemon before has delivered it, and nobody counts its attempts here.
			err = h.Queue.Extend(r.Context(), project, receipt, time.Second)
		}
	}
	if err != nil {
		return err
	}
	return api.NoContent(w)
}
