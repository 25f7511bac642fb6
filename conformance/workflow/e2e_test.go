package workflow

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testenv"
)

// TestE2E checks what the SDK's end-to-end suite checks, whose names the tests have: on Hono and
// on Next.js, over the SDK's client of the hosted service, and on Hono over @cayhq/world.
func TestE2E(t *testing.T) {
	need(t, lines...)
	d := testenv.Start(t)
	for _, line := range lines {
		t.Run(line, func(t *testing.T) {
			t.Run("hono", func(t *testing.T) {
				a := buildE2E(t, d, line, "hono")
				a.begin(t)
				a.test(t)
				a.kill()
				a.world = true
				installWorld(t, filepath.Dir(a.dir), d.URL)
				t.Run("cayhq-world", func(t *testing.T) {
					a.begin(t)
					a.test(t)
				})
			})
			t.Run("next", func(t *testing.T) {
				a := buildE2E(t, d, line, "next")
				a.begin(t)
				a.test(t)
			})
		})
	}
}

func (a *e2e) test(t *testing.T) {
	t.Run("together", func(t *testing.T) {
		for _, tt := range results {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				a.wants(t, a.run(t, tt.workflow, tt.args...), tt.want)
			})
		}
		for _, tt := range checks {
			if tt.name == "attributes" && a.line == "v4" {
				continue // the line has none
			}
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				tt.check(a, t)
			})
		}
		if a.server == "next" {
			t.Run("pages router", a.testPagesRouter)
		}
	})
	t.Run("restart recovery", a.testRestart)
}

// results are tests of a run's result alone.
var results = []struct {
	name, workflow string
	args           []any
	want           string
}{
	{"addTenWorkflow of a second module", "again:addTen", []any{123}, `134.5`},
	{"wellKnownAgentWorkflow", "wellKnown", []any{5}, `11`},
	{"react rendering in step", "page", []any{[]string{"a", "b"}}, `"<ul><li>a</li><li>b</li></ul>"`},
	{"promiseAllWorkflow", "all", nil, `"abc"`},
	{"promiseRaceWorkflow", "race", nil, `"fast"`},
	{"promiseAnyWorkflow", "any", nil, `"works"`},
	{"sleepingRaceWorkflow", "deadline", nil, `["the sleep","the step"]`},
	{"importedStepOnlyWorkflow", "importedStep", nil, `"a step of another module"`},
	{"nullByteWorkflow", "nullByte", nil, `"before\u0000after"`},
	{"all types of values", "kinds", nil, `[]`},
	{"stepFunctionPassingWorkflow", "passed", []any{10}, `{"applied":20}`},
	{"stepFunctionWithClosureWorkflow", "passedWithClosure", []any{7}, `{"applied":"35 kg"}`},
	{"closureVariableWorkflow", "closure", []any{7}, `"21 m"`},
	{"pathsAliasWorkflow", "alias", nil, `"by an alias"`},
	{"Calculator.calculate", "Area.ofFrame", []any{5, 3}, `16`},
	{"AllInOneService.processNumber", "Both.halfAndSquare", []any{10}, `105`},
	{"ChainableService.processWithThis", "Rated.prices", []any{5}, `{"one":4,"all":20}`},
	{"thisSerializationWorkflow", "withThis", []any{10}, `140`},
	{"customSerializationWorkflow", "custom", []any{3, 4}, `{"large":48,"larger":[12,16],"total":252}`},
	{"crossContextSerdeWorkflow", "vectors", nil, `{"a":[1,2],"sum":[31,42],"again":[62,84]}`},
	{"custom error class", "customError", nil, `{"is":true,"item":"a screw","left":0,"message":"a screw is out of stock"}`},
	{"stepFunctionAsStartArgWorkflow", "given", []any{map[string]any{"step": "sums:add"}, 3, 5}, `{"own":8,"byStep":8,"again":16}`},
	{"sleepWithSequentialStepsWorkflow", "besideSleep", nil, `{"sums":[1,3,6],"woken":false}`},
	{"stream from step to step", "between", []any{5}, `35`},
}

// checks are tests that do more than to start a run and to wait for its result.
var checks = []struct {
	name  string
	check func(*e2e, *testing.T)
}{
	{"addTenWorkflow", (*e2e).testAddTen},
	{"readableStreamWorkflow", (*e2e).testReadable},
	{"hookWorkflow", (*e2e).testHooks},
	{"hookWorkflow is not resumable via the webhook endpoint", (*e2e).testHookIsNoWebhook},
	{"webhookWorkflow", (*e2e).testWebhooks},
	{"webhook route with invalid token", (*e2e).testWebhookUnknown},
	{"sleepingWorkflow", (*e2e).testSleeping},
	{"parallelSleepWorkflow", (*e2e).testSleepingTogether},
	{"sleepInLoopWorkflow", (*e2e).testSleepingInLoop},
	{"workflowAndStepMetadataWorkflow", (*e2e).testMetadata},
	{"metadataFromHelperWorkflow", (*e2e).testMetadataOfHelper},
	{"outputStreamWorkflow", (*e2e).testOutput},
	{"outputStreamInsideStepWorkflow", (*e2e).testOutputOfSteps},
	{"writableForwardedFromWorkflowWorkflow", (*e2e).testForwardedByWorkflow},
	{"writableForwardedFromStepWorkflow", (*e2e).testForwardedByStep},
	{"stream read by another run", (*e2e).testReadsFrom},
	{"fetchWorkflow", (*e2e).testFetch},
	{"promiseRaceStressTestWorkflow", (*e2e).testPool},
	{"importMetaUrlWorkflow", (*e2e).testImportMeta},
	{"errorWorkflowNested", (*e2e).testNested},
	{"errorWorkflowCrossFile", (*e2e).testCrossFile},
	{"errorStepBasic", (*e2e).testStepError},
	{"errorStepCrossFile", (*e2e).testStepErrorCrossFile},
	{"errorRetrySuccess", (*e2e).testRetried},
	{"errorRetryFatal", (*e2e).testFatal},
	{"errorRetryCustomDelay", (*e2e).testRetriedLater},
	{"errorRetryDisabled", (*e2e).testNotRetried},
	{"errorFatalCatchable", (*e2e).testFatalCaught},
	{"serverError5xxRetryWorkflow", (*e2e).testServerErrors},
	{"resilient start", (*e2e).testResilientStart},
	{"WorkflowNotRegisteredError", (*e2e).testUnknownWorkflow},
	{"StepNotRegisteredError caught", (*e2e).testUnknownStepCaught},
	{"StepNotRegisteredError uncaught", (*e2e).testUnknownStep},
	{"stepDirectCallWorkflow", (*e2e).testDirectCall},
	{"hookCleanupTestWorkflow", (*e2e).testTokenAgain},
	{"concurrent hook token conflict", (*e2e).testTokenConflict},
	{"hookDisposeTestWorkflow", (*e2e).testTokenReleased},
	{"hookWithSleepWorkflow", (*e2e).testHookAsleep},
	{"spawnWorkflowFromStepWorkflow", (*e2e).testParent},
	{"instanceMethodStepWorkflow", (*e2e).testMethods},
	{"health check (HTTP)", (*e2e).testHealthHTTP},
	{"health check (queue-based)", (*e2e).testHealthQueue},
	{"health check (CLI)", (*e2e).testHealthCommand},
	{"cancelRun", (*e2e).testCancelRun},
	{"cancelRun via CLI", (*e2e).testCancelCommand},
	{"event ids", (*e2e).testEventIDs},
	{"lists of runs", (*e2e).testLists},
	{"attributes", (*e2e).testAttributes},
	{"data of runs", (*e2e).testData},
	{"security of the flow route", (*e2e).testFlowRoute},
}

// token returns a token of a hook that no other test has.
func token(t *testing.T) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(" /()#,", r) {
			return '-'
		}
		return r
	}, t.Name())
}

// The World has the input and the output, and the name of the workflow says where it is.
func (a *e2e) testAddTen(t *testing.T) {
	run := a.run(t, "sums:addTen", 123)
	a.wants(t, run, "133")
	var data struct {
		RunID, WorkflowName, Status string
		Input                       []int
		Output                      int
	}
	for _, from := range []string{"the World", "the command line"} {
		if from == "the World" {
			a.read(t, &data, "/runs/%s/data", run)
		} else if err := json.Unmarshal(a.command(t, "inspect", "runs", run, "--withData", "--json"), &data); err != nil {
			t.Fatal(err)
		}
		if data.RunID != run || data.Status != "completed" || !slices.Equal(data.Input, []int{123}) || data.Output != 133 {
			t.Errorf("%s has %+v", from, data)
		}
		if !strings.HasPrefix(data.WorkflowName, "workflow//./") || !strings.HasSuffix(data.WorkflowName, "workflows/sums//addTen") {
			t.Errorf("in %s the workflow is %s", from, data.WorkflowName)
		}
	}
}

func (a *e2e) testReadable(t *testing.T) {
	run := a.run(t, "readable", 10)
	var want strings.Builder
	for i := range 10 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	var got strings.Builder
	for line := range strings.Lines(a.lines(t, "/runs/%s/result-stream", run)) {
		var chunk struct{ Bytes string }
		if err := json.Unmarshal([]byte(line), &chunk); err != nil {
			t.Fatal(err)
		}
		got.WriteString(chunk.Bytes)
	}
	if got.String() != want.String() {
		t.Errorf("the result is %q, want %q", got.String(), want.String())
	}
}

// A hook has metadata, and takes payloads in their order.
func (a *e2e) testHooks(t *testing.T) {
	token := token(t)
	run := a.run(t, "collect", token, "a secret")
	a.waitFor(t, run, `"waits"`)
	var hook struct {
		RunID    string
		Metadata struct{ Secret string }
	}
	a.read(t, &hook, "/hooks/%s", token)
	if hook.RunID != run || hook.Metadata.Secret != "a secret" {
		t.Errorf("the hook is %+v", hook)
	}
	if status, text := a.ask(t, http.MethodGet, "/hooks/not-there", ""); status != http.StatusInternalServerError || !strings.Contains(strings.ToLower(text), "not found") {
		t.Errorf("an unknown token: %d %s", status, text)
	}
	for i, last := range []bool{false, false, true} {
		payload := map[string]any{"value": i}
		if last {
			payload["last"] = true
		}
		if resumed := a.resume(t, token, payload); resumed != run {
			t.Errorf("payload %d resumes %s, want %s", i, resumed, run)
		}
	}
	a.wants(t, run, `[{"value":0},{"value":1},{"last":true,"value":2}]`)
}

func (a *e2e) testHookIsNoWebhook(t *testing.T) {
	token := token(t)
	run := a.run(t, "collect", token, "")
	a.waitFor(t, run, `"waits"`)
	if status, text := a.ask(t, http.MethodPost, "/.well-known/workflow/v1/webhook/"+token, `{"value":"intruder"}`); status != http.StatusNotFound {
		t.Errorf("the webhook's endpoint answers %d %s", status, text)
	}
	a.resume(t, token, map[string]any{"value": "allowed", "last": true})
	a.wants(t, run, `[{"last":true,"value":"allowed"}]`)
}

// Webhooks are answered by the SDK, by an answer made before, and by a step.
func (a *e2e) testWebhooks(t *testing.T) {
	run := a.run(t, "webhooks")
	var tokens []string
	body := a.stream(t, run, 0)
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&tokens); err != nil || len(tokens) != 3 {
		t.Fatalf("the tokens are %v: %v", tokens, err)
	}
	var listed []string
	a.read(t, &listed, "/runs/%s/hooks", run)
	if slices.Sort(listed); !slices.Equal(listed, slices.Sorted(slices.Values(tokens))) {
		t.Errorf("the World lists %v, want %v", listed, tokens)
	}
	var got []string
	for i, want := range []struct {
		status int
		text   string
	}{{http.StatusAccepted, ""}, {http.StatusPaymentRequired, "an answer made before"}, {http.StatusCreated, "you said call 2"}} {
		path := "/.well-known/workflow/v1/webhook/" + url.PathEscape(tokens[i])
		if status, text := a.ask(t, http.MethodPost, path, fmt.Sprintf("call %d", i)); status != want.status || text != want.text {
			t.Errorf("webhook %d answers %d %q, want %+v", i, status, text, want)
		}
		got = append(got, fmt.Sprintf(`{"method":"POST","path":%q,"text":"call %d"}`, path, i))
	}
	a.wants(t, run, "["+strings.Join(got, ",")+"]")
}

func (a *e2e) testWebhookUnknown(t *testing.T) {
	if status, text := a.ask(t, http.MethodPost, "/.well-known/workflow/v1/webhook/not-there", "{}"); status != http.StatusNotFound || text != "" {
		t.Errorf("an unknown webhook answers %d %q", status, text)
	}
}

// slept checks that a run took a time between two of its times, and between its events.
func (a *e2e) slept(t *testing.T, run string, atLeast, below time.Duration) {
	t.Helper()
	var got struct{ From, Until int64 }
	if err := json.Unmarshal(a.outcome(t, run).Result, &got); err != nil {
		t.Fatal(err)
	}
	_, first := a.events(t, run)
	inside, outside := time.Duration(got.Until-got.From)*time.Millisecond, first["wait_completed"].CreatedAt.Sub(first["run_started"].CreatedAt)
	if inside <= 0 || outside < atLeast || outside > below {
		t.Errorf("run %s slept for %v, by its events for %v; want %v to %v", run, inside, outside, atLeast, below)
	}
}

func (a *e2e) testSleeping(t *testing.T) {
	a.slept(t, a.run(t, "sleeping", 2000), 2*time.Second, patience)
}

func (a *e2e) testSleepingTogether(t *testing.T) {
	const n = 20
	a.slept(t, a.run(t, "sleepingTogether", n), time.Second, n*time.Second)
}

func (a *e2e) testSleepingInLoop(t *testing.T) {
	var at []int64
	if err := json.Unmarshal(a.outcome(t, a.run(t, "sleepingInLoop", 3, 700)).Result, &at); err != nil {
		t.Fatal(err)
	}
	if len(at) != 3 || at[1]-at[0] < 700 || at[2]-at[1] < 700 {
		t.Errorf("the turns begin at %v", at)
	}
}

// A workflow and its steps know the same of the run; only steps know of the step.
func (a *e2e) testMetadata(t *testing.T) {
	run := a.run(t, "metadata")
	var got struct{ Outside, Inside, Step map[string]any }
	if err := json.Unmarshal(a.outcome(t, run).Result, &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"workflowName", "workflowRunId", "workflowStartedAt", "url"} {
		if text, ok := got.Outside[key].(string); !ok || text == "" || got.Inside[key] != text || got.Step[key] != nil {
			t.Errorf("%s is %v, for a step %v and %v", key, got.Outside[key], got.Inside[key], got.Step[key])
		}
	}
	if got.Outside["workflowRunId"] != run || got.Step["attempt"] != 1.0 || got.Step["stepStartedAt"] == nil {
		t.Errorf("the metadata of %s is %v", run, got)
	}
	if name, ok := got.Step["stepName"].(string); !ok || !strings.HasSuffix(name, "//here") {
		t.Errorf("the step is %v", got.Step["stepName"])
	}
}

func (a *e2e) testMetadataOfHelper(t *testing.T) {
	run := a.run(t, "metadataOfHelper", "a label")
	var got struct {
		Label, Run, Step string
		Attempt          int
	}
	if err := json.Unmarshal(a.outcome(t, run).Result, &got); err != nil {
		t.Fatal(err)
	}
	if got.Label != "a label" || got.Run != run || !strings.HasPrefix(got.Step, "step_") || got.Attempt != 1 {
		t.Errorf("the result of %s is %+v", run, got)
	}
}

// A run's streams can be read live, from an index on, from the end, and by pages.
func (a *e2e) testOutput(t *testing.T) {
	run := a.run(t, "output")
	own := []string{`{"bytes":"bytes of the run"}`, `{"of":"the run"}`}
	named := []string{`{"bytes":"bytes by name"}`, `{"by":"name"}`}
	for from, first := range map[string]int{"": 0, "&from=1": 1, "&from=-1": 1, "&from=-5": 0} {
		if from != "" {
			a.wants(t, run, `"written"`)
		}
		for query, want := range map[string][]string{"": own, "&namespace=named": named} {
			if got, want := a.lines(t, "/runs/%s/stream?%s%s", run, from, query), strings.Join(want[first:], "\n")+"\n"; got != want {
				t.Errorf("with %s%s the stream is %q, want %q", from, query, got, want)
			}
		}
	}
	for namespace, want := range map[string]int{"": 1, "?namespace=named": 1, "?namespace=not-there": -1} {
		var got int
		if a.read(t, &got, "/runs/%s/tail%s", run, namespace); got != want {
			t.Errorf("the last index of %q is %d, want %d", namespace, got, want)
		}
	}
	var pages struct {
		Sizes []int
		Done  bool
	}
	if a.read(t, &pages, "/runs/%s/chunks", run); !slices.Equal(pages.Sizes, []int{1, 1}) || !pages.Done {
		t.Errorf("its pages are %+v", pages)
	}
}

func (a *e2e) testOutputOfSteps(t *testing.T) {
	run := a.run(t, "outputOfSteps")
	if got, want := a.lines(t, "/runs/%s/stream", run), "{\"bytes\":\"first\"}\n{\"bytes\":\"second\"}\n"; got != want {
		t.Errorf("the stream is %q, want %q", got, want)
	}
	if got, want := a.lines(t, "/runs/%s/stream?namespace=of%%20steps", run), "{\"n\":1}\n{\"n\":2}\n"; got != want {
		t.Errorf("the named stream is %q, want %q", got, want)
	}
	a.wants(t, run, `"written"`)
}

func (a *e2e) testForwardedByWorkflow(t *testing.T) { a.forwarded(t, "forwardedByWorkflow") }
func (a *e2e) testForwardedByStep(t *testing.T)     { a.forwarded(t, "forwardedByStep") }

// forwarded checks that a child writes into its parent's stream.
func (a *e2e) forwarded(t *testing.T, workflow string) {
	run := a.run(t, workflow, "from the child \u00fc")
	if got, want := a.lines(t, "/runs/%s/stream", run), "{\"bytes\":\"from the child \u00fc\"}\n"; got != want {
		t.Errorf("the stream is %q, want %q", got, want)
	}
	var got struct{ Child string }
	if err := json.Unmarshal(a.outcome(t, run).Result, &got); err != nil {
		t.Fatal(err)
	}
	a.wants(t, got.Child, `"written"`)
}

func (a *e2e) testReadsFrom(t *testing.T) {
	a.wants(t, a.run(t, "readsFrom", a.run(t, "outputOfSteps")), `{"bytes":"first"}`)
}

func (a *e2e) testFetch(t *testing.T) {
	a.wants(t, a.run(t, "fetched", a.url+"/todos/7"), `{"status":200,"body":{"todo":7}}`)
}

func (a *e2e) testPool(t *testing.T) {
	var got []int
	if err := json.Unmarshal(a.outcome(t, a.run(t, "pool", []int{0, 200, 400, 600, 800})).Result, &got); err != nil {
		t.Fatal(err)
	}
	if slices.Sort(got); !slices.Equal(got, []int{0, 1, 2, 3, 4}) {
		t.Errorf("the steps that ended are %v", got)
	}
}

func (a *e2e) testImportMeta(t *testing.T) {
	if got := a.result(t, a.run(t, "importMeta")); !strings.HasPrefix(got, `{"result":"file://`) {
		t.Errorf("import.meta.url is %s", got)
	}
}

// The app calls a step as a function, and a workflow calls it as a step.
func (a *e2e) testDirectCall(t *testing.T) {
	if status, text := a.ask(t, http.MethodPost, "/subtract/now", "[5,3]"); status != http.StatusOK || text != "2" {
		t.Errorf("the call returns %d %s", status, text)
	}
	run := a.run(t, "subtracted", 5, 3)
	a.wants(t, run, "2")
	if s := a.step(t, run, "subtract"); s.Status != "completed" {
		t.Errorf("the step is %+v", s)
	}
}

// A token is free when the run that had it has ended.
func (a *e2e) testTokenAgain(t *testing.T) {
	token := token(t)
	for _, value := range []string{"one", "two"} {
		run := a.run(t, "once", token, "")
		a.waitFor(t, run, `"waits"`)
		if resumed := a.resume(t, token, map[string]any{"value": value}); resumed != run {
			t.Errorf("the token is of %s, want %s", resumed, run)
		}
		a.wants(t, run, `{"value":"`+value+`","of":"once"}`)
		a.status(t, run, "completed")
	}
}

// Two runs cannot have a token at once.
func (a *e2e) testTokenConflict(t *testing.T) {
	token := token(t)
	first := a.run(t, "once", token, "")
	a.waitFor(t, first, `"waits"`)
	second := a.run(t, "once", token, "")
	a.fails(t, second, "already in use by another workflow")
	a.status(t, second, "failed")
	if resumed := a.resume(t, token, map[string]any{"value": 1}); resumed != first {
		t.Errorf("the token is of %s, want %s", resumed, first)
	}
	a.wants(t, first, `{"value":1,"of":"once"}`)
}

// A run gives its token back while it goes on.
func (a *e2e) testTokenReleased(t *testing.T) {
	token := token(t)
	for i := range 2 {
		run := a.run(t, "release", token, fmt.Sprintf("%s-%d", token, i))
		a.waitFor(t, run, `"waits"`)
		a.resume(t, token, map[string]any{"value": i})
		a.waitFor(t, run, `"released"`)
		if status, text := a.ask(t, http.MethodGet, "/hooks/"+token, ""); status == http.StatusOK {
			t.Errorf("the released token is of %s", text)
		}
		a.status(t, run, "running")
		defer a.wants(t, run, fmt.Sprint(i))
	}
	for i := range 2 {
		a.resume(t, fmt.Sprintf("%s-%d", token, i), nil)
	}
}

// A hook takes payloads beside a sleep that does not end.
func (a *e2e) testHookAsleep(t *testing.T) {
	token := token(t)
	run := a.run(t, "collectAsleep", token)
	for i, after := range []string{`"waits"`, "0", "1"} {
		a.waitFor(t, run, after)
		a.resume(t, token, map[string]any{"value": i, "last": i == 2})
	}
	a.wants(t, run, `[{"done":0},{"done":1},{"done":2}]`)
	a.status(t, run, "completed")
}

func (a *e2e) testParent(t *testing.T) {
	run := a.run(t, "parent", 42)
	var got struct {
		Run    string
		Result json.RawMessage
	}
	if err := json.Unmarshal(a.outcome(t, run).Result, &got); err != nil {
		t.Fatal(err)
	}
	const want = `{"of":42,"result":84}`
	if string(got.Result) != want {
		t.Errorf("the child's result is %s", got.Result)
	}
	a.wants(t, got.Run, want)
	a.status(t, got.Run, "completed")
}

func (a *e2e) testMethods(t *testing.T) {
	run := a.run(t, "methods", 10)
	a.wants(t, run, `{"one":15,"report":{"label":"mine","balance":10},"other":1001}`)
	var steps []step
	a.read(t, &steps, "/runs/%s/steps", run)
	n := map[string]int{}
	for _, s := range steps {
		if s.Status == "completed" {
			n[s.StepName[strings.LastIndex(s.StepName, "//")+2:]]++
		}
	}
	if len(steps) != 3 || n["Account#after"] != 2 || n["Account#report"] != 1 {
		t.Errorf("its steps are %+v", steps)
	}
}

// endpoints are those by which a line takes deliveries.
func (a *e2e) endpoints() []string {
	if a.line == "v4" {
		return []string{"flow", "step"}
	}
	return []string{"flow"}
}

func (a *e2e) testHealthHTTP(t *testing.T) {
	for _, endpoint := range a.endpoints() {
		path := "/.well-known/workflow/v1/" + endpoint
		if status, _ := a.ask(t, http.MethodHead, path+"?__health", ""); status != http.StatusOK {
			t.Errorf("HEAD %s answers %d", path, status)
		}
		status, text := a.ask(t, http.MethodPost, path+"?__health", "")
		var got struct {
			Healthy             bool
			Endpoint            string
			SpecVersion         int
			WorkflowCoreVersion string
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil || status != http.StatusOK {
			t.Fatalf("%s answers %d %s: %v", path, status, text, err)
		}
		if !got.Healthy || got.Endpoint != path || got.SpecVersion < 2 || got.WorkflowCoreVersion == "" {
			t.Errorf("%s answers %s", path, text)
		}
	}
}

func (a *e2e) testHealthQueue(t *testing.T) {
	for _, endpoint := range []string{"workflow", "step"} {
		var got struct{ Healthy bool }
		if a.read(t, &got, "/health/%s", endpoint); !got.Healthy {
			t.Errorf("%s is not healthy", endpoint)
		}
	}
}

func (a *e2e) testHealthCommand(t *testing.T) {
	out := a.command(t, "health", "--json")
	var got struct {
		AllHealthy bool
		Results    []struct {
			Endpoint  string
			Healthy   bool
			LatencyMs float64
		}
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !got.AllHealthy || len(got.Results) != len(a.endpoints()) {
		t.Errorf("it says %s", out)
	}
	for _, r := range got.Results {
		if !r.Healthy || r.LatencyMs <= 0 {
			t.Errorf("it says %+v", r)
		}
	}
}

// canceled checks that a run which sleeps is canceled.
func (a *e2e) canceled(t *testing.T, cancel func(run string)) {
	run := a.run(t, "sleeping", 3_600_000)
	a.waitFor(t, run, `"sleeps"`)
	cancel(run)
	if o := a.outcome(t, run); o.Status != "cancelled" || o.Error != "WorkflowRunCancelledError" {
		t.Errorf("the outcome of %s is %+v", run, o)
	}
	a.status(t, run, "cancelled")
}

func (a *e2e) testCancelRun(t *testing.T) {
	a.canceled(t, func(run string) {
		var done any
		a.call(t, http.MethodPost, "/runs/"+run+"/cancel", nil, &done)
	})
}

func (a *e2e) testCancelCommand(t *testing.T) {
	a.canceled(t, func(run string) { a.command(t, "cancel", run) })
}

// The events of a run have their order, and ids that name it.
func (a *e2e) testEventIDs(t *testing.T) {
	run := a.run(t, "sums:addTen", 1)
	a.wants(t, run, "11")
	events, _ := a.events(t, run)
	ids := make([]string, len(events))
	for i, e := range events {
		ids[i] = e.EventID
		if i > 0 && e.CreatedAt.Before(events[i-1].CreatedAt) {
			t.Errorf("event %d was created before event %d", i, i-1)
		}
	}
	if !slices.IsSorted(ids) || len(slices.Compact(ids)) != len(events) {
		t.Errorf("the ids of the events are %v", ids)
	}
	if first, last := events[0].EventType, events[len(events)-1].EventType; first != "run_created" || last != "run_completed" {
		t.Errorf("the events begin with %s, and end with %s", first, last)
	}
}

// Lists of a workflow's runs have each run once, whatever the size of a page.
func (a *e2e) testLists(t *testing.T) {
	var before, after []string
	a.read(t, &before, "/list/listed")
	var completed, failed []string
	for i := range 7 {
		run := a.run(t, "listed", i%2 == 1)
		if o := a.outcome(t, run); i%2 == 1 {
			failed = append(failed, run)
		} else if completed = append(completed, run); o.Error != "" {
			t.Errorf("the outcome of %s is %+v", run, o)
		}
	}
	a.read(t, &after, "/list/listed")
	if len(after) != len(before)+7 || !slices.Equal(slices.Sorted(slices.Values(after[len(before):])), slices.Sorted(slices.Values(append(completed, failed...)))) {
		t.Errorf("after %v the list is %v, want also %v and %v", before, after, completed, failed)
	}
	for status, want := range map[string][]string{"completed": completed, "failed": failed, "running": nil} {
		var got []string
		a.read(t, &got, "/list/listed?status=%s", status)
		if got = slices.DeleteFunc(got, func(run string) bool { return slices.Contains(before, run) }); !slices.Equal(got, want) {
			t.Errorf("%s are %v, want %v", status, got, want)
		}
	}
}

func (a *e2e) testAttributes(t *testing.T) {
	run := a.run(t, "attributes")
	if o := a.outcome(t, run); o.Error != "" {
		t.Errorf("the outcome is %+v", o)
	}
	var data struct{ Attributes map[string]string }
	a.read(t, &data, "/runs/%s/data", run)
	if want := map[string]string{"phase": "two", "step": "has run", "last": "ü"}; !maps.Equal(data.Attributes, want) {
		t.Errorf("the attributes are %v, want %v", data.Attributes, want)
	}
}

// A run's data come when they are asked for.
func (a *e2e) testData(t *testing.T) {
	run := a.run(t, "sums:addTen", 1)
	a.wants(t, run, "11")
	var bare map[string]any
	if a.read(t, &bare, "/runs/%s/bare", run); bare["status"] != "completed" || bare["input"] != nil || bare["output"] != nil {
		t.Errorf("without data the run is %v", bare)
	}
	if status, text := a.ask(t, http.MethodGet, "/runs/wrun_01ARZ3NDEKTSV4RRFFQ69G5FAV/data", ""); status != http.StatusInternalServerError || !strings.Contains(text, "RunNotFound") {
		t.Errorf("a run that is not there: %d %s", status, text)
	}
}

// Only the daemon, or the app's own World, delivers messages.
func (a *e2e) testFlowRoute(t *testing.T) {
	for _, endpoint := range a.endpoints() {
		if status, text := a.ask(t, http.MethodPost, "/.well-known/workflow/v1/"+endpoint, "{}"); status != http.StatusUnauthorized {
			t.Errorf("%s answers %d %s", endpoint, status, text)
		}
	}
}

// Routes of the pages router start workflows.
func (a *e2e) testPagesRouter(t *testing.T) {
	start := func(t *testing.T, workflow string, args ...any) string {
		var run struct{ RunID string }
		if args == nil {
			args = []any{}
		}
		a.call(t, http.MethodPost, "/api/"+workflow, args, &run)
		return run.RunID
	}
	t.Run("addTenWorkflow", func(t *testing.T) { a.wants(t, start(t, "addTen", 123), "133") })
	t.Run("promiseAllWorkflow", func(t *testing.T) { a.wants(t, start(t, "all"), `"abc"`) })
	t.Run("sleepingWorkflow", func(t *testing.T) { a.slept(t, start(t, "sleeping", 1500), 1500*time.Millisecond, patience) })
}

// A killed app goes on with its runs when it is started again, without a request. A second process
// repeats no step on which the first one works, and leaves the runs to that one when it is killed.
func (a *e2e) testRestart(t *testing.T) {
	const sleep = 15 * time.Second
	asleep := a.run(t, "sleeping", sleep.Milliseconds())
	a.waitFor(t, asleep, `"sleeps"`)
	cutOff := a.run(t, "long", "cut off")
	a.waitFor(t, cutOff, `"begins 1"`)
	a.kill()
	a.begin(t)
	t.Run("killed in the middle of a step", func(t *testing.T) {
		a.release(t, "cut off")
		var attempt int
		if o := a.outcome(t, cutOff); json.Unmarshal(o.Result, &attempt) != nil || attempt < 2 {
			t.Errorf("the outcome of %s is %+v", cutOff, o)
		}
	})
	t.Run("second process", func(t *testing.T) {
		run := a.run(t, "long", "shared")
		a.waitFor(t, run, `"begins 1"`)
		second := &e2e{app: &app{daemon: a.daemon, token: a.token, dir: a.dir}, world: a.world}
		second.begin(t)
		second.wants(t, second.run(t, "sums:addTen", 1), "11")
		a.release(t, "shared")
		a.wants(t, run, "1")
		if got := a.lines(t, "/runs/%s/stream", run); got != "\"begins 1\"\n" {
			t.Errorf("the step's body writes %q", got)
		}
	})
	t.Run("second process has ended", func(t *testing.T) { a.wants(t, a.run(t, "sums:addTen", 1), "11") })
	t.Run("asleep", func(t *testing.T) { a.slept(t, asleep, sleep, patience) })
}

// release ends the steps of the workflow long that a process has, or gets, for a token.
func (a *e2e) release(t *testing.T, token string) {
	t.Helper()
	var done any
	a.call(t, http.MethodPost, "/release/"+url.PathEscape(token), nil, &done)
}
