package workflow

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// WebhookPath begins the paths of webhooks; the token follows. A daemon serves them, or
// the program's own server with Client.WebhookHandler.
const WebhookPath = "/.well-known/workflow/v1/webhook/"

// Webhook is a hook that is resumed by HTTP requests. Its token is random: every caller
// that knows the URL may call it.
type Webhook struct {
	hook HookHandle[WebhookRequest]
}

// WebhookRequest is a call of a webhook.
type WebhookRequest struct {
	Method string      `json:"method"`
	URL    string      `json:"url"`
	Header http.Header `json:"header,omitempty"`
	Body   []byte      `json:"body,omitempty"`
	// RespondTo is the stream of the run that takes the answer, for webhooks made with
	// RespondByStep.
	RespondTo string `json:"respond_to,omitempty"`
}

// WebhookResponse is an answer to a call of a webhook.
type WebhookResponse struct {
	Status int         `json:"status"` // 0 is 200
	Header http.Header `json:"header,omitempty"`
	Body   []byte      `json:"body,omitempty"`
}

// webhookMetadata is the metadata of a webhook, which HTTP handlers read: it is
// JSON in the clear whatever the client's codec and keys.
type webhookMetadata struct {
	// Respond is null to answer 202, webhookByStep, or a WebhookResponse.
	Respond any `json:"respond"`
}

// webhookByStep means that a step answers.
const webhookByStep = "manual"

// WebhookOption changes a webhook.
type WebhookOption interface{ applyWebhook(*webhookMetadata) }

type webhookOption func(*webhookMetadata)

func (o webhookOption) applyWebhook(m *webhookMetadata) { o(m) }

// RespondWith answers every call with r, at once. The default answers 202.
func RespondWith(r WebhookResponse) WebhookOption {
	return webhookOption(func(m *webhookMetadata) {
		if r.Status == 0 {
			r.Status = http.StatusOK
		}
		m.Respond = r
	})
}

// RespondByStep lets a step answer, by WebhookRequest.Respond; the caller waits.
func RespondByStep() WebhookOption {
	return webhookOption(func(m *webhookMetadata) { m.Respond = webhookByStep })
}

// NewWebhook makes a webhook, and returns when it can be called. Errors: invalid for an
// invalid status in the answer; ErrCancelled or ErrTimeout.
func NewWebhook(ctx Context, opts ...WebhookOption) (*Webhook, error) {
	var m webhookMetadata
	for _, opt := range opts {
		opt.applyWebhook(&m)
	}
	if r, ok := m.Respond.(WebhookResponse); ok {
		if err := r.check(); err != nil {
			return nil, err
		}
	}
	env, err := clearEnvelope(m)
	if err != nil {
		return nil, err
	}
	f := ctx.flow()
	o, err := f.newHook("webhook", &Event{Type: history.HookCreated, Token: webhookToken(f.x.run.Project), Payload: env, Webhook: true}, false)
	if err != nil {
		return nil, err
	}
	return &Webhook{hook: HookHandle[WebhookRequest]{x: f.x, op: o, token: o.hook.token}}, nil
}

// webhookToken returns a new token. From the token a daemon learns the webhook's project.
func webhookToken(project string) string {
	if project == "" {
		return rand.Text()
	}
	return rand.Text() + "." + project
}

func (r WebhookResponse) check() error {
	if r.Status < 200 || r.Status > 599 {
		return cay.Errorf(cay.Invalid, "%d is no status of a response", r.Status)
	}
	return nil
}

// clearEnvelope returns an envelope in the clear, which every reader can open.
func clearEnvelope(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "value of type %T cannot be stored as JSON: %w", v, err)
	}
	return append([]byte(envelopeJSON), b...), nil
}

// Hook returns the webhook as a hook: to receive from it, to iterate over its calls, to
// use it in a Selector, or to dispose of it.
func (w *Webhook) Hook() *HookHandle[WebhookRequest] { return &w.hook }

// Token is the last part of the URL.
func (w *Webhook) Token() string { return w.hook.token }

// Path is the path of the webhook's URL, on the daemon or the program's own server.
func (w *Webhook) Path() string { return WebhookPath + w.hook.token }

// Receive waits for the next call: see HookHandle.Receive.
func (w *Webhook) Receive(ctx Context, timeout ...time.Duration) (WebhookRequest, error) {
	return w.hook.Receive(ctx, timeout...)
}

// Dispose ends the webhook: see HookHandle.Dispose.
func (w *Webhook) Dispose(ctx Context) { w.hook.Dispose(ctx) }

// Respond answers a call of a webhook made with RespondByStep. It is for steps; ctx is
// the step's context. A second answer does nothing. Errors: invalid; not_supported if the
// webhook answers by itself, or ctx is not a step's context.
func (r *WebhookRequest) Respond(ctx context.Context, resp WebhookResponse) error {
	if r.RespondTo == "" {
		return cay.Errorf(cay.NotSupported, "the webhook answers by itself: make it with RespondByStep")
	}
	e := stepEnvOf(ctx)
	if e == nil || e.writeStream == nil {
		return cay.Errorf(cay.NotSupported, "a webhook can be answered in a step only")
	}
	if resp.Status == 0 {
		resp.Status = http.StatusOK
	}
	if err := resp.check(); err != nil {
		return err
	}
	env, err := clearEnvelope(resp)
	if err != nil {
		return err
	}
	err = e.writeStream(ctx, r.RespondTo, [][]byte{env}, true)
	if cay.CodeOf(err) == cay.Conflict {
		return nil // closed by an earlier attempt of the step
	}
	return err
}
