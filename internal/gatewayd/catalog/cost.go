package catalog

import (
	"math"
	"strconv"
	"strings"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Cost is the cost of an answer at list prices.
type Cost struct {
	Total, Input, Output gateway.Money
}

// CostOf returns the cost of u at prices p, which must not be nil, excluding tools that
// the provider ran. Missing counts cost nothing; the caller should estimate them first.
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

// Reported parses a cost in dollars that a provider reported, rounded up to Money's
// precision; false if it is missing or implausible.
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

// maxReported is the maximum plausible reported cost of a request, in dollars.
const maxReported = 1e5

// MostOf returns the maximum cost at prices p of a call with these numbers of input and
// output tokens: the whole prompt may be written to a cache, and the whole answer may be
// reasoning. A requested service tier is not necessarily granted, so the standard tier
// counts as well.
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
