package workflowd

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// Input from outside is checked before it gets to a lane: a value that a store cannot
// keep would fail its whole group, and with it the ops of other callers.

// checkText returns an error for a text that the stores cannot keep: PostgreSQL accepts
// only UTF-8 without zero bytes.
func checkText(what, s string, most int) error {
	switch {
	case len(s) > most:
		return cay.Errorf(cay.Invalid, "%s has %d bytes, and may have %d", what, len(s), most)
	case !utf8.ValidString(s):
		return cay.Errorf(cay.Invalid, "%s %.40q is not UTF-8", what, s)
	case strings.IndexByte(s, 0) >= 0:
		return cay.Errorf(cay.Invalid, "%s %.40q has a zero byte", what, s)
	}
	return nil
}

// text is a text to check.
type text struct {
	what, s string
	most    int
}

func checkTexts(texts ...text) error {
	for _, t := range texts {
		if err := checkText(t.what, t.s, t.most); err != nil {
			return err
		}
	}
	return nil
}

// checkNumber returns an error for a number that does not fit in the 32 bits of its
// column.
func checkNumber(what string, n int) error {
	if n < math.MinInt32 || n > math.MaxInt32 {
		return cay.Errorf(cay.Invalid, "%s is %d; it must be between %d and %d", what, n, math.MinInt32, math.MaxInt32)
	}
	return nil
}

func checkAttributes(m map[string]string) error {
	if len(m) > maxAttributes {
		return cay.Errorf(cay.Invalid, "a run has at most %d attributes", maxAttributes)
	}
	for k, v := range m {
		if k == "" || len(k) > maxAttribute || len(v) > maxAttribute {
			return cay.Errorf(cay.Invalid, "attribute %.40q: names and values have at most %d bytes, and a name has one", k, maxAttribute)
		}
		if err := checkTexts(text{"the name of an attribute,", k, maxAttribute}, text{fmt.Sprintf("the value of attribute %.40q,", k), v, maxAttribute}); err != nil {
			return err
		}
	}
	return nil
}

// checkEvents refuses events that a worker may not append, such as events that clients,
// timers and children cause.
func checkEvents(events []history.Event) error {
	for i := range events {
		ev := &events[i]
		switch ev.Type {
		case history.RunCompleted:
			if ev.Token != "" {
				return cay.Errorf(cay.Invalid, "a run that continues this one has to be started with it")
			}
		case history.RunFailed, history.RunCancelled, history.VersionMarked, history.ChildStarted, history.ChildEnded,
			history.StepCreated, history.StepStarted, history.StepCompleted, history.StepFailed, history.StepRetrying,
			history.HookCreated, history.HookDisposed, history.WaitCreated, history.WaitCompleted:
		case history.AttrSet:
			if err := checkAttributes(ev.Attributes); err != nil {
				return err
			}
		default:
			return cay.Errorf(cay.Invalid, "a worker cannot append an event of type %s", ev.Type)
		}
		if err := checkEvent(ev); err != nil {
			return err
		}
		if ev.Type == history.HookCreated && ev.Token == "" {
			return cay.Errorf(cay.Invalid, "a hook needs a token")
		}
	}
	return nil
}

// checkEvent checks the fields that events of every type have.
func checkEvent(ev *history.Event) error {
	if err := checkNumber("the attempt or version of an event", ev.Attempt); err != nil {
		return err
	}
	return checkTexts(text{"the id of an event,", ev.ID, maxID}, text{"the name in an event,", ev.Name, maxName},
		text{"a token", ev.Token, maxKey}, text{"the code of an event,", ev.Code, maxID}, text{"a reason", ev.Reason, maxID})
}
