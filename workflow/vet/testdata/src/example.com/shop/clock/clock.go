// Package clock is what a workflow's package imports: what its functions do is
// known there.
package clock

import (
	"context"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/cayhq/cay/workflow"
)

func Stamp() string { // want Stamp:"impure: clock.now > time.Now"
	return now().String()
}

func now() time.Time { return time.Now() } // want now:"impure: time.Now"

func Plain(n int) string { return fmt.Sprint(n) }

type File struct{ Name string }

func (f File) Load() ([]byte, error) { return os.ReadFile(f.Name) } // want Load:"impure: os.ReadFile"

// Even is impure by calling Odd, which calls it.
func Even(n int) bool { return n == 0 || Odd(n-1) } // want Even:"impure: clock.Odd > time.Now"

func Odd(n int) bool { // want Odd:"impure: time.Now"
	time.Now()
	return n != 0 && Even(n-1)
}

// NewStep makes a step: what that does is not done by who makes it.
func NewStep() *workflow.StepDef[int, string] {
	return workflow.Step("stamp", func(ctx context.Context, _ int) (string, error) { return Stamp(), nil })
}

var Rate = 1 // want Rate:"changed"

func SetRate(n int) { Rate = n }

var Fixed = map[string]int{"a": 1}

func init() { Fixed["b"] = 2 }

// Permitted is known to be harmless.
func Permitted() time.Time {
	//cayvet:allow only shown
	return time.Now()
}

func Sorted(m map[string]int) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
