package workflow

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"

	"github.com/cayhq/cay"
)

// maxWebhookBody bounds the body of a call of a webhook.
const maxWebhookBody = 4 << 20

// WebhookHandler serves the webhooks of runs, for programs without a daemon. Mount
// it at WebhookPath:
//
//	mux.Handle(workflow.WebhookPath, client.WebhookHandler())
//
// Hooks that are not webhooks are not found. A call is answered when it is recorded; a
// call of a webhook made with RespondByStep is answered when a step answers, or with 502
// when the run ends before. Bodies of more than 4 MiB are refused.
func (c *Client) WebhookHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp, err := c.serveWebhook(w, r)
		if err != nil {
			c.webhookError(w, r, err)
			return
		}
		maps.Copy(w.Header(), resp.Header)
		w.WriteHeader(resp.Status)
		_, _ = w.Write(resp.Body) // the client may have disconnected
	})
}

func (c *Client) serveWebhook(w http.ResponseWriter, r *http.Request) (*WebhookResponse, error) {
	ctx := r.Context()
	token, ok := strings.CutPrefix(r.URL.Path, WebhookPath)
	if !ok || token == "" || strings.Contains(token, "/") {
		return nil, errNoWebhook
	}
	hook, err := c.backend.GetHook(ctx, token)
	if err != nil {
		return nil, err
	}
	if !hook.Webhook {
		return nil, errNoWebhook
	}
	var meta struct {
		Respond json.RawMessage `json:"respond"`
	}
	if err := c.values.decode(hook.Metadata, &meta); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxWebhookBody))
	if err != nil {
		return nil, err
	}
	call := WebhookRequest{Method: r.Method, URL: requestURL(r), Header: r.Header, Body: body}
	byStep := string(meta.Respond) == `"`+webhookByStep+`"`
	if byStep {
		call.RespondTo = "webhook-" + rand.Text()
	}
	payload, err := c.values.encodeJSON(hook.Run, &call, nil) // headers may have bytes that are not UTF-8
	if err != nil {
		return nil, err
	}
	if _, err := c.backend.ResumeHook(ctx, ResumeParams{Token: token, Payload: payload, Webhook: true}); err != nil {
		return nil, err
	}
	resp := &WebhookResponse{Status: http.StatusAccepted}
	switch {
	case byStep:
		for chunk, err := range c.ReadChunks(ctx, hook.Run, call.RespondTo, 0) {
			if err == nil {
				err = c.values.decode(chunk.Data, resp)
			}
			if err == nil {
				err = resp.check()
			}
			return resp, err
		}
		return nil, errNoAnswer
	case len(meta.Respond) > 0 && string(meta.Respond) != "null":
		if err := json.Unmarshal(meta.Respond, resp); err != nil {
			return nil, cay.Errorf(cay.Internal, "read the answer of a webhook: %w", err)
		}
	}
	return resp, nil
}

var (
	errNoWebhook = cay.Errorf(cay.NotFound, "there is no such webhook")
	errNoAnswer  = cay.Errorf(cay.Unavailable, "the workflow ended without an answer")
)

// requestURL returns the URL that the client requested, as far as this server knows.
func requestURL(r *http.Request) string {
	u := *r.URL
	u.Host, u.Scheme = r.Host, "http"
	if r.TLS != nil {
		u.Scheme = "https"
	}
	return u.String()
}

func (c *Client) webhookError(w http.ResponseWriter, r *http.Request, err error) {
	status, code, words := http.StatusInternalServerError, cay.CodeOf(err), err.Error()
	var tooLong *http.MaxBytesError
	switch {
	case errors.Is(err, errNoAnswer):
		status = http.StatusBadGateway
	case errors.As(err, &tooLong):
		status, code, words = http.StatusRequestEntityTooLarge, cay.TooLarge, "the body is too large"
	case code == cay.NotFound:
		// The answer does not reveal whether the hook exists: a client without the token
		// learns nothing.
		status, words = http.StatusNotFound, errNoWebhook.Message
	case code == cay.TooLarge:
		status = http.StatusRequestEntityTooLarge
	case code == cay.QuotaExceeded:
		status = http.StatusTooManyRequests
	case code == cay.Unavailable || code == cay.NoSpace:
		status, words = http.StatusServiceUnavailable, "try again later"
	case code == cay.Conflict:
		status = http.StatusConflict
	case r.Context().Err() != nil:
		return // the client has disconnected
	default:
		c.log.ErrorContext(r.Context(), "webhook failed", "error", err)
		code, words = cay.Internal, "internal error"
	}
	type body struct {
		Code    cay.Code `json:"code"`
		Message string   `json:"message"`
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]body{"error": {code, words}}) // the client may have disconnected
}
