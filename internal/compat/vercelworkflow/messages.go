package vercelworkflow

import (
	"net/http"
	"time"

	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/workflow"
)

// maxMessages is how many messages one answer has.
const maxMessages = 1000

// handleMessages lists the messages that wait for apps, those of one run if it is named:
// the soonest first.
func (h *handler) handleMessages(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	run, limit := q.String("run"), int(q.Int("limit", 1, maxMessages, 100))
	project, err := h.asked(r, q)
	if err != nil {
		return err
	}
	found, err := h.Queue.Messages(r.Context(), project, run, limit)
	if err != nil {
		return err
	}
	items := make([]workflow.Delivery, len(found))
	for i := range found {
		items[i] = deliveryOf(&found[i])
	}
	return api.WriteJSON(w, http.StatusOK, map[string]any{"items": items})
}

// asked returns the project that a request of our own API names. q is checked with it: take
// all other parameters first.
func (h *handler) asked(r *http.Request, q *api.Query) (string, error) {
	project := q.String("project")
	if err := q.Err(); err != nil {
		return "", err
	}
	return h.Project(r.Context(), project)
}

func deliveryOf(m *queue.Message) workflow.Delivery {
	when := func(ms int64) time.Time {
		if ms == 0 {
			return time.Time{}
		}
		return at(ms)
	}
	return workflow.Delivery{
		ID: m.ID, Deployment: m.Deployment, Topic: m.Topic, Run: m.Run, Step: m.Step, CreatedAt: at(m.CreatedAt), Due: at(m.Due),
		Attempt: m.Attempt, LeasedUntil: when(m.LeaseUntil), Error: m.LastError,
	}
}

func deploymentOf(d *queue.Deployment) workflow.Deployment {
	shown := workflow.Deployment{ID: d.ID, Project: d.Project, URL: d.URL, Error: d.Error, Draining: d.Draining}
	if d.CreatedAt != 0 {
		shown.CreatedAt, shown.SeenAt = at(d.CreatedAt), at(d.SeenAt)
	}
	return shown
}
