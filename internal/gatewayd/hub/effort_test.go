package hub

import (
	"encoding/json"
	"errors"
	"testing"
)

func TestBudgetEffort(t *testing.T) {
	t.Parallel()
	for e, want := range map[Effort]int64{
		EffortNone: 0, EffortDefault: 0, "harder": 0, EffortMinimal: 200, EffortLow: 1000, EffortMedium: 3000, EffortHigh: 6000, EffortXHigh: 9000, EffortMax: 9500,
	} {
		if got := EffortBudget(e, 10000); got != want {
			t.Errorf("EffortBudget(%q, 10000) = %d, want %d", e, got, want)
		}
	}
	for budget, want := range map[int64]Effort{
		-1: EffortNone, 0: EffortNone, 1: EffortMinimal, 200: EffortMinimal, 201: EffortLow, 3000: EffortMedium, 9000: EffortXHigh, 9001: EffortMax, 20000: EffortMax,
	} {
		if got := BudgetEffort(budget, 10000); got != want {
			t.Errorf("BudgetEffort(%d, 10000) = %q, want %q", budget, got, want)
		}
	}
}

func TestFormat_AsTool(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		`{"type":"object","properties":{"z":{},"a":{}}}`: `{"type":"object","properties":{"z":{},"a":{}}}`,
		`{"anyOf":[{}]}`: `{"anyOf":[{}],"type":"object"}`,
		``:               `{"type":"object","additionalProperties":true}`,
	} {
		got, err := (&Format{Schema: json.RawMessage(schema)}).AsTool()
		if err != nil || got.Name != AnswerTool || string(got.InputSchema) != want {
			t.Errorf("AsTool of %s = %s, %v; want %s", schema, got.InputSchema, err, want)
		}
	}
	for _, schema := range []string{`{"type":"array"}`, `{"type":["object","null"]}`, `[]`, `true`} {
		_, err := (&Format{Schema: json.RawMessage(schema)}).AsTool()
		var e *Error
		if !errors.As(err, &e) || e.Kind != BadRequest || e.Param != "responseFormat.schema" {
			t.Errorf("AsTool of %s: %v, want an invalid request", schema, err)
		}
	}
}
