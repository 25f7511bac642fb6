package agent

import "github.com/cayhq/cay/gateway"

// Usage counts the tokens of one or several calls of models; unknown counts are 0.
type Usage struct {
	Calls      int64 `json:"calls"` // of models
	Input      int64 `json:"input"` // with CacheRead and CacheWrite
	CacheRead  int64 `json:"cache_read,omitempty"`
	CacheWrite int64 `json:"cache_write,omitempty"`
	Output     int64 `json:"output"` // with Reasoning
	Reasoning  int64 `json:"reasoning,omitempty"`
	// Cost is the sum of the prices that are known; CostKnown is false if a price is
	// missing.
	Cost      gateway.Money `json:"cost"`
	CostKnown bool          `json:"cost_known"`
}

// Add adds the counts of o.
func (u *Usage) Add(o Usage) {
	if o.Calls == 0 {
		return
	}
	u.CostKnown = o.CostKnown && (u.CostKnown || u.Calls == 0)
	u.Calls += o.Calls
	u.Input += o.Input
	u.CacheRead += o.CacheRead
	u.CacheWrite += o.CacheWrite
	u.Output += o.Output
	u.Reasoning += o.Reasoning
	u.Cost = u.Cost.Plus(o.Cost)
}
