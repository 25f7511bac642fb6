package agent

import (
	"strconv"

	"github.com/cayhq/cay/workflow"
)

// spent is the usage of all agents of a run, whoever called them.
type spent struct {
	begun bool
	usage Usage
}

var spending = workflow.NewLocal[spent]()

// spend adds the usage of a call of a model to the run's total.
func spend(ctx workflow.Context, u Usage) {
	s := spending.Of(ctx)
	if !s.begun {
		s.begun = true
		s.usage = spentBefore(ctx.Info().Attributes)
	}
	s.usage.Add(u)
}

// spentBefore returns the usage in the run's attributes at its first call of a model:
// the usage of the run that this run continues.
func spentBefore(have map[string]string) Usage {
	text := have[AttributeTokens]
	if text == "" {
		return Usage{}
	}
	u := Usage{Calls: 1}
	u.Input, _ = strconv.ParseInt(text, 10, 64) // we wrote it
	u.CostKnown = have[AttributeCost] != "" && u.Cost.UnmarshalText([]byte(have[AttributeCost])) == nil
	return u
}

// total writes the usage so far into the run's attributes. Each write has the whole
// total, so that concurrent Calls do not undo each other's additions. total works
// even if ctx has ended.
func total(ctx workflow.Context) error {
	s := spending.Of(ctx)
	if !s.begun {
		return nil
	}
	cost := ""
	if s.usage.CostKnown {
		cost = s.usage.Cost.String()
	}
	return workflow.SetAttributes(workflow.WithoutCancel(ctx), map[string]string{
		AttributeTokens: strconv.FormatInt(s.usage.Input+s.usage.Output, 10), AttributeCost: cost,
	})
}
