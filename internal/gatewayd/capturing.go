package gatewayd

import (
	"bytes"
	"regexp"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/capture"
	"github.com/cayhq/cay/internal/gatewayd/request"
	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// tee returns a Tee that captures the answer of a call, nil if answers are not captured.
// The caller and the model are known only later.
func (e *Engine) tee(rules *capture.Rules, rt *request.Route) *capture.Tee {
	if rules == nil || !rules.Answers || e.cfg.Captured == nil || rt.Kind == "" {
		return nil
	}
	return e.cfg.Captured.Tee(rules)
}

// capture hands a call's bodies to the Store if the rules select the call, and notes
// that in the call's record r.
func (e *Engine) capture(rules *capture.Rules, rq *request.Request, out *answer, r *gateway.Request) {
	bodies := e.cfg.Captured
	tee := out.collected()
	if rules == nil || bodies == nil || !rules.Requests && !rules.Answers {
		return
	}
	if !rules.Wants(r.KeyID, r.Model, r.Served) {
		if tee != nil {
			tee.Discard()
		}
		return
	}
	var asked *capture.Body
	if rules.Requests {
		asked = captured(rq)
	}
	r.Capture = gateway.CaptureDropped
	if bodies.Offer(r, rules, asked, tee, out.w.Header().Get("Content-Type")) {
		r.Capture = gateway.CaptureKept
	}
}

// perhapsSecret finds possible credentials in a request, also in one that could not be
// parsed.
var perhapsSecret = regexp.MustCompile(`(?i)byok|key|secret|token|credential|\\`)

// captured returns the client's body as changed by guards, with credentials removed.
func captured(rq *request.Request) *capture.Body {
	b := &capture.Body{ContentType: rq.HTTP.Header.Get("Content-Type"), Bytes: rq.Raw, Size: rq.Size}
	switch {
	case rq.Object == nil || rq.Object.Body == nil: // the body could not be parsed, or is a form
		b.Size = max(b.Size, int64(len(rq.Raw)))
		if rq.Object != nil {
			b.ContentType = "application/octet-stream"
		} else if bytes.Contains(rq.Raw, []byte("providerOptions")) || bytes.ContainsRune(rq.Raw, '\\') {
			b.Omitted = "it makes no sense, and may have credentials in it"
		} else {
			b.ContentType = "text/plain"
		}
		return b
	case perhapsSecret.Match(rq.Object.Get("providerOptions")):
		b.Bytes = rq.Object.Edit(scan.Delete("providerOptions"))
	}
	b.ContentType = "application/json" // whatever type the client sent
	return b
}
