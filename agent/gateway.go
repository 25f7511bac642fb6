package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/sse"
	"github.com/cayhq/cay/internal/wire"
)

// The bounds of an answer, in bytes.
const (
	maxEvent  = 16 << 20
	maxAnswer = 64 << 20
	maxError  = 1 << 20
)

// Gateway calls models through the gateway of a cay daemon, in the AI SDK's protocol,
// specification 4. The zero value can be used. Do not change a Gateway after its first
// use.
type Gateway struct {
	// URL is the gateway's address. Empty means $CAY_GATEWAY_URL, else the gateway of
	// this machine.
	URL string
	// Key is the secret of a key, or of a token of the daemon. Empty means
	// $CAY_GATEWAY_KEY, else $CAY_TOKEN, else this machine's admin token for a gateway
	// on this machine.
	Key string
	// User is the end user that calls are made for, and Tags describe their purpose.
	// Both are recorded, and may have budgets. Gateway adds a tag for the calling agent,
	// "agent:" and its name, unless there are 64 tags; the run is the session of the
	// call.
	User string
	Tags []string
	// HTTPClient sends the requests. Nil means http.DefaultTransport without a timeout:
	// answers may take long. Redirects are not followed, regardless of the client's
	// policy.
	HTTPClient *http.Client

	once     sync.Once
	endpoint string
	key      string
	client   *http.Client
	err      error
}

// agentTag is the prefix of the tag of an agent. The gateway accepts maxTags tags of at
// most maxTag bytes.
const (
	agentTag = "agent:"
	maxTags  = 64
	maxTag   = 256
)

var _ Models = (*Gateway)(nil)

func (g *Gateway) resolve() {
	address, key := g.URL, g.Key
	if address == "" {
		address = os.Getenv("CAY_GATEWAY_URL")
	}
	if address == "" {
		address = gateway.DefaultURL
	}
	if key == "" {
		key = os.Getenv("CAY_GATEWAY_KEY")
	}
	conn, err := wire.Target{URL: address, Token: key}.Resolve()
	if err != nil {
		g.err = cay.Errorf(cay.Invalid, "the address of the gateway: %w", err)
		return
	}
	if g.key = conn.Token(); g.key == "" {
		g.err = cay.Errorf(cay.Unauthenticated, "there is no key for the gateway at %s", conn.URL()).
			WithHint(`set CAY_GATEWAY_KEY to one made with "cay gateway keys create"`)
		return
	}
	g.endpoint = conn.URL() + "/v4/ai/language-model"
	c := http.Client{}
	if g.HTTPClient != nil {
		c = *g.HTTPClient
	}
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	g.client = &c
}

// Stream implements Models. In addition to the errors of Models it returns invalid (the
// call, or the gateway's address), unauthenticated, permission_denied, not_found (the
// model), too_large, quota_exceeded (a budget, which is workflow.Fatal, or a rate).
func (g *Gateway) Stream(ctx context.Context, call *ModelCall, emit func(*StreamPart) error) error {
	if g.once.Do(g.resolve); g.err != nil {
		return g.err
	}
	req, err := g.request(ctx, call)
	if err != nil {
		return err
	}
	resp, err := g.client.Do(req)
	if err != nil {
		return broken(ctx, "cannot reach the gateway at "+g.endpoint, err)
	}
	defer resp.Body.Close() // all that counts has been read, or the answer is given up
	if resp.StatusCode != http.StatusOK {
		return answerError(resp)
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind != "text/event-stream" {
		return cay.Errorf(cay.Invalid, "%s answered with %.64q, not with a stream of events", g.endpoint, kind).
			WithHint("set CAY_GATEWAY_URL to the address of a gateway of cay")
	}
	return readAnswer(ctx, resp.Body, emit)
}

// request makes the HTTP request for a call.
func (g *Gateway) request(ctx context.Context, call *ModelCall) (*http.Request, error) {
	body, err := json.Marshal(call)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the call of the model: %w", err)
	}
	if call.Model == "" || strings.ContainsFunc(call.Model, isControl) {
		return nil, cay.Errorf(cay.Invalid, "%.64q is no name of a model", call.Model).WithHint("give one such as anthropic/claude-sonnet-4.5")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the address of the gateway: %w", err)
	}
	h := req.Header
	h.Set("Authorization", "Bearer "+g.key)
	h.Set("Content-Type", "application/json")
	h.Set("Accept", "text/event-stream")
	h.Set("Ai-Language-Model-Specification-Version", "4")
	h.Set("Ai-Language-Model-Id", call.Model)
	h.Set("Ai-Language-Model-Streaming", "true")
	if call.Session != "" {
		h.Set("X-Session-Id", plain(call.Session))
	}
	if call.App != "" {
		h.Set("X-Title", plain(call.App))
	}
	if g.User != "" {
		h.Set("X-Cay-User", url.QueryEscape(g.User))
	}
	var tags []string
	for _, tag := range g.Tags {
		tags = append(tags, url.QueryEscape(tag))
	}
	if call.App != "" && len(tags)+tagsIn(call.ProviderOptions) < maxTags {
		name := strings.ToValidUTF8(call.App[:min(len(call.App), maxTag-len(agentTag))], "")
		tags = append(tags, url.QueryEscape(agentTag+name))
	}
	if len(tags) > 0 {
		h.Set("X-Cay-Tags", strings.Join(tags, ","))
	}
	return req, nil
}

// tagsIn counts the tags in a call's own options.
func tagsIn(o Options) int {
	var own struct{ Tags []json.RawMessage }
	_ = json.Unmarshal(o["gateway"], &own) // the gateway reports invalid options
	return len(own.Tags)
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// plain returns a text in a form that a header can have.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if isControl(r) {
			return ' '
		}
		return r
	}, s)
}

// readAnswer passes the parts of an answer to emit.
func readAnswer(ctx context.Context, body io.Reader, emit func(*StreamPart) error) error {
	bounded := &io.LimitedReader{R: body, N: maxAnswer}
	events := sse.NewReader(bounded, maxEvent)
	for {
		e, err := events.Next()
		switch {
		case err == nil:
		case bounded.N <= 0:
			return cay.Errorf(cay.TooLarge, "the model's answer has more than %d MiB", maxAnswer>>20)
		case errors.Is(err, sse.ErrTooLarge):
			return cay.Errorf(cay.TooLarge, "a part of the model's answer has more than %d MiB", maxEvent>>20)
		default:
			return broken(ctx, "the model's answer broke off", err)
		}
		if string(e.Data) == "[DONE]" {
			return cay.Errorf(cay.Unavailable, "the model's answer ended without saying how")
		}
		p, err := readStreamPart(e.Data)
		if err != nil {
			return err
		}
		if p == nil {
			continue
		}
		if err := emit(p); err != nil {
			return err
		}
		if p.Type == StreamFinish {
			return nil
		}
	}
}

// broken returns the error for an answer that is missing or incomplete: the end of ctx,
// or else an error that a retry may avoid.
func broken(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // which does not repeat the address
	}
	return cay.Errorf(cay.Unavailable, "%s: %w", what, err)
}

// answerError returns the error in the gateway's answer.
func answerError(resp *http.Response) error {
	if resp.StatusCode/100 == 3 {
		return cay.Errorf(cay.Invalid, "the gateway answers with a redirect to %.200q", resp.Header.Get("Location")).
			WithHint("set CAY_GATEWAY_URL to the gateway's own address")
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxError))
	var body struct {
		Error        json.RawMessage `json:"error"`
		GenerationID string          `json:"generationId"`
	}
	if err != nil || json.Unmarshal(b, &body) != nil {
		body.Error = nil // it is not the gateway's
	}
	return failure(body.Error, resp.StatusCode, retryAfter(resp.Header))
}
