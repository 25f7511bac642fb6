package agent

import (
	"strconv"

	"github.com/cayhq/cay/workflow"
)

// spent is what all agents of a run have used, whoever called them.
type spent struct {
	begun bool
	usage Usage
}

var spending = workflow.NewLocal[spent]()

// spend adds what a call of a model has used to the run's total.
func spend(ctx workflow.Context, u Usage) {
	s := spending.Of(ctx)
	if !s.begun {
		s.begun = true
		s.usage = spentBefore(ctx.Info().Attributes)
	}
	s.usage.Add(u)
}

// spentBefore is what the run's attributes say at its first call of a model: what was
// used by the run that this one continues.
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

// total puts what was used so far into the run's attributes. Each says all there is,
// so that Calls beside each other do not take away what others have added. It does so
// also when ctx has ended.
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
