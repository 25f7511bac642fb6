package hub

import (
	"reflect"
	"testing"
)

func TestUsage_Fill(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		got, want Usage
	}{
		{"nothing", Usage{}, Usage{}},
		{"total and cached, as OpenAI counts",
			Usage{Input: N(100), CacheRead: N(30), CacheWrite: N(20), Output: N(9), Reasoning: N(4)},
			Usage{Input: N(100), NoCache: N(50), CacheRead: N(30), CacheWrite: N(20), Output: N(9), Text: N(5), Reasoning: N(4)}},
		{"rest and cached, as Anthropic counts",
			Usage{NoCache: N(50), CacheRead: N(30), CacheWrite: N(20), CacheWrite1h: N(5), Output: N(9)},
			Usage{Input: N(100), NoCache: N(50), CacheRead: N(30), CacheWrite: N(20), CacheWrite1h: N(5), Output: N(9)}},
		{"text and thoughts apart, as Gemini counts",
			Usage{Input: N(10), Text: N(5), Reasoning: N(4)},
			Usage{Input: N(10), NoCache: N(10), Output: N(9), Text: N(5), Reasoning: N(4)}},
		{"text alone", Usage{Text: N(5)}, Usage{Output: N(5), Text: N(5)}},
		{"output alone says nothing of its parts", Usage{Output: N(5)}, Usage{Output: N(5)}},
		{"more cached than there was", Usage{Input: N(10), CacheRead: N(30), Output: N(2), Reasoning: N(3)},
			Usage{Input: N(10), NoCache: N(0), CacheRead: N(30), Output: N(2), Text: N(0), Reasoning: N(3)}},
		{"what is known stays", Usage{Input: N(1), NoCache: N(7), Output: N(2), Text: N(9), Reasoning: N(1)},
			Usage{Input: N(1), NoCache: N(7), Output: N(2), Text: N(9), Reasoning: N(1)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := test.got
			got.Fill()
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", counts(got), counts(test.want))
			}
			again := got
			again.Fill()
			if !reflect.DeepEqual(again, got) {
				t.Errorf("filled twice: %+v, once: %+v", counts(again), counts(got))
			}
		})
	}
}

// counts returns the counts of u for comparison; -1 means unknown.
func counts(u Usage) []int64 {
	var all []int64
	for _, n := range []*int64{u.Input, u.NoCache, u.CacheRead, u.CacheWrite, u.CacheWrite1h, u.Output, u.Text, u.Reasoning} {
		if n == nil {
			all = append(all, -1)
			continue
		}
		all = append(all, *n)
	}
	return all
}

func TestToolCall_InputValue(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]string{"": "{}", `{"a":1}`: `{"a":1}`, `"x"`: `"x"`, `{"a":`: `{"invalid_input":"{\"a\":"}`} {
		if got := string((&ToolCall{Input: input}).InputValue()); got != want {
			t.Errorf("InputValue of %q = %s, want %s", input, got, want)
		}
	}
}
