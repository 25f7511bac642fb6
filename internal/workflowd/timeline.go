package workflowd

import (
	"context"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/workflow"
)

// maxTimeline bounds the payloads of a timeline, in bytes.
const maxTimeline = 32 << 20

// ReadTimeline returns the timeline of a run, from its whole log. payloads includes the
// inputs and results of steps and hooks. Errors: not_found, too_large (the payloads are
// too large to be shown at one time).
func ReadTimeline(ctx context.Context, b workflow.Backend, id string, payloads bool) (*history.Timeline, error) {
	run, err := b.GetRun(ctx, id)
	if err != nil {
		return nil, err
	}
	var log []history.Event
	size := 0
	for {
		events, err := b.Events(ctx, id, int64(len(log))+1, eventPage)
		if err != nil {
			return nil, err
		}
		if len(events) == 0 {
			return history.NewTimeline(*run, log), nil
		}
		for _, e := range events {
			if !payloads {
				e.Payload, e.Input = nil, nil
			}
			if size += len(e.Payload) + len(e.Input); size > maxTimeline {
				return nil, cay.Errorf(cay.TooLarge, "the payloads of run %s have more than %d bytes", id, maxTimeline).
					WithHint("ask for the timeline without them, and for the events one by one")
			}
			log = append(log, e)
		}
	}
}

func (h *Routes) handleTimeline(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	payloads := q.Bool("data")
	b, err := h.backend(r, q)
	if err != nil {
		return err
	}
	t, err := ReadTimeline(r.Context(), b, r.PathValue("id"), payloads)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, protocol.TimelineOf(t))
}
