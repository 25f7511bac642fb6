package gatewaytest

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Reply is a model's answer, independent of wire formats.
type Reply struct {
	// Reasoning comes before the text. Signature is the data that the provider wants back
	// with the reasoning: the signature of the block (messages, converse),
	// encrypted_content (responses), the signature of the first call, or else of the text
	// (gemini). Chatcompletions has no signatures.
	Reasoning, Signature string
	Text                 string
	Calls                []ReplyCall
	// Finish is stop, length, tool-calls or content-filter; empty means tool-calls if
	// there are Calls, else stop.
	Finish string
	Usage  ReplyUsage
}

// ReplyCall is a call of a tool. Input is JSON.
type ReplyCall struct{ ID, Name, Input string }

// ReplyUsage counts tokens. Input includes cached tokens and Output includes reasoning,
// whatever the format's convention. The zero value is 20 in, 10 out.
type ReplyUsage struct{ Input, CacheRead, CacheWrite, Output, Reasoning int }

// created is the creation time of all rendered answers: 2026-11-20 12:00 UTC.
const created = 1795521600

// Render returns the reply in a format, both whole and as stream events.
func (r Reply) Render(format, model string) Fixture {
	if r.Usage == (ReplyUsage{}) {
		r.Usage = ReplyUsage{Input: 20, Output: 10}
	}
	if r.Finish == "" {
		r.Finish = "stop"
		if len(r.Calls) > 0 {
			r.Finish = "tool-calls"
		}
	}
	f := Fixture{Name: "rendered", Provider: "rendered", Format: format}
	switch format {
	case Chat:
		f.Whole, f.Chunks = r.chat(model)
	case Responses:
		f.Whole, f.Chunks = r.responses(model)
	case Messages:
		f.Whole, f.Chunks = r.messages(model)
	case Gemini:
		f.Whole, f.Chunks = r.gemini(model)
	case Converse:
		f.Whole, f.Chunks = r.converse()
	default:
		panic("gatewaytest: there is no format " + format)
	}
	return f
}

type object = map[string]any

func encode(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("gatewaytest: " + err.Error())
	}
	return raw
}

// pieces splits text into the content of events: words with the space before, and tool
// inputs every few letters.
func pieces(text string) []string {
	var all []string
	for text != "" {
		n := 7
		if i := strings.IndexByte(text[1:], ' '); i >= 0 && i < 12 {
			n = i + 1
		}
		for n < len(text) && text[n]&0xC0 == 0x80 { // not within a letter
			n++
		}
		n = min(n, len(text))
		all, text = append(all, text[:n]), text[n:]
	}
	return all
}

func (r Reply) chat(model string) ([]byte, [][]byte) {
	finish := map[string]string{"stop": "stop", "length": "length", "tool-calls": "tool_calls", "content-filter": "content_filter"}[r.Finish]
	u := r.Usage
	usage := object{
		"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Input + u.Output,
		"prompt_tokens_details":     object{"cached_tokens": u.CacheRead},
		"completion_tokens_details": object{"reasoning_tokens": u.Reasoning},
	}
	chunk := func(delta object, finish any) []byte {
		return encode(object{"id": "chatcmpl-rendered", "object": "chat.completion.chunk", "created": created, "model": model,
			"choices": []any{object{"index": 0, "delta": delta, "finish_reason": finish}}})
	}
	message := object{"role": "assistant", "content": r.Text}
	chunks := [][]byte{chunk(object{"role": "assistant", "content": ""}, nil)}
	if r.Reasoning != "" {
		message["reasoning_content"] = r.Reasoning
		for _, p := range pieces(r.Reasoning) {
			chunks = append(chunks, chunk(object{"reasoning_content": p}, nil))
		}
	}
	for _, p := range pieces(r.Text) {
		chunks = append(chunks, chunk(object{"content": p}, nil))
	}
	var calls []any
	for i, c := range r.Calls {
		calls = append(calls, object{"id": c.ID, "type": "function", "function": object{"name": c.Name, "arguments": c.Input}})
		chunks = append(chunks, chunk(object{"tool_calls": []any{object{"index": i, "id": c.ID, "type": "function", "function": object{"name": c.Name, "arguments": ""}}}}, nil))
		for _, p := range pieces(c.Input) {
			chunks = append(chunks, chunk(object{"tool_calls": []any{object{"index": i, "function": object{"arguments": p}}}}, nil))
		}
	}
	if calls != nil {
		message["tool_calls"] = calls
		if r.Text == "" {
			message["content"] = nil
		}
	}
	chunks = append(chunks, chunk(object{}, finish))
	chunks = append(chunks, encode(object{"id": "chatcmpl-rendered", "object": "chat.completion.chunk", "created": created, "model": model, "choices": []any{}, "usage": usage}))
	whole := encode(object{"id": "chatcmpl-rendered", "object": "chat.completion", "created": created, "model": model,
		"choices": []any{object{"index": 0, "message": message, "finish_reason": finish}}, "usage": usage})
	return whole, chunks
}

func (r Reply) messages(model string) ([]byte, [][]byte) {
	finish := map[string]string{"stop": "end_turn", "length": "max_tokens", "tool-calls": "tool_use", "content-filter": "refusal"}[r.Finish]
	u := r.Usage
	usage := object{
		"input_tokens": u.Input - u.CacheRead - u.CacheWrite, "cache_read_input_tokens": u.CacheRead,
		"cache_creation_input_tokens": u.CacheWrite, "output_tokens": u.Output,
		"output_tokens_details": object{"thinking_tokens": u.Reasoning},
	}
	begun := object{"input_tokens": usage["input_tokens"], "cache_read_input_tokens": u.CacheRead, "cache_creation_input_tokens": u.CacheWrite, "output_tokens": 1}
	message := func(content []any, stop, usage any) object {
		return object{"id": "msg_rendered", "type": "message", "role": "assistant", "model": model,
			"content": content, "stop_reason": stop, "stop_sequence": nil, "usage": usage}
	}
	chunks := [][]byte{encode(object{"type": "message_start", "message": message([]any{}, nil, begun)})}
	content := []any{}
	block := func(start, whole object, deltas ...object) {
		i := len(content)
		chunks = append(chunks, encode(object{"type": "content_block_start", "index": i, "content_block": start}))
		for _, d := range deltas {
			chunks = append(chunks, encode(object{"type": "content_block_delta", "index": i, "delta": d}))
		}
		chunks = append(chunks, encode(object{"type": "content_block_stop", "index": i}))
		content = append(content, whole)
	}
	if r.Reasoning != "" {
		var deltas []object
		for _, p := range pieces(r.Reasoning) {
			deltas = append(deltas, object{"type": "thinking_delta", "thinking": p})
		}
		deltas = append(deltas, object{"type": "signature_delta", "signature": r.Signature})
		block(object{"type": "thinking", "thinking": "", "signature": ""}, object{"type": "thinking", "thinking": r.Reasoning, "signature": r.Signature}, deltas...)
	}
	if r.Text != "" {
		var deltas []object
		for _, p := range pieces(r.Text) {
			deltas = append(deltas, object{"type": "text_delta", "text": p})
		}
		block(object{"type": "text", "text": ""}, object{"type": "text", "text": r.Text}, deltas...)
	}
	for _, c := range r.Calls {
		deltas := []object{{"type": "input_json_delta", "partial_json": ""}}
		for _, p := range pieces(c.Input) {
			deltas = append(deltas, object{"type": "input_json_delta", "partial_json": p})
		}
		block(object{"type": "tool_use", "id": c.ID, "name": c.Name, "input": object{}},
			object{"type": "tool_use", "id": c.ID, "name": c.Name, "input": json.RawMessage(c.Input)}, deltas...)
	}
	chunks = append(chunks,
		encode(object{"type": "message_delta", "delta": object{"stop_reason": finish, "stop_sequence": nil}, "usage": usage}),
		encode(object{"type": "message_stop"}))
	return encode(message(content, finish, usage)), chunks
}

func (r Reply) gemini(model string) ([]byte, [][]byte) {
	finish := map[string]string{"stop": "STOP", "length": "MAX_TOKENS", "tool-calls": "STOP", "content-filter": "SAFETY"}[r.Finish]
	u := r.Usage
	usage := object{
		"promptTokenCount": u.Input, "candidatesTokenCount": u.Output - u.Reasoning, "thoughtsTokenCount": u.Reasoning,
		"cachedContentTokenCount": u.CacheRead, "totalTokenCount": u.Input + u.Output,
	}
	answer := func(parts []any, finish any) []byte {
		candidate := object{"index": 0, "content": object{"role": "model", "parts": parts}}
		if finish != nil {
			candidate["finishReason"] = finish
		}
		return encode(object{"candidates": []any{candidate}, "usageMetadata": usage, "modelVersion": model, "responseId": "rendered"})
	}
	var parts []any
	var chunks [][]byte
	signed := len(r.Calls) == 0
	if r.Reasoning != "" {
		parts = append(parts, object{"text": r.Reasoning, "thought": true})
		for _, p := range pieces(r.Reasoning) {
			chunks = append(chunks, answer([]any{object{"text": p, "thought": true}}, nil))
		}
	}
	if r.Text != "" {
		part := object{"text": r.Text}
		for _, p := range pieces(r.Text) {
			chunks = append(chunks, answer([]any{object{"text": p}}, nil))
		}
		if signed && r.Signature != "" {
			part["thoughtSignature"] = r.Signature
			chunks = append(chunks, answer([]any{object{"text": "", "thoughtSignature": r.Signature}}, nil))
		}
		parts = append(parts, part)
	}
	for i, c := range r.Calls {
		part := object{"functionCall": object{"name": c.Name, "args": json.RawMessage(c.Input)}}
		if i == 0 && r.Signature != "" {
			part["thoughtSignature"] = r.Signature
		}
		parts = append(parts, part)
		chunks = append(chunks, answer([]any{part}, nil))
	}
	chunks = append(chunks, answer([]any{object{"text": ""}}, finish))
	return answer(parts, finish), chunks
}

func (r Reply) converse() ([]byte, [][]byte) {
	finish := map[string]string{"stop": "end_turn", "length": "max_tokens", "tool-calls": "tool_use", "content-filter": "content_filtered"}[r.Finish]
	u := r.Usage
	usage := object{
		"inputTokens": u.Input - u.CacheRead - u.CacheWrite, "cacheReadInputTokens": u.CacheRead, "cacheWriteInputTokens": u.CacheWrite,
		"outputTokens": u.Output, "totalTokens": u.Input + u.Output,
	}
	chunks := [][]byte{encode(object{"messageStart": object{"role": "assistant"}})}
	content := []any{}
	block := func(start, whole object, deltas ...object) {
		i := len(content)
		if start != nil { // text blocks have no start
			chunks = append(chunks, encode(object{"contentBlockStart": object{"contentBlockIndex": i, "start": start}}))
		}
		for _, d := range deltas {
			chunks = append(chunks, encode(object{"contentBlockDelta": object{"contentBlockIndex": i, "delta": d}}))
		}
		chunks = append(chunks, encode(object{"contentBlockStop": object{"contentBlockIndex": i}}))
		content = append(content, whole)
	}
	if r.Reasoning != "" {
		var deltas []object
		for _, p := range pieces(r.Reasoning) {
			deltas = append(deltas, object{"reasoningContent": object{"text": p}})
		}
		deltas = append(deltas, object{"reasoningContent": object{"signature": r.Signature}})
		block(nil, object{"reasoningContent": object{"reasoningText": object{"text": r.Reasoning, "signature": r.Signature}}}, deltas...)
	}
	if r.Text != "" {
		var deltas []object
		for _, p := range pieces(r.Text) {
			deltas = append(deltas, object{"text": p})
		}
		block(nil, object{"text": r.Text}, deltas...)
	}
	for _, c := range r.Calls {
		var deltas []object
		for _, p := range pieces(c.Input) {
			deltas = append(deltas, object{"toolUse": object{"input": p}})
		}
		block(object{"toolUse": object{"toolUseId": c.ID, "name": c.Name}},
			object{"toolUse": object{"toolUseId": c.ID, "name": c.Name, "input": json.RawMessage(c.Input)}}, deltas...)
	}
	chunks = append(chunks,
		encode(object{"messageStop": object{"stopReason": finish}}),
		encode(object{"metadata": object{"usage": usage, "metrics": object{"latencyMs": 7}}}))
	whole := encode(object{"output": object{"message": object{"role": "assistant", "content": content}},
		"stopReason": finish, "usage": usage, "metrics": object{"latencyMs": 7}})
	return whole, chunks
}

func (r Reply) responses(model string) ([]byte, [][]byte) {
	u := r.Usage
	response := object{"id": "resp_rendered", "object": "response", "created_at": created, "status": "in_progress", "model": model,
		"output": []any{}, "error": nil, "incomplete_details": nil, "usage": nil, "parallel_tool_calls": true, "tools": []any{}, "tool_choice": "auto"}
	var chunks [][]byte
	event := func(kind string, members object) {
		members["type"], members["sequence_number"] = kind, len(chunks)
		chunks = append(chunks, encode(members))
	}
	event("response.created", object{"response": response})
	event("response.in_progress", object{"response": response})
	output := []any{}
	item := func(id string, start, whole object, inside func(at int)) {
		at := len(output)
		start["id"], whole["id"] = id, id
		event("response.output_item.added", object{"output_index": at, "item": start})
		inside(at)
		event("response.output_item.done", object{"output_index": at, "item": whole})
		output = append(output, whole)
	}
	if r.Reasoning != "" {
		id := "rs_rendered"
		summary := object{"type": "summary_text", "text": r.Reasoning}
		item(id, object{"type": "reasoning", "summary": []any{}, "encrypted_content": ""},
			object{"type": "reasoning", "summary": []any{summary}, "encrypted_content": r.Signature}, func(at int) {
				event("response.reasoning_summary_part.added", object{"item_id": id, "output_index": at, "summary_index": 0, "part": object{"type": "summary_text", "text": ""}})
				for _, p := range pieces(r.Reasoning) {
					event("response.reasoning_summary_text.delta", object{"item_id": id, "output_index": at, "summary_index": 0, "delta": p})
				}
				event("response.reasoning_summary_text.done", object{"item_id": id, "output_index": at, "summary_index": 0, "text": r.Reasoning})
				event("response.reasoning_summary_part.done", object{"item_id": id, "output_index": at, "summary_index": 0, "part": summary})
			})
	}
	if r.Text != "" {
		id := "msg_rendered"
		part := object{"type": "output_text", "text": r.Text, "annotations": []any{}, "logprobs": []any{}}
		item(id, object{"type": "message", "role": "assistant", "status": "in_progress", "content": []any{}},
			object{"type": "message", "role": "assistant", "status": "completed", "content": []any{part}}, func(at int) {
				event("response.content_part.added", object{"item_id": id, "output_index": at, "content_index": 0, "part": object{"type": "output_text", "text": "", "annotations": []any{}}})
				for _, p := range pieces(r.Text) {
					event("response.output_text.delta", object{"item_id": id, "output_index": at, "content_index": 0, "delta": p})
				}
				event("response.output_text.done", object{"item_id": id, "output_index": at, "content_index": 0, "text": r.Text})
				event("response.content_part.done", object{"item_id": id, "output_index": at, "content_index": 0, "part": part})
			})
	}
	for i, c := range r.Calls {
		id := fmt.Sprintf("fc_rendered_%d", i)
		call := func(arguments, status string) object {
			return object{"type": "function_call", "call_id": c.ID, "name": c.Name, "arguments": arguments, "status": status}
		}
		item(id, call("", "in_progress"), call(c.Input, "completed"), func(at int) {
			for _, p := range pieces(c.Input) {
				event("response.function_call_arguments.delta", object{"item_id": id, "output_index": at, "delta": p})
			}
			event("response.function_call_arguments.done", object{"item_id": id, "output_index": at, "arguments": c.Input})
		})
	}
	end := "response.completed"
	response["status"] = "completed"
	if why := map[string]string{"length": "max_output_tokens", "content-filter": "content_filter"}[r.Finish]; why != "" {
		end = "response.incomplete"
		response["status"], response["incomplete_details"] = "incomplete", object{"reason": why}
	}
	response["output"] = output
	response["usage"] = object{
		"input_tokens": u.Input, "input_tokens_details": object{"cached_tokens": u.CacheRead},
		"output_tokens": u.Output, "output_tokens_details": object{"reasoning_tokens": u.Reasoning}, "total_tokens": u.Input + u.Output,
	}
	event(end, object{"response": response})
	return encode(response), chunks
}
