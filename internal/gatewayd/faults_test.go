package gatewayd_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// fault is the expected outcome of one kind of provider failure.
type fault struct {
	gatewaytest.Fault
	kind     hub.ErrorKind // of the unstreamed error that the client gets
	attempts int
	// begun faults happen after a stream has begun: the stream has status 200 and ends
	// with an error. kind is then also the kind in the record.
	begun bool
	// fine faults are invisible to the client.
	fine bool
	// lost faults happen after the provider has begun to work, and are charged.
	lost bool
}

var faults = []fault{
	{Fault: gatewaytest.Fault{Kind: gatewaytest.RateLimited, RetryAfter: 20 * time.Second}, kind: hub.RateLimited, attempts: 1},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.ServerError}, kind: hub.UpstreamFailed, attempts: 3},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.Overloaded}, kind: hub.Overloaded, attempts: 3},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.Rejected}, kind: hub.BadRequest, attempts: 1},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.BadKey}, kind: hub.UpstreamFailed, attempts: 1},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.Secret}, kind: hub.UpstreamFailed, attempts: 1},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.NoModel}, kind: hub.ModelNotFound, attempts: 1},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.Reset}, kind: hub.UpstreamFailed, attempts: 3},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.HangInHead}, kind: hub.Timeout, attempts: 1, lost: true},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.HangInStream, After: 5}, kind: hub.Timeout, attempts: 1, begun: true, lost: true},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.Cut, After: 900}, kind: hub.UpstreamFailed, attempts: 1, begun: true, lost: true},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.WrongType}, kind: hub.UpstreamFailed, attempts: 1},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.NoEnd}, kind: hub.UpstreamFailed, attempts: 1, begun: true, lost: true},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.Garbage, After: 5}, kind: hub.UpstreamFailed, attempts: 1, begun: true, lost: true},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.Oversize, After: 5}, kind: hub.UpstreamFailed, attempts: 1, begun: true, lost: true},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.Drip, Every: 100 * time.Microsecond}, attempts: 1, fine: true},
	{Fault: gatewaytest.Fault{Kind: gatewaytest.ErrorInStream, After: 5}, kind: hub.Overloaded, attempts: 1, begun: true},
}

// Every kind of provider failure, for clients of each dialect, streamed and whole, passed
// and translated, must give an error in the dialect, the right record and the right
// charge.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, d := range dialects {
		others := []string{d.name, gatewaytest.Messages, gatewaytest.Chat}
		if d.name == "aisdk" {
			others = []string{gatewaytest.Gemini, gatewaytest.Converse, gatewaytest.Chat}
		}
		slices.Sort(others)
		for _, through := range slices.Compact(others) {
			for _, f := range faults {
				if f.Kind == gatewaytest.Oversize && through != d.name { // slow
					continue
				}
				for _, stream := range []bool{false, true} {
					name := d.name + "/" + through + "/" + string(f.Kind) + map[bool]string{true: "/stream", false: "/whole"}[stream]
					t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
						t.Parallel()
						f.run(t, d, through, stream)
					})
				}
			}
		}
	}
}

func (f fault) run(t *testing.T, d dialect, through string, stream bool) {
	if f.Kind == gatewaytest.HangInHead || f.Kind == gatewaytest.HangInStream {
		patiently(t, time.Second, func(wait time.Duration) bool { return f.judge(t, d, through, stream, wait) })
		return
	}
	f.judge(t, d, through, stream, time.Minute)
}

// judge reports whether the provider was called within wait, the timeout for its first
// byte.
func (f fault) judge(t *testing.T, d dialect, through string, stream bool, wait time.Duration) bool {
	w := newWorld(t)
	p := *w.settings.Providers.Get(through)
	p.FirstByte, p.Idle = wait, wait
	p.Name = "mock"
	w.add(&p)
	w.model("mock/broken", "mock:broken")
	long := gatewaytest.Reply{Text: strings.Repeat("Hello from the provider. ", 40)}
	if f.Kind == gatewaytest.Drip {
		long.Text = "Hello."
	}
	w.up.On("broken", gatewaytest.Answer{Reply: long, Fault: f.Fault})

	if f.Kind == gatewaytest.Oversize && !stream {
		return true // within the size limit of an answer
	}
	status, body, head := w.ask(d, "mock/broken", stream)
	if len(w.up.Of("broken")) == 0 && len(w.record(1).Attempts) == 1 {
		return false // canceled before the provider was called
	}
	r := w.record(1)
	if head.Get("Request-Id") != r.ID || !strings.HasPrefix(r.ID, "gen_") {
		t.Errorf("request-id %q, record %q", head.Get("Request-Id"), r.ID)
	}
	if len(r.Attempts) != f.attempts {
		t.Errorf("there were %d attempts, want %d: %+v", len(r.Attempts), f.attempts, r.Attempts)
	}
	if strings.Contains(body, gatewaytest.Key) || strings.Contains(r.Error, gatewaytest.Key) {
		t.Error("the provider's key is shown")
	}
	fine := f.fine || !stream && f.Kind == gatewaytest.ErrorInStream
	if f.Kind == gatewaytest.NoEnd && through == gatewaytest.Chat && stream { // [DONE] may be missing
		fine = true
	}
	if fine {
		if status != 200 || r.Status != gateway.Succeeded || *r.Cost != price.Input*20+price.Output*10 {
			t.Fatalf("status %d, record %s, cost %v: %.500s", status, r.Status, r.Cost, body)
		}
		if stream && !strings.Contains(body, d.ends) && f.Kind != gatewaytest.NoEnd {
			t.Errorf("the stream has no end: %.2000s", body)
		}
		return true
	}
	kind := hub.ErrorKind(r.ErrorKind)
	same := kind == f.kind || f.kind == hub.ModelNotFound && kind == hub.NotFound || f.Kind == gatewaytest.ErrorInStream && kind == hub.UpstreamFailed
	if r.Status != gateway.Failed || !same {
		t.Errorf("the record says %s, %s (%s), want %s", r.Status, r.ErrorKind, r.Error, f.kind)
	}
	if stream && f.begun && status == 200 { // if the first event was invalid, the client gets an error status
		if !strings.Contains(body, d.fails) || strings.Contains(body, d.ends) && d.name != "chatcompletions" {
			t.Errorf("the stream should end with %s: ...%s", d.fails, body[max(0, len(body)-500):])
		}
		if d.name == "chatcompletions" && strings.Contains(body, `"finish_reason":"stop"`) && f.Kind != gatewaytest.NoEnd {
			t.Errorf("the stream looks complete: %.2000s", body)
		}
		// Generated output is charged, by the provider's count if it arrived, as with
		// every Gemini event, else by an estimate.
		counted := r.Tokens.Input == 20 && r.Tokens.Output == 10
		if r.Cost == nil || *r.Cost <= 0 || r.Tokens.Input == 0 || r.Tokens.Estimated == counted {
			t.Errorf("cost %v, tokens %+v", r.Cost, r.Tokens)
		}
		return true
	}
	for _, s := range formats() {
		s, ok := s.(hub.Surface)
		if !ok || s.Name() != d.name {
			continue
		}
		want, _ := s.WriteError(hub.Answer{Version: "4"}, &hub.Error{Kind: kind}, http.Header{})
		if status != want || r.HTTPStatus != want {
			t.Errorf("status %d, in the record %d, want %d: %s", status, r.HTTPStatus, want, body)
		}
	}
	if !strings.Contains(body, d.wrong) || !strings.HasPrefix(head.Get("Content-Type"), "application/json") {
		t.Errorf("the error is not in the dialect's words: %s", body)
	}
	if f.Kind == gatewaytest.RateLimited && head.Get("Retry-After") != "20" {
		t.Errorf("retry-after is %q", head.Get("Retry-After"))
	}
	// A refused request costs nothing; a begun answer is charged.
	switch a := r.Attempts[len(r.Attempts)-1]; {
	case r.Cost == nil, a.Cost == nil && *r.Cost != 0, a.Cost != nil && *a.Cost != *r.Cost:
		t.Errorf("cost %v, of the attempt %v", r.Cost, a.Cost)
	case f.lost != (*r.Cost > 0) && f.Kind != gatewaytest.ErrorInStream: // ErrorInStream may come before or after content
		t.Errorf("cost %v, work was lost: %v", r.Cost, f.lost)
	}
	return true
}

func TestFaults_NobodyThere(t *testing.T) {
	t.Parallel()
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.add(w.provider("refused", gatewaytest.Chat, gatewaytest.Refused(t)), w.provider("untrusted", gatewaytest.Chat, gatewaytest.Untrusted(t)))
			for i, p := range []string{"refused", "untrusted"} {
				w.model("m/"+p, p)
				for _, stream := range []bool{false, true} {
					status, body, _ := w.ask(d, "m/"+p, stream)
					if status < 500 || !strings.Contains(body, d.wrong) || !strings.Contains(body, p) {
						t.Errorf("%s: %d %s", p, status, body)
					}
				}
				if r := w.record(2*i + 2); r.ErrorKind != string(hub.UpstreamFailed) || len(r.Attempts) != 1 || *r.Cost != 0 {
					t.Errorf("%s: %+v", p, r)
				}
			}
		})
	}
}

// JSON without an answer is a failure.
func TestFaults_NoAnswer(t *testing.T) {
	t.Parallel()
	for _, d := range dialects[:3] {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.model("m/a", d.name+":a")
			for i, said := range []string{`[]`, `{}`, `null`, `3`, `"a text"`, `{"id":"x","object":"chat.completion","model":"a","usage":{"prompt_tokens":3}}`, `{"choices":[{nothing}],"output":[nothing],"type":"message"}`} {
				w.up.On("a", gatewaytest.Answer{Fixture: &gatewaytest.Fixture{Format: d.name, Whole: []byte(said)}})
				status, body, _ := w.ask(d, "m/a", false)
				if status != http.StatusBadGateway || !strings.Contains(body, d.wrong) {
					t.Errorf("%s became %d %s", said, status, body)
				}
				if r := w.record(i + 1); r.Status != gateway.Failed || r.ErrorKind != string(hub.UpstreamFailed) || r.Cost == nil || *r.Cost == 0 {
					t.Errorf("%s: the record says %s, %s, cost %v", said, r.Status, r.ErrorKind, r.Cost)
				}
			}
		})
	}
}
