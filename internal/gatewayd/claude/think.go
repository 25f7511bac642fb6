package claude

import (
	"fmt"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// MinBudget is the minimum thinking budget in tokens.
const MinBudget = 1024

// Thinking is the member thinking of a request.
type Thinking struct {
	Type         string `json:"type"` // enabled, adaptive, disabled
	BudgetTokens int64  `json:"budget_tokens,omitempty"`
	Display      string `json:"display,omitempty"`
}

// Wish describes how a model should think.
type Wish struct {
	// Mode is the caller's choice in Anthropic's terms: enabled, adaptive, disabled, or
	// nothing.
	Mode   string
	Effort hub.Effort
	Budget int64 // tokens, 0 for none
	// MaxTokens is the output limit, including thinking.
	MaxTokens int64
	// NoBudget says that the provider refuses budgets although the model supports them.
	NoBudget bool
	Hide     bool // the text of the reasoning is not wanted
}

// None reports whether the Wish is empty.
func (w *Wish) None() bool { return w.Mode == "" && w.Effort == hub.EffortDefault && w.Budget == 0 }

// Off reports whether thinking is turned off.
func (w *Wish) Off() bool { return w.Mode == "disabled" || w.Mode == "" && w.Effort == hub.EffortNone }

// Think returns the thinking parameters: the member thinking, nil for none, and the
// effort, empty for none. Warnings describe deviations from the wish.
func (m Model) Think(w Wish) (*Thinking, string, []hub.Warning) {
	var warnings []hub.Warning
	otherwise := func(kind hub.WarningKind, format string, args ...any) {
		warnings = append(warnings, hub.Warning{Kind: kind, Feature: "reasoning", Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case w.None():
		return nil, "", nil
	case !m.Thinks:
		if !w.Off() {
			otherwise(hub.WarnUnsupported, "the model does not think")
		}
		return nil, "", warnings
	case w.Off() && m.AlwaysThinks:
		otherwise(hub.WarnCompatibility, "the model always thinks: it does so with low effort")
		return nil, string(hub.EffortLow), warnings
	case w.Off() && m.Free: // such a model does not think by default
		return nil, "", nil
	case w.Off():
		return &Thinking{Type: "disabled"}, "", nil
	}
	if m.Adaptive && (w.Budget == 0 || m.Free || w.NoBudget) {
		effort := w.Effort
		if w.Budget > 0 {
			effort = hub.BudgetEffort(w.Budget, w.MaxTokens)
			otherwise(hub.WarnCompatibility, "the model does not take a budget: %d tokens of %d became the effort %s", w.Budget, w.MaxTokens, effort)
		}
		known := m.effort(effort)
		if w.Budget == 0 && known != effort {
			otherwise(hub.WarnCompatibility, "the model has no effort %s: it is %s", effort, known)
		}
		t := &Thinking{Type: "adaptive"}
		if w.Hide {
			t.Display = "omitted"
		}
		return t, string(known), warnings
	}
	budget := w.Budget
	if budget == 0 {
		effort := w.Effort
		if effort == hub.EffortDefault || effort == hub.EffortNone {
			effort = hub.EffortHigh
			otherwise(hub.WarnCompatibility, "the model does not decide itself how long to think: it may do so for a budget")
		}
		budget = hub.EffortBudget(effort, w.MaxTokens)
	}
	if w.MaxTokens <= MinBudget {
		otherwise(hub.WarnUnsupported, "the answer may have %d tokens; to think takes more than %d", w.MaxTokens, MinBudget)
		return nil, "", warnings
	}
	within := min(max(budget, MinBudget), w.MaxTokens-1)
	if w.Budget > 0 && within != w.Budget {
		otherwise(hub.WarnCompatibility, "a budget is from %d tokens on and below maxOutputTokens: %d became %d", MinBudget, w.Budget, within)
	}
	return &Thinking{Type: "enabled", BudgetTokens: within}, "", warnings
}

// effort returns the nearest effort that the model supports.
func (m Model) effort(e hub.Effort) hub.Effort {
	switch {
	case e == hub.EffortMinimal:
		return hub.EffortLow
	case e == hub.EffortXHigh && !m.Free:
		return hub.EffortHigh
	case e == hub.EffortNone: // thinking was requested by mode or budget
		return hub.EffortDefault
	}
	return e
}
