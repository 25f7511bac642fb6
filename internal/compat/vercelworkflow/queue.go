package vercelworkflow

import (
	"context"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"strconv"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

// message is what a request, or a part of one, publishes. Errors: invalid.
func message(project, topic string, head textproto.MIMEHeader, body []byte) (queue.Message, error) {
	m := queue.Message{
		Project: project, Topic: topic, Deployment: head.Get("Vqs-Deployment-Id"), Key: head.Get("Vqs-Idempotency-Key"),
		Run: head.Get("X-Vercel-Workflow-Run-Id"), Step: head.Get("X-Vercel-Workflow-Step-Id"),
		ContentType: head.Get("Content-Type"), Body: body,
	}
	if text := head.Get("Vqs-Delay-Seconds"); text != "" {
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil || !(seconds >= 0 && seconds <= queue.MaxDelay.Seconds()) {
			return m, cay.Errorf(cay.Invalid, "Vqs-Delay-Seconds is %.40q, and should be a number of seconds, at most a year", text)
		}
		if seconds > 0 {
			m.Due = time.Now().Add(time.Duration(seconds * float64(time.Second))).UnixMilli()
		}
	}
	return m, nil
}

// publish stores a message with the priority of its run's workflow.
func (h *handler) publish(ctx context.Context, m queue.Message) (id string, err error) {
	if h.Priorities != nil {
		if m.Priority, err = h.priority(ctx, &m); err != nil {
			return "", err
		}
	}
	return h.Queue.Publish(ctx, m)
}

// priority returns the priority of a message. The topic of a step's message does not name the
// workflow; that of a run's first message has to do, since the run may not exist yet.
func (h *handler) priority(ctx context.Context, m *queue.Message) (int, error) {
	all, err := h.Priorities(ctx, m.Project)
	if err != nil || len(all) == 0 {
		return 0, err
	}
	if m.Run == "" || !stepTopic.MatchString(m.Topic) {
		for workflow, priority := range all {
			if topicOf(queueName(workflow)) == m.Topic {
				return priority, nil
			}
		}
		return 0, nil
	}
	r, err := h.Runs(m.Project).GetRun(ctx, m.Run)
	if cay.CodeOf(err) == cay.NotFound {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return all[r.Workflow], nil
}

// handlePublish stores a message.
func (h *handler) handlePublish(w http.ResponseWriter, r *http.Request) error {
	project, err := h.Project(r.Context(), "")
	if err != nil {
		return err
	}
	body, free, err := h.readBody(w, r, queue.MaxBody)
	if err != nil {
		return err
	}
	defer free()
	m, err := message(project, r.PathValue("topic"), textproto.MIMEHeader(r.Header), body)
	if err != nil {
		return err
	}
	id, err := h.publish(r.Context(), m)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusCreated, map[string]string{"messageId": id})
}

// maxPublish is how many messages one request publishes, and maxPublishBytes what it may have.
const (
	maxPublish      = 100
	maxPublishBytes = 64 << 20
)

// handlePublishMany stores the messages of a request that has many parts, and answers for each.
func (h *handler) handlePublishMany(w http.ResponseWriter, r *http.Request) error {
	project, err := h.Project(r.Context(), "")
	if err != nil {
		return err
	}
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || params["boundary"] == "" {
		return cay.Errorf(cay.Invalid, "the request has no parts: Content-Type is %.100q", r.Header.Get("Content-Type"))
	}
	parts := multipart.NewReader(io.LimitReader(api.Body(w, r), maxPublishBytes), params["boundary"])
	var messages []queue.Message
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return cay.Errorf(cay.Invalid, "the parts of the request cannot be read: %v", err)
		}
		body, err := readAll(part, queue.MaxBody)
		if err != nil {
			return err
		}
		head := part.Header
		if head.Get("Vqs-Deployment-Id") == "" {
			head.Set("Vqs-Deployment-Id", r.Header.Get("Vqs-Deployment-Id"))
		}
		m, err := message(project, r.PathValue("topic"), head, body)
		if err != nil {
			return err
		}
		if messages = append(messages, m); len(messages) > maxPublish {
			return cay.Errorf(cay.Invalid, "the request has more than %d parts", maxPublish)
		}
	}
	results := make([]object, len(messages))
	for i, m := range messages {
		id, err := h.publish(r.Context(), m)
		if err != nil {
			results[i] = object{"status": "failed", "error": err.Error(), "retryable": cay.CodeOf(err) == cay.Unavailable}
			continue
		}
		results[i] = object{"status": "sent", "messageId": id}
	}
	return api.WriteJSON(w, http.StatusOK, object{"results": results})
}

// handleAcknowledge removes a message that was delivered.
func (h *handler) handleAcknowledge(w http.ResponseWriter, r *http.Request) error {
	project, err := h.Project(r.Context(), "")
	if err != nil {
		return err
	}
	if err := h.Queue.Acknowledge(r.Context(), project, r.PathValue("receipt")); err != nil {
		return err
	}
	return api.NoContent(w)
}

// maxVisibility is the longest lease, in seconds.
const maxVisibility = 366 * 24 * 3600

// handleExtend extends a lease, or says when the message is to be delivered again.
func (h *handler) handleExtend(w http.ResponseWriter, r *http.Request) error {
	project, err := h.Project(r.Context(), "")
	if err != nil {
		return err
	}
	var p struct {
		Seconds float64 `json:"visibilityTimeoutSeconds"`
	}
	if err := api.ReadOpenJSON(w, r, &p); err != nil {
		return err
	}
	if !(p.Seconds >= 0 && p.Seconds <= maxVisibility) {
		return cay.Errorf(cay.Invalid, "visibilityTimeoutSeconds is %v, and can be 0 to %d", p.Seconds, maxVisibility)
	}
	if err := h.Queue.Extend(r.Context(), project, r.PathValue("receipt"), time.Duration(p.Seconds*float64(time.Second))); err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, object{"success": true})
}
