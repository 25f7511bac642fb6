package workflow

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/testenv"
)

// TestApp runs each of the app's workflows with each line of the SDK.
func TestApp(t *testing.T) {
	need(t, lines...)
	d := testenv.Start(t)
	for _, line := range lines {
		t.Run(line, func(t *testing.T) {
			a := buildApp(t, line, d.URL, d.Token)
			a.start(t)
			t.Run("results", a.testResults)
			t.Run("errors", a.testErrors)
			t.Run("hook", a.testHook)
			t.Run("hook beside a step", a.testHookBeside)
			t.Run("webhook", a.testWebhook)
			t.Run("stream", a.testStream)
			t.Run("cancel", a.testCancel)
			t.Run("pipeline", a.testPipeline)
			t.Run("secret", a.testSecret)
		})
	}
}

func (a *app) testResults(t *testing.T) {
	for _, tt := range []struct {
		workflow string
		args     []any
		want     string // a pattern
	}{
		{"sequential", []any{10}, `{"result":55}`},
		{"parallel", []any{10}, `{"result":90}`},
		{"values", nil, `{"result":{"map":{"Map":\[\["a",1\]\]},"set":{"Set":\[1,2\]},"at":"1970-01-01T00:00:00.000Z","big":{"bigint":"1180591620717411303424"},"bytes":{"bytes":\[0,255\]},"text":"a\\u0000b","same":true}}`},
		{"fails", nil, `{"status":"failed","error":"WorkflowRunFailedError","message":"the workflow itself fails"}`},
	} {
		t.Run(tt.workflow, func(t *testing.T) {
			if got := a.result(t, a.run(t, tt.workflow, tt.args...)); !regexp.MustCompile("^" + tt.want + "$").MatchString(got) {
				t.Errorf("the result is %s, want %s", got, tt.want)
			}
		})
	}
	t.Run("asleep", func(t *testing.T) {
		run := a.run(t, "asleep", 1000)
		a.sleptFor(t, run, 1000)
	})
}

// sleptFor checks the result of the workflow asleep.
func (a *app) sleptFor(t *testing.T, run string, ms int) {
	t.Helper()
	got, from, until := a.result(t, run), 0, 0
	if _, err := fmt.Sscanf(got, `{"result":{"from":%d,"until":%d,"run":"`+run+`"}}`, &from, &until); err != nil {
		t.Fatalf("the result is %s: %v", got, err)
	}
	if until-from < ms {
		t.Errorf("it slept for %d ms, want %d", until-from, ms)
	}
}

// A step that asks for it is retried, a fatal error ends its step at once, and
// other errors end it after the step's maximum of attempts.
func (a *app) testErrors(t *testing.T) {
	run := a.run(t, "errors")
	if got, want := all(t, a.stream(t, run, 0)), "\"twice 1\"\n\"twice 2\"\n\"fatal 1\"\n\"never 1\"\n\"never 2\"\n"; got != want {
		t.Errorf("the attempts are %q, want %q", got, want)
	}
	got := a.result(t, run)
	if !regexp.MustCompile(`^{"result":{"attempts":2,"messages":\["not again","[^,]*after 1 retry: never works"\]}}$`).MatchString(got) {
		t.Errorf("the result is %s", got)
	}
}

func (a *app) testHook(t *testing.T) {
	token := "hook-" + t.Name()
	token = strings.ReplaceAll(token, "/", "-")
	run := a.run(t, "hook", token)
	a.waitFor(t, run, `"waiting"`)
	for _, payload := range []any{map[string]any{"value": 1}, map[string]any{"value": "two"}, map[string]any{"value": []any{3}, "last": true}} {
		var resumed struct{ RunID string }
		a.call(t, http.MethodPost, "/hooks/"+token, payload, &resumed)
		if resumed.RunID != run {
			t.Errorf("%v resumes %s, want %s", payload, resumed.RunID, run)
		}
	}
	if got, want := a.result(t, run), `{"result":[1,"two",[3]]}`; got != want {
		t.Errorf("the result is %s, want %s", got, want)
	}
}

// A workflow goes on with the value of a hook while one of its steps is under way. The step
// runs once.
func (a *app) testHookBeside(t *testing.T) {
	token := strings.ReplaceAll("hook-"+t.Name(), "/", "-")
	run := a.run(t, "heldBeside", token)
	a.waitFor(t, run, `"begins"`)
	var resumed struct{ RunID string }
	a.call(t, http.MethodPost, "/hooks/"+token, map[string]any{"value": 7}, &resumed)
	a.waitFor(t, run, `"taken"`)
	a.letGo(t)
	if got := a.result(t, run); got != `{"result":{"value":7,"attempt":1}}` {
		t.Errorf("the result is %s", got)
	}
	if got := all(t, a.stream(t, run, 0)); got != "\"begins\"\n\"taken\"\n" {
		t.Errorf("the steps write %q", got)
	}
}

func (a *app) testWebhook(t *testing.T) {
	run := a.run(t, "webhook")
	body := a.stream(t, run, 0)
	defer body.Close()
	var at string
	if _, err := fmt.Fscanf(body, "%q\n", &at); err != nil {
		t.Fatal(err)
	}
	// The SDK builds addresses from its port and the name localhost.
	_, path, ok := strings.Cut(at, "/.well-known/")
	if !ok {
		t.Fatalf("the webhook's address is %s", at)
	}
	response, err := http.Post(a.url+"/.well-known/"+path, "text/plain", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusAccepted {
		t.Errorf("the webhook answers %s", response.Status)
	}
	if got, want := a.result(t, run), `{"result":{"method":"POST","text":"hello"}}`; got != want {
		t.Errorf("the result is %s, want %s", got, want)
	}
}

func (a *app) testStream(t *testing.T) {
	run := a.run(t, "stream", 5)
	if got, want := all(t, a.stream(t, run, 0)), "{\"i\":0}\n{\"i\":1}\n{\"i\":2}\n{\"i\":3}\n{\"i\":4}\n"; got != want {
		t.Errorf("the stream is %q, want %q", got, want)
	}
	if got := a.result(t, run); got != `{"result":5}` {
		t.Errorf("the result is %s", got)
	}
	for from, want := range map[int]string{3: "{\"i\":3}\n{\"i\":4}\n", -1: "{\"i\":4}\n", -9: "{\"i\":0}\n{\"i\":1}\n{\"i\":2}\n{\"i\":3}\n{\"i\":4}\n"} {
		if got := all(t, a.stream(t, run, from)); got != want {
			t.Errorf("from %d the stream is %q, want %q", from, got, want)
		}
	}
}

func (a *app) testCancel(t *testing.T) {
	run := a.run(t, "asleep", 3_600_000)
	a.waitFor(t, run, `"asleep"`)
	var canceled any
	a.call(t, http.MethodPost, "/runs/"+run+"/cancel", nil, &canceled)
	if got := a.result(t, run); !strings.Contains(got, `"status":"cancelled","error":"WorkflowRunCancelledError"`) {
		t.Errorf("the result is %s", got)
	}
}

// A workflow calls methods of Sandbox; each call is a step.
func (a *app) testPipeline(t *testing.T) {
	got := a.result(t, a.run(t, "pipeline", []any{"echo one", "echo two >&2; exit 3"}))
	if !regexp.MustCompile(`^{"result":{"name":"[^"]+","results":\[{"exitCode":0,"output":"one\\n"},{"exitCode":3,"output":""}\]}}$`).MatchString(got) {
		t.Errorf("the result is %s", got)
	}
}

// Only the daemon may deliver messages.
func (a *app) testSecret(t *testing.T) {
	response, err := http.Post(a.url+"/.well-known/workflow/v1/flow", "application/json", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusUnauthorized || !strings.Contains(string(text), "only the daemon at "+a.daemon) {
		t.Errorf("a delivery of somebody else: %s %q, %v", response.Status, text, err)
	}
}
