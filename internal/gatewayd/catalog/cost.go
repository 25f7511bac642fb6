package catalog

import (
	"math"
	"strconv"
	"strings"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Cost is what an answer costs by a list of prices.
type Cost struct {
	Total, Input, Output gateway.Money
}

// CostOf returns what u costs by p, which is not nil, but for tools that the
// provider ran. Counts that the provider
// did not give cost nothing; estimate them before.
func CostOf(p *gateway.Price, u *hub.Usage) Cost {
	input, output, read, write := p.Input, p.Output, p.CacheRead, p.CacheWrite
	for _, t := range p.Tiers { // ascending
		if hub.Count(u.Input) > t.Above {
			input, output, read, write = t.Input, t.Output, t.CacheRead, t.CacheWrite
		}
	}
	long := or(p.CacheWrite1h, or(write, input))
	cacheRead, cacheWrite, write1h := hub.Count(u.CacheRead), hub.Count(u.CacheWrite), hub.Count(u.CacheWrite1h)
	fresh := max(0, hub.Count(u.Input)-cacheRead-cacheWrite)
	var c Cost
	c.Input = input.Times(fresh).
		Plus(or(read, input).Times(cacheRead)).
		Plus(or(write, input).Times(max(0, cacheWrite-write1h))).
		Plus(long.Times(write1h))
	reasoning := hub.Count(u.Reasoning)
	c.Output = output.Times(max(0, hub.Count(u.Output)-reasoning)).
		Plus(or(p.Reasoning, output).Times(reasoning))
	if percent, ok := p.ServiceTiers[u.Tier]; ok {
		c.Input, c.Output = c.Input.Times(int64(percent))/100, c.Output.Times(int64(percent))/100
	}
	c.Total = c.Input.Plus(c.Output).Plus(p.Request)
	return c
}

// Reported returns a cost that a provider says itself, in dollars, rounded up to
// what Money has; false if it says none that makes sense.
func Reported(dollars string) (gateway.Money, bool) {
	if dollars == "" || len(dollars) > 64 || strings.Trim(dollars, "+-.0123456789eE") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(dollars, 64)
	if err != nil || f < 0 || f > maxReported {
		return 0, false
	}
	if m, err := gateway.ParseMoney(dollars); err == nil {
		return m, true
	}
	return gateway.Money(math.Ceil(f * float64(gateway.Dollar))), true
}

// maxReported is the most dollars that a request may cost by what its provider says.
const maxReported = 1e5

// MostOf returns the most that so many tokens of prompt and answer cost by p: all
// of the prompt may be written to a cache, and all of the answer be thought. A tier
// of service that is asked for need not be granted.
func MostOf(p *gateway.Price, input, output int64, tier string) gateway.Money {
	var most gateway.Money
	for _, tier := range []string{"", tier} {
		for _, u := range []hub.Usage{
			{Input: &input, Output: &output},
			{Input: &input, Output: &output, CacheWrite: &input},
			{Input: &input, Output: &output, CacheWrite: &input, CacheWrite1h: &input},
		} {
			u.Tier = tier
			plain := CostOf(p, &u).Total
			u.Reasoning = &output
			most = max(most, plain, CostOf(p, &u).Total)
		}
	}
	return most
}

func or(a *gateway.Money, b gateway.Money) gateway.Money {
	if a != nil {
		return *a
	}
	return b
}
