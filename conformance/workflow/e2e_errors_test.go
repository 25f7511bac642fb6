package workflow

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
)

// stack checks the names in a stack.
func stack(t *testing.T, stack string, names ...string) {
	t.Helper()
	for _, name := range names {
		if !strings.Contains(stack, name) {
			t.Errorf("the stack has no %s: %s", name, stack)
		}
	}
	if strings.Contains(stack, "evalmachine") {
		t.Errorf("the stack names the machine: %s", stack)
	}
}

func (a *e2e) testNested(t *testing.T) {
	run := a.run(t, "nested")
	o := a.fails(t, run, "from deep within")
	stack(t, o.Cause.Stack, "innermost", "inner", "nested")
	if o.Cause.Code != "USER_ERROR" {
		t.Errorf("the code is %q", o.Cause.Code)
	}
	a.status(t, run, "failed")
}

func (a *e2e) testCrossFile(t *testing.T) {
	run := a.run(t, "crossFile")
	stack(t, a.fails(t, run, "thrown by another module").Cause.Stack, "throwHere", "throwThere", "crossFile")
	a.status(t, run, "failed")
}

// caught is an error that a workflow has caught.
type caught struct {
	Message, Stack string
	Fatal          bool
}

func (a *e2e) caught(t *testing.T, run string) caught {
	t.Helper()
	var c caught
	if err := json.Unmarshal(a.outcome(t, run).Result, &c); err != nil {
		t.Fatal(err)
	}
	a.status(t, run, "completed")
	return c
}

func (a *e2e) testStepError(t *testing.T) {
	run := a.run(t, "stepError")
	c := a.caught(t, run)
	s := a.step(t, run, "throwsOnce")
	for _, e := range []caught{c, {Message: s.Error.Message, Stack: s.Error.Stack}} {
		if !strings.Contains(e.Message, "thrown by the step") {
			t.Errorf("the message is %q", e.Message)
		}
		stack(t, e.Stack, "throwsOnce")
	}
	if s.Status != "failed" || s.Attempt != 1 {
		t.Errorf("the step is %+v", s)
	}
}

func (a *e2e) testStepErrorCrossFile(t *testing.T) {
	run := a.run(t, "stepErrorCrossFile")
	c := a.caught(t, run)
	s := a.step(t, run, "stepThatThrows")
	for _, e := range []caught{c, {Message: s.Error.Message, Stack: s.Error.Stack}} {
		if !strings.Contains(e.Message, "thrown by another module") {
			t.Errorf("the message is %q", e.Message)
		}
		stack(t, e.Stack, "throwHere", "throwThere")
	}
	if s.Status != "failed" {
		t.Errorf("the step is %+v", s)
	}
}

func (a *e2e) testRetried(t *testing.T) {
	run := a.run(t, "retried")
	a.wants(t, run, "3")
	if s := a.step(t, run, "thirdTime"); s.Status != "completed" || s.Attempt != 3 {
		t.Errorf("the step is %+v", s)
	}
}

func (a *e2e) testFatal(t *testing.T) {
	run := a.run(t, "fatalError")
	if o := a.fails(t, run, "never again"); o.Cause.Code != "USER_ERROR" {
		t.Errorf("the code is %q", o.Cause.Code)
	}
	if s := a.step(t, run, "fatal"); s.Status != "failed" || s.Attempt != 1 {
		t.Errorf("the step is %+v", s)
	}
}

func (a *e2e) testRetriedLater(t *testing.T) {
	var got struct{ Attempt, Waited int }
	if err := json.Unmarshal(a.outcome(t, a.run(t, "retriedLater", "2s")).Result, &got); err != nil {
		t.Fatal(err)
	}
	if got.Attempt != 2 || got.Waited < 2000 {
		t.Errorf("the second attempt is %+v", got)
	}
}

func (a *e2e) testNotRetried(t *testing.T) {
	run := a.run(t, "notRetried")
	if c := a.caught(t, run); !strings.Contains(c.Message, "attempt 1 is the only one") {
		t.Errorf("the message is %q", c.Message)
	}
	if s := a.step(t, run, "withoutRetries"); s.Status != "failed" || s.Attempt != 1 {
		t.Errorf("the step is %+v", s)
	}
}

func (a *e2e) testFatalCaught(t *testing.T) {
	if c := a.caught(t, a.run(t, "fatalCaught")); !c.Fatal || !strings.Contains(c.Message, "never again") {
		t.Errorf("it catches %+v", c)
	}
}

// A daemon that fails while a step's outcome is recorded costs no attempt of the step.
func (a *e2e) testServerErrors(t *testing.T) {
	token := token(t)
	run := a.run(t, "signaled", token, 21)
	a.waitFor(t, run, `"waits"`)
	fault := a.faults.arm(2, run, "step_completed")
	a.resume(t, token, nil)
	a.wants(t, run, `{"twice":42,"attempt":1}`)
	if n := a.faults.disarm(fault); n != 2 {
		t.Errorf("%d requests failed, want 2", n)
	}
	if s := a.step(t, run, "ends"); s.Attempt != 1 || s.Status != "completed" {
		t.Errorf("the step is %+v", s)
	}
}

// A run whose first event could not be recorded begins by its message.
func (a *e2e) testResilientStart(t *testing.T) {
	const marker = "the run without a first event"
	fault := a.faults.arm(1000, "run_created", marker)
	run := a.run(t, "metadataOfHelper", marker)
	if n := a.faults.disarm(fault); n == 0 {
		t.Error("no request failed")
	}
	if got := a.result(t, run); !strings.Contains(got, marker) {
		t.Errorf("the result is %s", got)
	}
}

func (a *e2e) testUnknownWorkflow(t *testing.T) {
	run := a.run(t, url.PathEscape("workflow//./workflows/sums//notThere"))
	if o := a.fails(t, run, "is not registered"); o.Cause.Code != "RUNTIME_ERROR" {
		t.Errorf("the code is %q", o.Cause.Code)
	}
	a.status(t, run, "failed")
}

func (a *e2e) testUnknownStepCaught(t *testing.T) {
	run := a.run(t, "unknownCaught")
	if c := a.caught(t, run); !strings.Contains(c.Message, "is not registered") {
		t.Errorf("it catches %+v", c)
	}
	if s := a.step(t, run, "notThere"); s.Status != "failed" {
		t.Errorf("the step is %+v", s)
	}
}

func (a *e2e) testUnknownStep(t *testing.T) {
	a.fails(t, a.run(t, "unknownUncaught"), "is not registered")
}
