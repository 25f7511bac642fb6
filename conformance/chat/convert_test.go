package chat_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/agent/chat"
)

// The agent gets the same messages that the AI SDK would give a model, for chats with
// parts of all kinds in all states.
func TestConvert_AsTheSDK(t *testing.T) {
	need(t)
	for _, version := range []string{"ai", "ai-v7"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			const chats = 2000
			var lines []string
			var all [][]any
			g := &chatMaker{Rand: rand.New(rand.NewPCG(7, 18)), v7: version == "ai-v7"}
			for range chats {
				line, err := json.Marshal(g.chat())
				if err != nil {
					t.Fatal(err)
				}
				lines = append(lines, string(line))
				var ui []chat.UIMessage
				if err := json.Unmarshal(line, &ui); err != nil {
					t.Fatal(err)
				}
				got, err := chat.Convert(ui, chat.ConvertOptions{AllowSystem: true})
				if err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				all = append(all, normal(t, canonical(got)))
			}
			cmd := exec.CommandContext(t.Context(), "node", "convert.mjs", version)
			cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
			cmd.Stderr = t.Output()
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			d := json.NewDecoder(bytes.NewReader(out))
			for i, got := range all {
				var want []any
				if err := d.Decode(&want); err != nil {
					t.Fatal(err)
				}
				if g.v7 {
					want = withoutLastDenials(t, want, lines[i])
				} else {
					got = withoutDenials(got) // it has the response alone
				}
				if !reflect.DeepEqual(got, want) {
					g, _ := json.MarshalIndent(got, "", " ")
					w, _ := json.MarshalIndent(want, "", " ")
					t.Fatalf("chat %d:\n%s\nis converted to\n%s\nthe SDK says\n%s", i, lines[i], g, w)
				}
			}
		})
	}
}

type object = map[string]any

// normal returns v after a round trip through JSON.
func normal(t *testing.T, v []any) []any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	out := []any{}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// canonical is messages in the form of convert.mjs.
func canonical(messages []agent.Message) []any {
	out := []any{}
	for i := range messages {
		m := &messages[i]
		parts := []any{}
		for j := range m.Parts {
			parts = append(parts, canonicalPart(&m.Parts[j]))
		}
		message := object{"role": m.Role, "parts": parts}
		if m.Options != nil {
			message["options"] = m.Options
		}
		out = append(out, message)
	}
	return out
}

func canonicalPart(p *agent.Part) object {
	o := object{"type": p.Type}
	if p.Options != nil {
		o["options"] = p.Options
	}
	switch p.Type {
	case agent.Text, agent.Reasoning:
		o["text"] = p.Text
	case agent.FilePart, agent.ReasoningFile:
		o["mediaType"], o["name"] = p.File.MediaType, p.File.Name
		switch {
		case p.File.Data != nil:
			o["data"] = base64.RawStdEncoding.EncodeToString(p.File.Data)
		case p.File.URL != "":
			o["url"] = p.File.URL
		default:
			o["reference"] = p.File.Reference
		}
	case agent.Custom:
		o["kind"] = p.Kind
	case agent.ToolCallPart:
		o["call"], o["tool"], o["input"], o["byProvider"] = p.CallID, p.ToolName, p.Input, p.ProviderExecuted
		if string(p.Input) == "null" {
			o["input"] = object{}
		}
	case agent.ToolResultPart:
		output := object{"type": p.Output.Type}
		if p.Output.JSON != nil {
			output["json"] = p.Output.JSON
		} else {
			output["text"] = p.Output.Text
		}
		o["call"], o["tool"], o["output"] = p.CallID, p.ToolName, output
	case agent.ApprovalRequest:
		o["approval"], o["call"], o["signature"] = p.ApprovalID, p.CallID, p.Signature
	case agent.ApprovalResponse:
		o["approval"], o["approved"], o["reason"] = p.ApprovalID, p.Approved, p.Reason
	}
	return o
}

// without returns messages without the parts for which drop returns true.
func without(messages []any, drop func(i int, part object) bool) []any {
	out := []any{}
	for i, m := range messages {
		parts := []any{}
		for _, p := range m.(object)["parts"].([]any) {
			if !drop(i, p.(object)) {
				parts = append(parts, p)
			}
		}
		if len(parts) > 0 {
			copied := object{}
			for k, v := range m.(object) {
				copied[k] = v
			}
			copied["parts"] = parts
			out = append(out, copied)
		}
	}
	return out
}

func isDenial(part object) bool {
	out, ok := part["output"].(object)
	return ok && fmt.Sprint(out["type"]) == string(agent.OutputDenied)
}

func withoutDenials(messages []any) []any {
	return without(messages, func(_ int, p object) bool { return isDenial(p) })
}

// withoutLastDenials leaves out the SDK's answers to denials in the last message of a
// chat, which cay leaves to the agent.
func withoutLastDenials(t *testing.T, messages []any, line string) []any {
	t.Helper()
	var said []struct {
		Parts []struct {
			ToolCallID, State string
		}
	}
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		t.Fatal(err)
	}
	last := map[string]bool{}
	for _, p := range said[len(said)-1].Parts {
		last[p.ToolCallID] = p.State == "approval-responded"
	}
	return without(messages, func(_ int, p object) bool { return isDenial(p) && last[p["call"].(string)] })
}

// chat makes messages of a page.
func (g *chatMaker) chat() []object {
	messages := []object{}
	if g.one(4) {
		messages = append(messages, g.message("system", []object{g.text(), g.text()}))
	}
	for range 1 + g.IntN(3) {
		messages = append(messages, g.message("user", g.some(3, g.userPart)))
		if !g.one(4) {
			messages = append(messages, g.message("assistant", g.some(8, g.assistantPart)))
		}
	}
	return messages
}

// chatMaker makes up chats.
type chatMaker struct {
	*rand.Rand
	v7 bool // with parts that only AI SDK 7 knows
	n  int
}

func (g *chatMaker) one(in int) bool { return g.IntN(in) == 0 }

func (g *chatMaker) id(prefix string) string {
	g.n++
	return fmt.Sprint(prefix, g.n)
}

func (g *chatMaker) some(n int, f func() object) []object {
	parts := []object{f()}
	for range g.IntN(n) {
		parts = append(parts, f())
	}
	return parts
}

func (g *chatMaker) message(role string, parts []object) object {
	return object{"id": g.id("m"), "role": role, "parts": parts}
}

// with adds fields to a part, each with a chance of one half.
func (g *chatMaker) with(o object, fields ...any) object {
	for i := 0; i < len(fields); i += 2 {
		if g.one(2) {
			o[fields[i].(string)] = fields[i+1]
		}
	}
	return o
}

func (g *chatMaker) options() object {
	return object{"anthropic": object{"signature": g.id("sig")}, "openai": object{"itemId": []any{1.5, nil}}}
}

func (g *chatMaker) text() object {
	texts := []string{"", "Hello", "<b>&\u2028 \"é\" 🦩", "a\nb"}
	return g.with(object{"type": "text", "text": texts[g.IntN(len(texts))]}, "state", "done", "providerMetadata", g.options())
}

func (g *chatMaker) file(typ string) object {
	urls := []string{
		"https://example.com/a.png", "http://example.com/a?b=c%20d", "data:image/png;base64,iVBORw0KGgo=", "data:text/plain;base64,aGk",
	}
	o := g.with(object{"type": typ, "mediaType": "image/png", "url": urls[g.IntN(len(urls))]}, "providerMetadata", g.options())
	if typ == "file" {
		g.with(o, "filename", "a.png")
	}
	return o
}

func (g *chatMaker) userPart() object {
	switch g.IntN(4) {
	case 0:
		return g.file("file")
	case 1:
		return object{"type": "data-place", "id": "d", "data": object{"x": 1}}
	}
	return g.text()
}

func (g *chatMaker) assistantPart() object {
	if g.v7 && g.one(6) {
		switch g.IntN(4) {
		case 0:
			return g.file("reasoning-file")
		case 1:
			return g.with(object{"type": "custom", "kind": "openai.compaction"}, "providerMetadata", g.options())
		case 2:
			return object{"type": "file", "mediaType": "image/png", "url": "data:,", "providerReference": object{"openai": "file-1"}}
		}
		return object{"type": "steering-message", "id": "s", "parts": []object{g.text(), g.file("file")}}
	}
	switch g.IntN(12) {
	case 0:
		return g.file("file")
	case 1:
		return object{"type": "data-place", "data": 1}
	case 2:
		return g.with(object{"type": "reasoning", "text": "Hm."}, "providerMetadata", g.options(), "id", "r")
	case 3:
		return object{"type": "source-url", "sourceId": "s", "url": "https://example.com/"}
	case 4:
		return object{"type": "source-document", "sourceId": "s", "mediaType": "text/plain", "title": "T"}
	case 5, 6:
		return object{"type": "step-start"}
	case 7:
		return g.text()
	}
	return g.tool()
}

func (g *chatMaker) tool() object {
	id := g.id("call")
	o := g.with(object{"type": "tool-get-weather", "toolCallId": id}, "callProviderMetadata", g.options(), "providerExecuted", true, "title", "T")
	if g.one(3) {
		o["type"], o["toolName"] = "dynamic-tool", "roll_dice"
	}
	approval := g.with(object{"id": "approval-" + id}, "signature", "sig")
	inputs := []any{object{"city": "Oslo"}, object{}, []any{1, "2"}, "three", nil}
	o["input"] = inputs[g.IntN(len(inputs))]
	states := []chat.ToolState{
		chat.InputStreaming, chat.InputAvailable, chat.ApprovalRequested, chat.ApprovalResponded, chat.OutputAvailable, chat.OutputFailed, chat.OutputDenied,
	}
	state := states[g.IntN(len(states))]
	o["state"] = state
	answered := func(yes bool) object {
		approval["approved"] = yes
		return g.with(approval, "reason", "Because.")
	}
	switch state {
	case chat.ApprovalRequested:
		o["approval"] = approval
	case chat.ApprovalResponded:
		o["approval"] = answered(g.one(2))
	case chat.OutputAvailable:
		outputs := []any{object{"celsius": -3.5}, "cold", "", []any{}, nil, 7}
		o["output"] = outputs[g.IntN(len(outputs))]
		g.with(o, "preliminary", true, "approval", answered(true), "resultProviderMetadata", g.options())
	case chat.OutputFailed:
		o["errorText"] = "It \"broke\"."
		g.with(o, "rawInput", `{"city":`, "approval", answered(true), "resultProviderMetadata", g.options())
	case chat.OutputDenied:
		o["approval"] = answered(false)
	}
	return o
}
