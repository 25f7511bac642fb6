package agent

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cayhq/cay/workflow"
)

// told is a stream that the attempts to answer write to.
type told []Chunk

func (l *told) attempt(n int, chunks []Chunk) error {
	begin := Chunk{Type: ChunkStartStep, Step: "s"}
	write := func(chunks ...Chunk) error {
		for _, c := range chunks {
			*l = append(*l, c.own())
		}
		return nil
	}
	send := write
	var items []workflow.Item[Chunk]
	for _, c := range *l {
		items = append(items, workflow.Item[Chunk]{Value: c.own()})
	}
	if said, ok := saidBy("s", items); n > 0 && ok {
		send = (&retelling{write: write, begin: begin, said: said}).send
	} else if err := write(begin); err != nil {
		return err
	}
	for _, c := range chunks {
		if p := c.text(); p != nil { // as a model's parts are: overwritten by the next
			reused := *p
			if c.Delta != nil {
				c.Delta = &reused
			} else {
				c.InputTextDelta = &reused
			}
			defer func() { reused = "overwritten" }()
		}
		if err := send(c); err != nil {
			return err
		}
	}
	return nil
}

// read returns the text for a reader that knows the rule of StreamName, and how often
// the reader had to drop text.
func (l told) read() (text string, resets int) {
	var b strings.Builder
	open := ""
	for i, c := range l {
		if c.Type == ChunkStartStep {
			b.Reset()
			open = ""
			if i > 0 {
				resets++
			}
			continue
		}
		if p := c.text(); p != nil {
			if at := fmt.Sprint(c.Type, c.ID, c.ToolCallID); at != open && *p != "" {
				open = at
				b.WriteString("\n" + at + " ")
			}
			b.WriteString(*p)
			continue
		}
		open = ""
		c := c
		fmt.Fprintf(&b, "\n%s %s %s %s %v", c.Type, c.ID, c.ToolCallID, c.Input, c.ProviderMetadata)
	}
	return b.String(), resets
}

func textDelta(s string) Chunk { return Chunk{Type: ChunkTextDelta, ID: "0", Delta: &s} }

func TestRetelling(t *testing.T) {
	t.Parallel()
	begin, end, over := Chunk{Type: ChunkTextStart, ID: "0"}, Chunk{Type: ChunkTextEnd, ID: "0"}, Chunk{Type: ChunkFinishStep}
	call := func(id string) Chunk {
		return Chunk{Type: ChunkToolInputAvailable, ToolCallID: id, ToolName: "f", Input: []byte(`{"a":1}`)}
	}
	signed := textDelta("")
	signed.ProviderMetadata = Options{"p": []byte(`{"signature":"x"}`)}
	for name, c := range map[string]struct {
		first, second []Chunk
		resets        int
		writes        int // of the second attempt
	}{
		"goes on":                    {[]Chunk{begin, textDelta("Hel")}, []Chunk{begin, textDelta("Hello"), end, over}, 0, 3},
		"in other parts":             {[]Chunk{begin, textDelta("He"), textDelta("l")}, []Chunk{begin, textDelta("H"), textDelta("ello"), end, over}, 0, 3},
		"exactly to there":           {[]Chunk{begin, textDelta("Hel")}, []Chunk{begin, textDelta("Hel"), textDelta("lo"), end, over}, 0, 3},
		"nothing was said":           {nil, []Chunk{begin, textDelta("Hello"), end, over}, 0, 4},
		"all was said":               {[]Chunk{begin, textDelta("Hello"), end, over}, []Chunk{begin, textDelta("Hel"), textDelta("lo"), end, over}, 0, 0},
		"empty parts":                {[]Chunk{begin, textDelta(""), textDelta("Hel"), textDelta("")}, []Chunk{begin, textDelta("Hel"), textDelta(""), end, over}, 0, 2},
		"says something else":        {[]Chunk{begin, textDelta("Hel")}, []Chunk{begin, textDelta("He"), textDelta(" is"), end, over}, 1, 6},
		"says less":                  {[]Chunk{begin, textDelta("Hello")}, []Chunk{begin, textDelta("Hel"), end, over}, 1, 5},
		"ends later":                 {[]Chunk{begin, textDelta("Hello"), end}, []Chunk{begin, textDelta("Hello!"), end, over}, 1, 5},
		"the same call":              {[]Chunk{call("k")}, []Chunk{call("k"), over}, 0, 1},
		"the call has another id":    {[]Chunk{call("k")}, []Chunk{call("l"), over}, 1, 3},
		"another signature":          {[]Chunk{begin, textDelta("a"), signed}, []Chunk{begin, textDelta("a"), end, over}, 1, 5},
		"the same signature":         {[]Chunk{begin, textDelta("a"), signed}, []Chunk{begin, textDelta("a"), signed, end, over}, 0, 2},
		"it was another block":       {[]Chunk{{Type: ChunkReasoningStart, ID: "0"}}, []Chunk{begin, textDelta("a"), end, over}, 1, 5},
		"the program wrote, as well": {[]Chunk{begin, {Type: "data-x"}, textDelta("Hel")}, []Chunk{begin, textDelta("Hello"), end, over}, 0, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var l told
			if err := l.attempt(0, c.first); err != nil {
				t.Fatal(err)
			}
			before := len(l)
			if err := l.attempt(1, c.second); err != nil {
				t.Fatal(err)
			}
			var whole told
			if err := whole.attempt(0, c.second); err != nil {
				t.Fatal(err)
			}
			got, resets := l.read()
			want, _ := whole.read()
			got = strings.ReplaceAll(got, "\ndata-x    map[]\n"+"text-delta0 ", "\ntext-delta0 ")
			if got != want || resets != c.resets || len(l)-before != c.writes {
				t.Errorf("readers have %s\nafter %d resets and %d chunks; want %s\nafter %d and %d", got, resets, len(l)-before, want, c.resets, c.writes)
			}
		})
	}
}

// The chunks of another answer on the stream are not taken for the beginning of this
// answer.
func TestRetelling_OfOthers(t *testing.T) {
	t.Parallel()
	own, other := Chunk{Type: ChunkStartStep, Step: "s"}, Chunk{Type: ChunkStartStep, Step: "t"}
	for name, stream := range map[string][]Chunk{
		"nothing":          nil,
		"another step":     {own, textDelta("a"), other, textDelta("b")},
		"too long ago":     {textDelta("a")},
		"an answer ended":  {own, textDelta("a"), {Type: ChunkFinish}},
		"an answer failed": {own, textDelta("a"), {Type: ChunkError}},
	} {
		var items []workflow.Item[Chunk]
		for _, c := range stream {
			items = append(items, workflow.Item[Chunk]{Value: c})
		}
		if said, ok := saidBy("s", items); ok {
			t.Errorf("%s: taken for what was said: %v", name, said)
		}
	}
}

// Wherever attempts are cut off, and whatever their texts, readers have the text of
// the last one; and they drop nothing if all attempts have the same text.
func TestRetelling_Property(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 7))
		say := func(words int) (all []Chunk) {
			for block := range 1 + r.IntN(3) {
				id := fmt.Sprint(block)
				all = append(all, Chunk{Type: ChunkTextStart, ID: id})
				for range r.IntN(6) {
					s := strings.Repeat("ab", r.IntN(3)) + strings.Repeat("é", r.IntN(2))
					if words > 0 {
						s += fmt.Sprint(r.IntN(words))
					}
					all = append(all, Chunk{Type: ChunkTextDelta, ID: id, Delta: &s})
				}
				all = append(all, Chunk{Type: ChunkTextEnd, ID: id})
			}
			return append(all, Chunk{Type: ChunkFinishStep})
		}
		var l told
		same := say(3)
		last := same
		attempts := 1 + r.IntN(4)
		agree := r.IntN(2) == 0
		for n := range attempts {
			if !agree {
				last = say(2)
			}
			said := split(r, last)
			if n < attempts-1 {
				said = said[:r.IntN(len(said)+1)]
			}
			if err := l.attempt(n, said); err != nil {
				t.Fatal(err)
			}
		}
		var whole told
		if err := whole.attempt(0, last); err != nil {
			t.Fatal(err)
		}
		got, resets := l.read()
		want, _ := whole.read()
		if got != want {
			t.Fatalf("seed %d: readers have %s\nwant %s", seed, got, want)
		}
		if agree && resets > 0 {
			t.Fatalf("seed %d: readers had to forget something %d times", seed, resets)
		}
	}
}

// split says the same in other parts.
func split(r *rand.Rand, chunks []Chunk) (out []Chunk) {
	for _, c := range chunks {
		for p := c.text(); p != nil && len(*p) > 1 && r.IntN(2) == 0; p = c.text() {
			words := []rune(*p)
			at := 1 + r.IntN(len(words))
			head, tail := c.own(), string(words[at:])
			*head.text() = string(words[:at])
			out = append(out, head)
			c.Delta = &tail
		}
		out = append(out, c)
	}
	return out
}
