package hub

// EffortBudget returns the thinking budget for effort e as a share of limit: minimal 2 %,
// low 10 %, medium 30 %, high 60 %, xhigh 90 % and max 95 %, the shares in the AI SDK's
// provider packages. It is 0 for EffortNone, EffortDefault and unknown efforts.
func EffortBudget(e Effort, limit int64) int64 { return limit * percent[e] / 100 }

var percent = map[Effort]int64{
	EffortMinimal: 2, EffortLow: 10, EffortMedium: 30, EffortHigh: 60, EffortXHigh: 90, EffortMax: 95,
}

// BudgetEffort returns the lowest effort whose EffortBudget of limit is not below budget:
// EffortMax for larger budgets, EffortNone for a budget of 0.
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
