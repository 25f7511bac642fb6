package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

func TestHook_Receives(t *testing.T) {
	w := Define("hook", func(ctx Context, _ int) ([]string, error) {
		h, err := NewHook[string](ctx, "door", Metadata(map[string]int{"floor": 3}))
		if err != nil {
			return nil, err
		}
		var log []string
		v, err := h.Receive(ctx)
		log = append(log, fmt.Sprint(v, err))
		v, err = h.Receive(ctx, time.Hour)
		log = append(log, fmt.Sprint(v, err))
		v, err = h.Receive(ctx, time.Second)
		log = append(log, fmt.Sprint(v, err))
		_, err = h.Receive(ctx, 0)
		log = append(log, fmt.Sprint(err))
		return log, nil
	})
	e := newEngine(t, w, 0)
	e.turn(9)
	if a := e.last.appends; len(a) != 1 || a[0].Token != "door" || string(a[0].Payload) != `json{"floor":3}` || a[0].Webhook {
		t.Fatalf("it asks for %+v", a)
	}
	e.resume("hook_hook.1", "a") // before the code receives
	e.resume("hook_hook.1", "b")
	e.settle()
	e.fire()
	var log []string
	e.result(&log)
	if want := []string{"a<nil>", "b<nil>", "timed out", "timed out"}; !reflect.DeepEqual(log, want) {
		t.Errorf("received %q", log)
	}
	if n := strings.Count(fmt.Sprint(e.types()), "wait_created"); n != 1 {
		t.Errorf("%d timers were asked for", n)
	}
}

// A step cannot pass on a token that does not exist yet.
func TestHook_BeforeSteps(t *testing.T) {
	w := Define("hook", func(ctx Context, _ int) (int, error) {
		h, err := NewHook[int](ctx, "")
		if err != nil {
			return 0, err
		}
		if len(h.Token()) < 26 {
			t.Errorf("token is %q", h.Token())
		}
		return Do(ctx, "mail", func(context.Context) (int, error) { return 1, nil })
	})
	e := newEngine(t, w, 0)
	e.turn(2)
	if len(e.last.steps) != 0 || len(e.last.appends) != 1 {
		t.Errorf("effects are %+v", e.last)
	}
	first := e.last.appends[0].Token
	e.restart()
	e.turn(9)
	if got := e.x.ops["hook_hook.1"].hook.token; got != first {
		t.Errorf("after a crash the token is %q, was %q", got, first)
	}
}

func TestHook_Conflict(t *testing.T) {
	w := Define("hook", func(ctx Context, _ int) (int, error) {
		if _, err := NewHook[int](ctx, strings.Repeat("t", 513)); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("long token: %v", err)
		}
		h, err := NewHook[int](ctx, "door")
		if err != nil {
			return 0, err
		}
		_, err = NewHook[int](ctx, "door")
		var conflict *HookConflictError
		if !errors.As(err, &conflict) || conflict.Token != "door" || conflict.Run != ctx.Info().RunID {
			t.Errorf("error is %#v", err)
		}
		h.Dispose(ctx)
		h.Dispose(ctx)
		if _, err := h.Receive(ctx); cay.CodeOf(err) != cay.Conflict {
			t.Errorf("disposed: %v", err)
		}
		if err := Sleep(ctx, 1); err != nil {
			return 0, err
		}
		_, err = NewHook[int](ctx, "door")
		return 0, err
	})
	var n int
	newEngine(t, w, 0).result(&n)
}

func TestHook_All(t *testing.T) {
	w := Define("all", func(ctx Context, _ int) (int, error) {
		h, err := NewHook[int](ctx, "door")
		if err != nil {
			return 0, err
		}
		sum, bad := 0, 0
		for v, err := range h.All(ctx) {
			if err != nil {
				bad++
			}
			if sum += v; sum >= 6 {
				h.Dispose(ctx)
			}
		}
		sub, cancel := WithTimeout(ctx, time.Second)
		defer cancel()
		other, err := NewHook[int](ctx, "")
		if err != nil {
			return 0, err
		}
		for _, err := range other.All(sub) {
			if !errors.Is(err, ErrTimeout) {
				t.Errorf("error is %v", err)
			}
			bad += 10
		}
		return sum*100 + bad, nil
	})
	e := newEngine(t, w, 0)
	e.settle()
	e.resume("hook_hook.1", 1)
	e.resume("hook_hook.1", "no number")
	e.settle()
	e.resume("hook_hook.1", 5)
	var got int
	if e.result(&got); got != 611 {
		t.Errorf("got %d", got)
	}
}

// A hook whose creation was cancelled does not keep its token.
func TestHook_CancelledWhileMade(t *testing.T) {
	w := Define("hook", func(ctx Context, _ int) (int, error) {
		f := Go(ctx, func(ctx Context) (int, error) {
			_, err := NewHook[int](ctx, "door")
			if !errors.Is(err, ErrCancelled) {
				t.Errorf("error is %v", err)
			}
			return 0, nil
		})
		_, _ = f.Get(WithoutCancel(ctx))
		return 0, Sleep(WithoutCancel(ctx), time.Hour)
	})
	e := newEngine(t, w, 0)
	eff := e.x.feed(e.log)
	e.fed = len(e.log)
	e.append(Event{Type: history.CancelRequested}) // overtakes hook_created
	e.append(eff.appends...)
	e.settle()
	if len(e.hooks) != 0 {
		t.Errorf("hooks are %v\n%s", e.hooks, e.dump())
	}
	e.finish()
	e.replay()
}

func TestWebhook(t *testing.T) {
	respond := Step("respond", func(ctx context.Context, r WebhookRequest) (int, error) {
		return 0, r.Respond(ctx, WebhookResponse{Header: http.Header{"X": {"y"}}, Body: []byte("hi")})
	})
	w := Define("webhook", func(ctx Context, _ int) (string, error) {
		if _, err := NewWebhook(ctx, RespondWith(WebhookResponse{Status: 42})); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("status 42: %v", err)
		}
		h, err := NewWebhook(ctx, RespondByStep())
		if err != nil {
			return "", err
		}
		r, err := h.Receive(ctx, time.Hour)
		if err != nil {
			return "", err
		}
		_, err = respond.Run(ctx, r)
		h.Dispose(ctx)
		return r.Method + " " + string(r.Body) + " " + strings.TrimSuffix(h.Path(), h.Token()), err
	})
	e := newEngine(t, w, 0)
	e.turn(9)
	if a := e.last.appends; len(a) != 1 || !a[0].Webhook || string(a[0].Payload) != `json{"respond":"manual"}` {
		t.Fatalf("it asks for %+v", a)
	}
	e.settle()
	e.resume("hook_webhook.1", WebhookRequest{Method: "POST", Body: []byte("x"), RespondTo: "answer"})
	var answer []byte
	e.stream = func(_ context.Context, stream string, chunks [][]byte, closeIt bool) error {
		if stream != "answer" || !closeIt || len(chunks) != 1 {
			t.Errorf("stream %s gets %d chunks, closed %v", stream, len(chunks), closeIt)
		}
		if answer != nil {
			return cay.Errorf(cay.Conflict, "closed")
		}
		answer = chunks[0]
		return nil
	}
	var got string
	if e.result(&got); got != "POST x "+WebhookPath {
		t.Errorf("got %q", got)
	}
	var resp WebhookResponse
	if err := json.Unmarshal(answer[4:], &resp); err != nil || resp.Status != 200 || string(resp.Body) != "hi" || resp.Header.Get("X") != "y" {
		t.Errorf("answer is %s", answer)
	}
	if err := (&WebhookRequest{}).Respond(t.Context(), resp); cay.CodeOf(err) != cay.NotSupported {
		t.Errorf("answer to one that is not waited for: %v", err)
	}
}

func TestWebhook_Metadata(t *testing.T) {
	for want, opts := range map[string][]WebhookOption{
		`json{"respond":null}`:                         nil,
		`json{"respond":{"status":200,"body":"aGk="}}`: {RespondWith(WebhookResponse{Body: []byte("hi")})},
	} {
		w := Define("webhook", func(ctx Context, _ int) (int, error) { _, err := NewWebhook(ctx, opts...); return 0, err })
		e := newEngine(t, w, 0)
		e.turn(9)
		if got := string(e.last.appends[0].Payload); got != want {
			t.Errorf("metadata is %s, want %s", got, want)
		}
	}
}
