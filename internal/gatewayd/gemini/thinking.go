package gemini

import (
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// budgets returns the smallest and largest thinking budget in tokens of 2.5 models, and
// whether thinking can be turned off, according to Google's documentation.
func budgets(model string) (least, most int64, off bool) {
	switch {
	case strings.Contains(model, "flash-lite"):
		return 512, 24576, true
	case strings.Contains(model, "flash"):
		return 1, 24576, true
	}
	return 128, 32768, false
}

// thinking writes thinkingConfig: a level for models from version 3 on, a budget for
// those before. Thoughts are requested if the caller asks for thinking.
func (w *callWriter) thinking() {
	c, v := w.call, version(w.target.Model)
	if c.Effort == "" && c.ThinkingBudget == nil {
		return
	}
	level := w.target.Is(QuirkThinkingLevel) || v >= 3 && !w.target.Is(QuirkThinkingBudget)
	if !level && v < 2.5 && !w.target.Is(QuirkThinkingBudget) {
		w.unsupported("reasoning", "the model does not think")
		return
	}
	config := object{"includeThoughts": !c.HideReasoning}
	switch {
	case c.ThinkingBudget != nil:
		config["thinkingBudget"] = w.budget(*c.ThinkingBudget)
	case level:
		config["thinkingLevel"] = w.level()
	default:
		_, most, _ := budgets(w.target.Model)
		limit := most
		if w.target.MaxOutput > 0 {
			limit = min(limit, w.target.MaxOutput)
		}
		config["thinkingBudget"] = w.budget(hub.EffortBudget(c.Effort, limit))
	}
	if config["thinkingBudget"] == int64(0) {
		config["includeThoughts"] = false
	}
	w.set("thinkingConfig", config)
}

func (w *callWriter) budget(n int64) int64 {
	least, most, off := budgets(w.target.Model)
	got := n
	switch {
	case version(w.target.Model) >= 3:
		return n
	case n <= 0 && off:
		return 0
	case n < least:
		got = least
	case n > most:
		got = most
	}
	if got != n && (w.call.ThinkingBudget != nil || n <= 0) {
		w.warn(hub.WarnCompatibility, "reasoning", "the model thinks for at least "+string(hub.MustEncode(least))+" and at most "+string(hub.MustEncode(most))+" tokens")
	}
	return got
}

// level returns the nearest level that the model supports: pro models have low and high,
// from 3.1 on also medium; other models also have minimal. There is no level none.
func (w *callWriter) level() string {
	model, effort := w.target.Model, w.call.Effort
	pro := strings.Contains(model, "-pro")
	level := string(effort)
	switch effort {
	case hub.EffortNone, hub.EffortMinimal:
		if level = "minimal"; pro {
			level = "low"
		}
	case hub.EffortMedium:
		if pro && version(model) < 3.1 {
			level = "high"
		}
	case hub.EffortXHigh, hub.EffortMax:
		level = "high"
	}
	if level != string(effort) {
		w.warn(hub.WarnCompatibility, "reasoning", "the model's nearest level of thinking is "+level)
	}
	return level
}
