package hub

// EffortBudget returns how many of limit tokens a model may think for when it is to
// do so with effort e: minimal 2 %, low 10 %, medium 30 %, high 60 %, xhigh 90 % and
// max 95 %, which is what the AI SDK's provider packages take. It is 0 for
// EffortNone, EffortDefault and words it does not know.
func EffortBudget(e Effort, limit int64) int64 { return limit * percent[e] / 100 }

var percent = map[Effort]int64{
	EffortMinimal: 2, EffortLow: 10, EffortMedium: 30, EffortHigh: 60, EffortXHigh: 90, EffortMax: 95,
}

// BudgetEffort returns the effort whose EffortBudget of limit is the nearest that
// is not below budget: EffortMax for all above, EffortNone for no budget at all.
func BudgetEffort(budget, limit int64) Effort {
	if budget <= 0 {
		return EffortNone
	}
	for _, e := range []Effort{EffortMinimal, EffortLow, EffortMedium, EffortHigh, EffortXHigh} {
		if budget <= EffortBudget(e, limit) {
			return e
		}
	}
	return EffortMax
}
