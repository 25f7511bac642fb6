package claude

import (
	"reflect"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func TestModel_Think(t *testing.T) {
	t.Parallel()
	old, middle, free, newest := Of("claude-opus-4-1"), Of("claude-opus-4-6"), Of("claude-opus-4-7"), Of("claude-fable-5")
	for _, c := range []struct {
		name     string
		model    Model
		wish     Wish
		want     *Thinking
		effort   string
		warnings int
	}{
		{"nothing", old, Wish{MaxTokens: 8000}, nil, "", 0},
		{"effort as budget", old, Wish{Effort: hub.EffortMedium, MaxTokens: 10000}, &Thinking{Type: "enabled", BudgetTokens: 3000}, "", 0},
		{"at least 1024", old, Wish{Effort: hub.EffortLow, MaxTokens: 8000}, &Thinking{Type: "enabled", BudgetTokens: 1024}, "", 0},
		{"budget", old, Wish{Budget: 2000, MaxTokens: 8000}, &Thinking{Type: "enabled", BudgetTokens: 2000}, "", 0},
		{"budget below the least", old, Wish{Budget: 10, MaxTokens: 8000}, &Thinking{Type: "enabled", BudgetTokens: 1024}, "", 1},
		{"budget above all", old, Wish{Budget: 9000, MaxTokens: 8000}, &Thinking{Type: "enabled", BudgetTokens: 7999}, "", 1},
		{"no room", old, Wish{Effort: hub.EffortHigh, MaxTokens: 1024}, nil, "", 1},
		{"adaptive is not known", old, Wish{Mode: "adaptive", MaxTokens: 10000}, &Thinking{Type: "enabled", BudgetTokens: 6000}, "", 1},
		{"off", old, Wish{Effort: hub.EffortNone, MaxTokens: 8000}, &Thinking{Type: "disabled"}, "", 0},
		{"adaptive", middle, Wish{Effort: hub.EffortHigh, MaxTokens: 8000}, &Thinking{Type: "adaptive"}, "high", 0},
		{"adaptive of itself", middle, Wish{Mode: "adaptive", MaxTokens: 8000}, &Thinking{Type: "adaptive"}, "", 0},
		{"a budget is still taken", middle, Wish{Mode: "enabled", Budget: 2000, MaxTokens: 8000}, &Thinking{Type: "enabled", BudgetTokens: 2000}, "", 0},
		{"or not by the provider", middle, Wish{Budget: 2000, MaxTokens: 8000, NoBudget: true}, &Thinking{Type: "adaptive"}, "medium", 1},
		{"no xhigh", middle, Wish{Effort: hub.EffortXHigh, MaxTokens: 8000}, &Thinking{Type: "adaptive"}, "high", 1},
		{"xhigh", free, Wish{Effort: hub.EffortXHigh, MaxTokens: 8000, Hide: true}, &Thinking{Type: "adaptive", Display: "omitted"}, "xhigh", 0},
		{"minimal", free, Wish{Effort: hub.EffortMinimal, MaxTokens: 8000}, &Thinking{Type: "adaptive"}, "low", 1},
		{"budgets are refused", free, Wish{Budget: 7600, MaxTokens: 8000}, &Thinking{Type: "adaptive"}, "max", 1},
		{"off by saying nothing", free, Wish{Mode: "disabled", MaxTokens: 8000}, nil, "", 0},
		{"cannot be off", newest, Wish{Effort: hub.EffortNone, MaxTokens: 8000}, nil, "low", 1},
		{"does not think", Of("claude-3-opus-20240229"), Wish{Effort: hub.EffortHigh, MaxTokens: 8000}, nil, "", 1},
		{"need not think", Of("claude-3-opus-20240229"), Wish{Effort: hub.EffortNone, MaxTokens: 8000}, nil, "", 0},
	} {
		got, effort, warnings := c.model.Think(c.wish)
		if !reflect.DeepEqual(got, c.want) || effort != c.effort || len(warnings) != c.warnings {
			t.Errorf("%s: %+v, %q, %v; want %+v, %q and %d warnings", c.name, got, effort, warnings, c.want, c.effort, c.warnings)
		}
	}
}
