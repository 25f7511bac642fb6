package scripted

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// maxQuoted is the maximum number of bytes of a question or a result that an answer
// repeats.
const maxQuoted = 4 << 10

// Rule returns the index of the rule that answers c; -1 if no rule does. See Answer.
func (s *Script) Rule(c *hub.Call) int {
	if len(s.rules) == 0 {
		return 0
	}
	question, turn := question(c), turn(c)
	for i := range s.rules {
		r := &s.rules[i]
		if (r.match == nil || r.match.MatchString(question)) && (r.turn == 0 || r.turn == turn) {
			return i
		}
	}
	return -1
}

// Answer returns the answer to c, and the delay before its first word. n is the number of
// calls that the same Rule has answered before, which selects a reply of a sequence;
// Source counts. Equal c and n give equal answers.
//
// With an error, the result is the content before the error, nil if there is none.
func (s *Script) Answer(c *hub.Call, n int) (*hub.Result, time.Duration, *hub.Error) {
	at := s.Rule(c)
	if at < 0 {
		return nil, 0, &hub.Error{
			Kind: hub.BadRequest, Code: "no_reply",
			Message: "no reply of the script matches the last message; add one without match to the end of it",
		}
	}
	var r reply
	if len(s.rules) > 0 {
		replies := s.rules[at].replies
		r = replies[min(max(n, 0), len(replies)-1)]
	}
	if r.empty() {
		made := makeUp(c)
		r.Text, r.Reasoning, r.ToolCalls = made.Text, made.Reasoning, made.ToolCalls
	}
	var failed *hub.Error
	if e := r.Error; e != nil {
		failed = &hub.Error{Kind: hub.KindOf(e.Status), Status: e.Status, Message: e.Message, Code: e.Code, RetryAfter: e.RetryAfter}
		if r.Text == "" && r.Reasoning == "" && len(r.ToolCalls) == 0 {
			return nil, r.Delay, failed
		}
	}
	return r.result(c, fmt.Sprint(at, " ", n)), r.Delay, failed
}

// result returns the answer for r. id makes the ids in the answer unique.
func (r *reply) result(c *hub.Call, id string) *hub.Result {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n%d\n%s\n%s", id, len(c.Prompt), question(c), result(c))
	sum := hex.EncodeToString(hash.Sum(nil))
	res := &hub.Result{
		Finish:   hub.Finish{Reason: hub.Stop, Raw: "stop"},
		Response: hub.Response{ID: "scripted-" + sum[:24], Model: "scripted"},
	}
	var counts hub.Usage
	counts.Reasoning = hub.N(words(r.Reasoning))
	if r.Reasoning != "" && !c.HideReasoning {
		res.Content = append(res.Content, hub.Part{Kind: hub.ReasoningPart, Text: fill(r.Reasoning, c)})
	}
	said := fill(r.Text, c)
	if short, ok := cut(said, c.MaxOutputTokens); ok {
		said = short
		res.Finish = hub.Finish{Reason: hub.Length, Raw: "length"}
	}
	counts.Text = hub.N(words(said))
	if said != "" {
		res.Content = append(res.Content, hub.Part{Kind: hub.TextPart, Text: said})
	}
	for i, call := range r.ToolCalls {
		*counts.Text += 1 + words(call.input)
		res.Content = append(res.Content, hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{
			ID: fmt.Sprintf("call_%s%04d", sum[:20], i), Name: call.Name, Input: call.input,
		}})
		res.Finish = hub.Finish{Reason: hub.ToolCalls, Raw: "tool_calls"}
	}
	if r.Finish != "" {
		res.Finish = hub.Finish{Reason: r.Finish, Raw: string(r.Finish)}
	}
	counts.Input = hub.N(promptWords(c))
	if u := r.Usage; u != nil {
		counts = hub.Usage{
			Input: hub.N(u.Input), CacheRead: hub.N(u.CacheRead), CacheWrite: hub.N(u.CacheWrite),
			Output: hub.N(u.Output), Reasoning: hub.N(u.Reasoning),
		}
	}
	counts.Fill()
	res.Usage = &counts
	return res
}

// fill replaces the placeholders in a text.
func fill(text string, c *hub.Call) string {
	if !strings.Contains(text, "{") {
		return text
	}
	return strings.NewReplacer("{question}", quoted(question(c)), "{result}", quoted(result(c))).Replace(text)
}

// quoted shortens a text to maxQuoted.
func quoted(text string) string {
	if len(text) <= maxQuoted {
		return text
	}
	end := maxQuoted
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// cut returns the first words of text if it has more than limit words.
func cut(text string, limit *int64) (string, bool) {
	if limit == nil {
		return text, false
	}
	left, in := *limit, false
	for i, r := range text {
		switch space := unicode.IsSpace(r); {
		case space:
			in = false
		case !in && left <= 0:
			return strings.TrimRightFunc(text[:i], unicode.IsSpace), true
		case !in:
			in = true
			left--
		}
	}
	return text, false
}

// question returns the last text of a user message.
func question(c *hub.Call) string {
	for i := len(c.Prompt) - 1; i >= 0; i-- {
		if c.Prompt[i].Role == hub.User {
			return join(c.Prompt[i].Parts)
		}
	}
	return ""
}

func join(parts []hub.Part) string {
	var texts []string
	for i := range parts {
		if parts[i].Kind == hub.TextPart {
			texts = append(texts, parts[i].Text)
		}
	}
	return strings.Join(texts, "\n")
}

// result returns the last output of a tool, as text.
func result(c *hub.Call) string {
	for i := len(c.Prompt) - 1; i >= 0; i-- {
		parts := c.Prompt[i].Parts
		for j := len(parts) - 1; j >= 0; j-- {
			if parts[j].Kind == hub.ToolResultPart {
				return output(&parts[j].Result.Output)
			}
		}
	}
	return ""
}

func output(o *hub.ToolOutput) string {
	switch o.Kind {
	case hub.OutputJSON, hub.OutputErrorJSON:
		return string(o.JSON)
	case hub.OutputContent:
		return join(o.Content)
	}
	return o.Text
}

// turn returns the number of the answer in the conversation, from 1.
func turn(c *hub.Call) int {
	n := 1
	for i := range c.Prompt {
		if c.Prompt[i].Role == hub.Assistant {
			n++
		}
	}
	return n
}

func words(text string) int64 { return int64(len(strings.Fields(text))) }

// promptWords counts the words of a prompt; a file counts as one word.
func promptWords(c *hub.Call) int64 {
	var n int64
	for i := range c.Prompt {
		for j := range c.Prompt[i].Parts {
			switch p := &c.Prompt[i].Parts[j]; p.Kind {
			case hub.TextPart, hub.ReasoningPart:
				n += words(p.Text)
			case hub.ToolCallPart:
				n += 1 + words(p.Call.Input)
			case hub.ToolResultPart:
				n += words(output(&p.Result.Output))
			default:
				n++
			}
		}
	}
	return n
}
