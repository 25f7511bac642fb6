package messages

import (
	"github.com/cayhq/cay/internal/gatewayd/claude"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// thinks reports whether the request enables thinking.
func (w *callWriter) thinks() bool { return w.out.Thinking != nil && w.out.Thinking.Type != "disabled" }

// wish returns how the model should think. Anthropic's options thinking and effort apply
// where the call itself sets nothing, and for settings that a Call cannot express.
func (w *callWriter) wish() claude.Wish {
	c := w.call
	var own struct {
		Type         string `json:"type"`
		BudgetTokens int64  `json:"budgetTokens"`
	}
	if !c.Options.Get(self, "thinking", &own) {
		own.Type = ""
	}
	wish := claude.Wish{
		Mode: own.Type, Effort: c.Effort, Budget: hub.Count(c.ThinkingBudget),
		MaxTokens: w.out.MaxTokens, NoBudget: noBudget(w.model, w.target), Hide: c.HideReasoning,
	}
	if wish.Effort == hub.EffortDefault {
		wish.Effort = hub.Effort(c.Options.String(self, "effort"))
	}
	if own.Type == "enabled" && wish.Budget == 0 {
		wish.Budget = own.BudgetTokens
	}
	return wish
}

// thinking sets the thinking parameters.
func (w *callWriter) thinking() {
	wish := w.wish()
	if !wish.None() && !wish.Off() && w.model.Thinks {
		switch {
		case w.answersByTool():
			w.unsupported("reasoning", "the model cannot think while it is made to answer by a tool, which the response format needs")
			return
		case w.loopWithoutThought() && !w.model.Adaptive:
			w.unsupported("reasoning", "the turn has tool calls whose thoughts are not signed by Anthropic, so that the model cannot think on")
			return
		}
	}
	thinking, effort, warnings := w.model.Think(wish)
	w.out.Thinking = thinking
	if effort != "" {
		w.config().Effort = effort
	}
	w.warnings = append(w.warnings, warnings...)
}

// loopWithoutThought reports whether the conversation ends with results of tool calls
// that came without reasoning signed by Anthropic. Anthropic refuses a thinking budget in
// such a turn.
func (w *callWriter) loopWithoutThought() bool {
	m := w.out.Messages
	if len(m) < 2 || m[len(m)-1].Role != "user" || m[len(m)-1].Content[0].Type != "tool_result" {
		return false
	}
	last := m[len(m)-2]
	return last.Role == "assistant" && last.Content[0].Type != "thinking" && last.Content[0].Type != "redacted_thinking"
}
