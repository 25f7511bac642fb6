package guard

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// Webhook is a server of the operator's that decides about requests and, if configured,
// about answers. The gateway sends
//
//	{"stage": "request", "team_id", "project_id", "key_id", "user", "model", "body": {...}}
//
// and the server answers {"action": "allow"}, {"action": "block", "message": "why"} or
// {"action": "replace", "body": {...}}.
type Webhook struct {
	URL    string
	Header http.Header // with credentials, if it wants any
	// Timeout is the timeout of a call; 0 means DefaultTimeout; the maximum is 1 minute.
	Timeout time.Duration
	// FailOpen lets requests pass if the webhook fails; otherwise these requests are
	// refused.
	FailOpen bool
	Answers  bool // call the webhook for answers, too
}

const (
	maxTimeout = time.Minute
	maxVerdict = 64 << 20 // bytes of the webhook's answer, which may contain a body
)

type stage string

const (
	stageRequest stage = "request"
	stageAnswer  stage = "answer"
)

func (w *Webhook) check() error {
	u, err := url.Parse(w.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return cay.Errorf(cay.Invalid, "webhook.url is not an address such as https://guard.example/check")
	}
	if w.Timeout < 0 || w.Timeout > maxTimeout {
		return cay.Errorf(cay.Invalid, "webhook.timeout is %v; it is at most %v", w.Timeout, maxTimeout)
	}
	return nil
}

// ask calls the webhook and returns the body to pass on.
func (w *Webhook) ask(ctx context.Context, client *http.Client, s stage, c *ledger.Caller, model string, body []byte) ([]byte, error) {
	timeout := w.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	asking, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	verdict, err := w.call(asking, client, s, c, model, body)
	if err == nil {
		switch verdict.Action {
		case "allow":
			return body, nil
		case "block":
			message := verdict.Message
			if message == "" {
				message = "the " + string(s) + " is not allowed here"
			}
			return nil, refuse(hub.Forbidden, "webhook", hub.Redact(message))
		case "replace":
			if len(verdict.Body) > 0 && verdict.Body[0] == '{' {
				return verdict.Body, nil
			}
		}
	}
	if ctx.Err() != nil { // the client left
		return nil, &hub.Error{Kind: hub.Canceled, Message: "the client left", Cause: context.Cause(ctx)}
	}
	if w.FailOpen {
		return body, nil
	}
	e := refuse(hub.Overloaded, "webhook", "the guard of this gateway does not answer as it should")
	e.Cause = err
	return nil, e
}

type verdict struct {
	Action  string          `json:"action"`
	Message string          `json:"message"`
	Body    json.RawMessage `json:"body"`
}

func (w *Webhook) call(ctx context.Context, client *http.Client, s stage, c *ledger.Caller, model string, body []byte) (*verdict, error) {
	question := struct {
		Stage     stage           `json:"stage"`
		TeamID    string          `json:"team_id,omitempty"`
		ProjectID string          `json:"project_id,omitempty"`
		KeyID     string          `json:"key_id,omitempty"`
		User      string          `json:"user,omitempty"`
		Model     string          `json:"model"`
		Body      json.RawMessage `json:"body"`
	}{Stage: s, Model: model, Body: body}
	if c != nil {
		question.TeamID, question.ProjectID, question.KeyID, question.User = c.TeamID, c.ProjectID, c.KeyID, c.User
	}
	raw, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	for name, values := range w.Header {
		r.Header[name] = values
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err = io.ReadAll(io.LimitReader(resp.Body, maxVerdict+1))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, cay.Errorf(cay.Unavailable, "it answered with %s", resp.Status)
	case len(raw) > maxVerdict:
		return nil, cay.Errorf(cay.Unavailable, "its answer is larger than %d MiB", maxVerdict>>20)
	}
	v := new(verdict)
	return v, json.Unmarshal(raw, v)
}
