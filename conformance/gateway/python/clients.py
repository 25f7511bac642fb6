"""The clients for Python, each behind the same few words: see ../clients.mjs."""

import base64
import json
import os

with open(os.environ["CAY_WORLD"]) as f:
    WORLD = json.load(f)


class Answer:
    def __init__(self, text="", reasoning="", calls=(), finish=None, usage=None):
        self.text, self.reasoning, self.calls, self.finish, self.usage = text, reasoning, list(calls), finish, usage


def data_url(kind, data):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


class Chat:
    """openai, chat completions."""

    surface = "chatcompletions"

    def __init__(self, key=None):
        import openai

        self.module = openai
        self.client = openai.OpenAI(api_key=key or WORLD["key"], base_url=WORLD["url"] + "/v1", max_retries=0)

    def talk(self, model, system=None, tools=None, schema=None, max_tokens=None):
        body = {"model": model, "messages": [{"role": "system", "content": system}] if system else []}
        if tools:
            body["tools"] = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in tools.items()]
        if schema:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        if max_tokens:
            body["max_completion_tokens"] = max_tokens
        return ChatTalk(self.client, body)


class ChatTalk:
    def __init__(self, client, body):
        self.client, self.body, self.messages = client, body, body["messages"]

    def say(self, *parts, stream=False, on_delta=None):
        content = []
        for p in parts:
            if isinstance(p, str):
                content.append({"type": "text", "text": p})
            elif p[0] == "application/pdf":
                content.append({"type": "file", "file": {"filename": "paper.pdf", "file_data": data_url(*p)}})
            else:
                content.append({"type": "image_url", "image_url": {"url": data_url(*p)}})
        self.messages.append({"role": "user", "content": content})
        return self.send(stream, on_delta)

    def results(self, results, stream=False):
        for call, text in results:
            self.messages.append({"role": "tool", "tool_call_id": call[0], "content": text})
        return self.send(stream, None)

    def send(self, stream, on_delta):
        if not stream:
            r = self.client.chat.completions.create(**self.body)
            return self.whole(r.choices[0].message.model_dump(exclude_none=True), r.choices[0].finish_reason, r.usage)
        message, finish, usage = {"role": "assistant", "content": ""}, None, None
        with self.client.chat.completions.create(**self.body, stream=True, stream_options={"include_usage": True}) as s:
            for chunk in s:
                usage = chunk.usage or usage
                if not chunk.choices:
                    continue
                finish = chunk.choices[0].finish_reason or finish
                d = chunk.choices[0].delta
                if d.content:
                    message["content"] += d.content
                    if on_delta:
                        on_delta()
                extra = d.model_extra or {}
                if extra.get("reasoning") or extra.get("reasoning_content"):
                    message["reasoning"] = message.get("reasoning", "") + (extra.get("reasoning") or extra["reasoning_content"])
                for item in extra.get("reasoning_details") or []:
                    self.merge(message.setdefault("reasoning_details", []), item)
                for t in d.tool_calls or []:
                    calls = message.setdefault("tool_calls", [])
                    if t.index == len(calls):
                        calls.append({"id": t.id, "type": "function", "function": {"name": t.function.name, "arguments": ""}})
                    calls[t.index]["function"]["arguments"] += t.function.arguments or ""
        if finish is None:
            raise RuntimeError("the stream ended without a reason")
        return self.whole(message, finish, usage)

    @staticmethod
    def merge(items, item):
        for there in items:
            if (there.get("index"), there["type"]) == (item.get("index"), item["type"]):
                for name, v in item.items():
                    there[name] = there.get(name, "") + v if name in ("text", "summary") else v
                return
        items.append(dict(item))

    def whole(self, message, finish, usage):
        self.messages.append(message)
        calls = [(c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls") or []]
        reason = {"stop": "stop", "length": "length", "tool_calls": "tool-calls", "content_filter": "content-filter"}[finish]
        return Answer(message.get("content") or "", message.get("reasoning") or message.get("reasoning_content") or "", calls, reason,
                      usage and (usage.prompt_tokens, usage.completion_tokens))


class Responses:
    """openai, responses."""

    surface = "responses"

    def __init__(self, key=None):
        import openai

        self.module = openai
        self.client = openai.OpenAI(api_key=key or WORLD["key"], base_url=WORLD["url"] + "/v1", max_retries=0)

    def talk(self, model, system=None, tools=None, schema=None, max_tokens=None):
        body = {"model": model, "input": [], "store": False, "include": ["reasoning.encrypted_content"]}
        if system:
            body["instructions"] = system
        if tools:
            body["tools"] = [{"type": "function", "name": n, "parameters": s, "strict": False} for n, s in tools.items()]
        if schema:
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
        if max_tokens:
            body["max_output_tokens"] = max_tokens
        return ResponsesTalk(self.client, body)


class ResponsesTalk:
    def __init__(self, client, body):
        self.client, self.body, self.messages = client, body, body["input"]

    def say(self, *parts, stream=False, on_delta=None):
        content = []
        for p in parts:
            if isinstance(p, str):
                content.append({"type": "input_text", "text": p})
            elif p[0] == "application/pdf":
                content.append({"type": "input_file", "filename": "paper.pdf", "file_data": data_url(*p)})
            else:
                content.append({"type": "input_image", "image_url": data_url(*p), "detail": "auto"})
        self.messages.append({"role": "user", "content": content})
        return self.send(stream, on_delta)

    def results(self, results, stream=False):
        for call, text in results:
            self.messages.append({"type": "function_call_output", "call_id": call[0], "output": text})
        return self.send(stream, None)

    def send(self, stream, on_delta):
        if stream:
            r = None
            with self.client.responses.create(**self.body, stream=True) as s:
                for e in s:
                    if e.type == "response.output_text.delta" and on_delta:
                        on_delta()
                    if e.type in ("response.completed", "response.incomplete"):
                        r = e.response
                    if e.type in ("response.failed", "error"):
                        raise RuntimeError(f"the stream failed: {e}")
            if r is None:
                raise RuntimeError("the stream has no end")
        else:
            r = self.client.responses.create(**self.body)
        self.messages.extend(i.model_dump(exclude_none=True) for i in r.output)
        calls = [(i.call_id, i.name, json.loads(i.arguments)) for i in r.output if i.type == "function_call"]
        reasoning = "".join(s.text for i in r.output if i.type == "reasoning" for s in [*i.summary, *(i.content or [])])
        cut = r.incomplete_details and r.incomplete_details.reason
        finish = {"max_output_tokens": "length", "content_filter": "content-filter"}.get(cut) or ("tool-calls" if calls else "stop")
        return Answer(r.output_text, reasoning, calls, finish, r.usage and (r.usage.input_tokens, r.usage.output_tokens))


class Messages:
    """anthropic."""

    surface = "messages"

    def __init__(self, key=None):
        import anthropic

        self.module = anthropic
        self.client = anthropic.Anthropic(api_key=key or WORLD["key"], base_url=WORLD["url"], max_retries=0)

    def talk(self, model, system=None, tools=None, schema=None, max_tokens=None):
        body = {"model": model, "messages": [], "max_tokens": max_tokens or 4096}
        if system:
            body["system"] = system
        if tools:
            body["tools"] = [{"name": n, "input_schema": s} for n, s in tools.items()]
        if schema:
            body["extra_body"] = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
        return MessagesTalk(self.client, body)


class MessagesTalk:
    def __init__(self, client, body):
        self.client, self.body, self.messages = client, body, body["messages"]

    def say(self, *parts, stream=False, on_delta=None):
        content = []
        for p in parts:
            if isinstance(p, str):
                content.append({"type": "text", "text": p})
            else:
                source = {"type": "base64", "media_type": p[0], "data": base64.b64encode(p[1]).decode()}
                content.append({"type": "document" if p[0] == "application/pdf" else "image", "source": source})
        self.messages.append({"role": "user", "content": content})
        return self.send(stream, on_delta)

    def results(self, results, stream=False):
        content = [{"type": "tool_result", "tool_use_id": call[0], "content": text} for call, text in results]
        self.messages.append({"role": "user", "content": content})
        return self.send(stream, None)

    def send(self, stream, on_delta):
        if stream:
            with self.client.messages.stream(**self.body) as s:
                for _ in s.text_stream:
                    if on_delta:
                        on_delta()
                m = s.get_final_message()
        else:
            m = self.client.messages.create(**self.body)
        self.messages.append({"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in m.content]})
        calls = [(b.id, b.name, b.input) for b in m.content if b.type == "tool_use"]
        finish = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool-calls", "refusal": "content-filter"}[m.stop_reason]
        u = m.usage
        return Answer("".join(b.text for b in m.content if b.type == "text"), "".join(b.thinking for b in m.content if b.type == "thinking"), calls, finish,
                      (u.input_tokens + (u.cache_read_input_tokens or 0) + (u.cache_creation_input_tokens or 0), u.output_tokens))


CLIENTS = {"openai": Chat, "responses": Responses, "anthropic": Messages}
