// The clients, each behind the same few words. A Talk is a conversation in the
// client's own terms: what it answered goes back to it as its users would send it.
//
//   const talk = client.talk({ model, system?, tools?, choice?, schema?, maxTokens?, temperature?, stop?, gateway?, headers?, retries? })
//   const answer = await talk.say(parts, { stream?, signal?, onDelta? })
//   const next = await talk.results([{ call, text, failed? }], { stream? })
//
// parts are {text}, {image, type}, {imageURL}, {pdf, name}; an answer is {text,
// reasoning, calls: [{id, name, input}], finish, usage: {input, output, cached,
// reasoning}, metadata}.
import { world } from './world.mjs';

const anthropicBase = world.url;
const openaiBase = `${world.url}/v1`;

/** The client of a name: openai-v6, responses-v7, anthropic-v0, ai-v5 and so on. */
export async function load(name) {
  const [kind, version] = name.split('-');
  switch (kind) {
    case 'openai': return new OpenAIChat(name, await import(`openai-${version}`));
    case 'responses': return new OpenAIResponses(name, await import(`openai-${version}`));
    case 'anthropic': return new Anthropic(name, await import(`anthropic-${version}`));
    case 'ai': return new AI(name, await import(`ai-${version}`));
  }
  throw new Error(`there is no client ${name}`);
}

const base64 = (bytes) => Buffer.from(bytes).toString('base64');

class OpenAI {
  constructor(name, module) {
    this.name = name;
    this.module = module;
  }

  open({ key = world.key, retries = 0, headers } = {}) {
    return new this.module.default({ apiKey: key, baseURL: openaiBase, maxRetries: retries, defaultHeaders: headers });
  }
}

class OpenAIChat extends OpenAI {
  surface = 'chatcompletions';

  talk(params) {
    const client = this.open(params);
    const messages = params.system ? [{ role: 'system', content: params.system }] : [];
    const body = {
      model: params.model, messages,
      tools: params.tools && Object.entries(params.tools).map(([name, t]) => ({ type: 'function', function: { name, description: t.description, parameters: t.schema } })),
      tool_choice: params.choice && (['auto', 'none', 'required'].includes(params.choice) ? params.choice : { type: 'function', function: { name: params.choice } }),
      response_format: params.schema && { type: 'json_schema', json_schema: { name: 'answer', schema: params.schema, strict: true } },
      max_completion_tokens: params.maxTokens, temperature: params.temperature, stop: params.stop,
      providerOptions: params.gateway && { gateway: params.gateway },
    };
    const send = async ({ stream, signal, onDelta } = {}) => {
      if (!stream) return this.whole(messages, await client.chat.completions.create(body, { signal }));
      const message = { role: 'assistant', content: '' };
      const choice = { message };
      let usage;
      for await (const chunk of await client.chat.completions.create({ ...body, stream: true, stream_options: { include_usage: true } }, { signal })) {
        usage = chunk.usage ?? usage;
        message.provider_metadata = chunk.provider_metadata ?? message.provider_metadata;
        const [c] = chunk.choices;
        if (!c) continue;
        choice.finish_reason = c.finish_reason ?? choice.finish_reason;
        const d = c.delta ?? {};
        if (d.content) onDelta?.(d.content);
        message.content += d.content ?? '';
        if (d.reasoning ?? d.reasoning_content) message.reasoning = (message.reasoning ?? '') + (d.reasoning ?? d.reasoning_content);
        message.provider_metadata = d.provider_metadata ?? message.provider_metadata;
        for (const item of d.reasoning_details ?? []) merge((message.reasoning_details ??= []), item);
        for (const t of d.tool_calls ?? []) {
          const call = ((message.tool_calls ??= [])[t.index] ??= { id: t.id, type: 'function', function: { name: t.function.name, arguments: '' } });
          call.function.arguments += t.function?.arguments ?? '';
        }
      }
      if (!choice.finish_reason) throw new Error('the stream ended without a reason');
      return this.whole(messages, { choices: [choice], usage });
    };
    return {
      messages,
      say(parts, how) {
        messages.push({
          role: 'user',
          content: parts.length === 1 && parts[0].text ? parts[0].text : parts.map((p) => {
            if (p.text) return { type: 'text', text: p.text };
            if (p.imageURL) return { type: 'image_url', image_url: { url: p.imageURL } };
            if (p.image) return { type: 'image_url', image_url: { url: `data:${p.type};base64,${base64(p.image)}` } };
            return { type: 'file', file: { filename: p.name, file_data: `data:application/pdf;base64,${base64(p.pdf)}` } };
          }),
        });
        return send(how);
      },
      results(list, how) {
        for (const { call, text } of list) messages.push({ role: 'tool', tool_call_id: call.id, content: text });
        return send(how);
      },
    };
  }

  whole(messages, { choices, usage, generationId }) {
    const [{ message, finish_reason }] = choices;
    messages.push(message);
    return {
      text: message.content ?? '', reasoning: message.reasoning ?? message.reasoning_content ?? '',
      calls: (message.tool_calls ?? []).map((c) => ({ id: c.id, name: c.function.name, input: JSON.parse(c.function.arguments) })),
      finish: { stop: 'stop', length: 'length', tool_calls: 'tool-calls', content_filter: 'content-filter' }[finish_reason] ?? finish_reason,
      usage: usage && {
        input: usage.prompt_tokens, output: usage.completion_tokens,
        cached: usage.prompt_tokens_details?.cached_tokens, reasoning: usage.completion_tokens_details?.reasoning_tokens,
      },
      metadata: message.provider_metadata?.gateway ?? (generationId && { generationId }),
    };
  }
}

/** Puts the pieces of reasoning_details together: those of one index are of one item. */
function merge(all, item) {
  const open = all.find((x) => x.index === item.index && x.type === item.type);
  if (!open) {
    all.push({ ...item });
    return;
  }
  for (const [name, value] of Object.entries(item)) {
    if (['text', 'summary'].includes(name) && typeof value === 'string') open[name] = (open[name] ?? '') + value;
    else open[name] = value ?? open[name];
  }
}

class OpenAIResponses extends OpenAI {
  surface = 'responses';

  talk(params) {
    const client = this.open(params);
    const input = [];
    const body = {
      model: params.model, input, instructions: params.system, store: false, include: ['reasoning.encrypted_content'],
      tools: params.tools && Object.entries(params.tools).map(([name, t]) => ({ type: 'function', name, description: t.description, parameters: t.schema, strict: false })),
      tool_choice: params.choice && (['auto', 'none', 'required'].includes(params.choice) ? params.choice : { type: 'function', name: params.choice }),
      text: params.schema && { format: { type: 'json_schema', name: 'answer', schema: params.schema, strict: true } },
      max_output_tokens: params.maxTokens, temperature: params.temperature,
      providerOptions: params.gateway && { gateway: params.gateway },
    };
    const send = async ({ stream, signal, onDelta } = {}) => {
      if (!stream) return this.whole(input, await client.responses.create(body, { signal }));
      let done;
      let deltas = '';
      let sequence = -1;
      for await (const e of await client.responses.create({ ...body, stream: true }, { signal })) {
        if (e.sequence_number !== undefined && e.sequence_number <= sequence) throw new Error(`event ${e.sequence_number} after ${sequence}`);
        sequence = e.sequence_number ?? sequence;
        if (e.type === 'response.output_text.delta') {
          deltas += e.delta;
          onDelta?.(e.delta);
        }
        if (e.type === 'error') throw new Error(e.message);
        if (e.type === 'response.failed') throw Object.assign(new Error(e.response.error?.message), { error: e.response.error });
        if (e.type === 'response.completed' || e.type === 'response.incomplete') done = e.response;
      }
      if (!done) throw new Error('the stream has no end');
      const answer = this.whole(input, done);
      if (deltas !== answer.text) throw new Error(`the deltas are ${JSON.stringify(deltas)}, the text is ${JSON.stringify(answer.text)}`);
      return answer;
    };
    return {
      messages: input,
      say(parts, how) {
        input.push({
          role: 'user',
          content: parts.map((p) => {
            if (p.text) return { type: 'input_text', text: p.text };
            if (p.imageURL) return { type: 'input_image', image_url: p.imageURL, detail: 'auto' };
            if (p.image) return { type: 'input_image', image_url: `data:${p.type};base64,${base64(p.image)}`, detail: 'auto' };
            return { type: 'input_file', filename: p.name, file_data: `data:application/pdf;base64,${base64(p.pdf)}` };
          }),
        });
        return send(how);
      },
      results(list, how) {
        for (const { call, text } of list) input.push({ type: 'function_call_output', call_id: call.id, output: text });
        return send(how);
      },
    };
  }

  whole(input, r) {
    if (r.status === 'failed') throw Object.assign(new Error(r.error?.message), { error: r.error });
    input.push(...r.output);
    const texts = r.output.flatMap((i) => (i.type === 'message' ? i.content : []));
    const calls = r.output.filter((i) => i.type === 'function_call').map((c) => ({ id: c.call_id, name: c.name, input: JSON.parse(c.arguments) }));
    const cut = r.incomplete_details?.reason;
    return {
      text: texts.map((p) => p.text ?? p.refusal).join(''),
      reasoning: r.output.filter((i) => i.type === 'reasoning').flatMap((i) => [...(i.summary ?? []), ...(i.content ?? [])]).map((s) => s.text).join(''),
      calls,
      finish: { max_output_tokens: 'length', content_filter: 'content-filter' }[cut] ?? (texts.some((p) => p.type === 'refusal') ? 'content-filter' : calls.length ? 'tool-calls' : 'stop'),
      usage: r.usage && {
        input: r.usage.input_tokens, output: r.usage.output_tokens,
        cached: r.usage.input_tokens_details?.cached_tokens, reasoning: r.usage.output_tokens_details?.reasoning_tokens,
      },
      metadata: r.providerMetadata?.gateway,
    };
  }
}

class Anthropic {
  surface = 'messages';

  constructor(name, module) {
    this.name = name;
    this.module = module;
  }

  open({ key = world.key, retries = 0, headers } = {}) {
    return new this.module.default({ apiKey: key, authToken: null, baseURL: anthropicBase, maxRetries: retries, defaultHeaders: headers });
  }

  talk(params) {
    const client = this.open(params);
    const messages = [];
    const body = {
      model: params.model, messages, system: params.system && [{ type: 'text', text: params.system, cache_control: params.cache && { type: 'ephemeral' } }],
      max_tokens: params.maxTokens ?? 4096,
      tools: params.tools && Object.entries(params.tools).map(([name, t]) => ({ name, description: t.description, input_schema: t.schema })),
      tool_choice: params.choice && ({ auto: { type: 'auto' }, none: { type: 'none' }, required: { type: 'any' } }[params.choice] ?? { type: 'tool', name: params.choice }),
      output_config: params.schema && { format: { type: 'json_schema', schema: params.schema } },
      // The newer version of the API has no temperature.
      temperature: this.name === 'anthropic-v0' ? params.temperature : undefined, stop_sequences: params.stop,
      providerOptions: params.gateway && { gateway: params.gateway },
    };
    const send = async ({ stream, signal, onDelta } = {}) => {
      if (!stream) return this.whole(messages, await client.messages.create(body, { signal }));
      const s = client.messages.stream(body, { signal });
      let metadata;
      s.on('text', (text) => onDelta?.(text));
      s.on('streamEvent', (e) => { metadata = e.provider_metadata ?? metadata; });
      const answer = this.whole(messages, await s.finalMessage());
      return { ...answer, metadata: answer.metadata ?? metadata?.gateway };
    };
    return {
      messages,
      say(parts, how) {
        messages.push({
          role: 'user',
          content: parts.map((p) => {
            if (p.text) return { type: 'text', text: p.text };
            if (p.imageURL) return { type: 'image', source: { type: 'url', url: p.imageURL } };
            if (p.image) return { type: 'image', source: { type: 'base64', media_type: p.type, data: base64(p.image) } };
            return { type: 'document', title: p.name, source: { type: 'base64', media_type: 'application/pdf', data: base64(p.pdf) } };
          }),
        });
        return send(how);
      },
      results(list, how) {
        messages.push({ role: 'user', content: list.map(({ call, text, failed, image }) => ({
          type: 'tool_result', tool_use_id: call.id, is_error: failed,
          content: image ? [{ type: 'text', text }, { type: 'image', source: { type: 'base64', media_type: image.type, data: base64(image.image) } }] : text,
        })) });
        return send(how);
      },
    };
  }

  whole(messages, m) {
    messages.push({ role: 'assistant', content: m.content });
    const u = m.usage;
    return {
      text: m.content.filter((b) => b.type === 'text').map((b) => b.text).join(''),
      reasoning: m.content.filter((b) => b.type === 'thinking').map((b) => b.thinking).join(''),
      calls: m.content.filter((b) => b.type === 'tool_use').map(({ id, name, input }) => ({ id, name, input })),
      finish: { end_turn: 'stop', stop_sequence: 'stop', pause_turn: 'stop', max_tokens: 'length', tool_use: 'tool-calls', refusal: 'content-filter' }[m.stop_reason] ?? m.stop_reason,
      usage: u && {
        input: u.input_tokens + (u.cache_read_input_tokens ?? 0) + (u.cache_creation_input_tokens ?? 0), output: u.output_tokens,
        cached: u.cache_read_input_tokens, reasoning: u.output_tokens_details?.thinking_tokens,
      },
      metadata: m.provider_metadata?.gateway,
    };
  }
}

class AI {
  surface = 'aisdk';

  constructor(name, module) {
    this.name = name;
    this.module = module;
    this.major = Number(name.slice('ai-v'.length));
  }

  /** Where this major's protocol is. */
  get base() {
    return `${world.url}/${{ 5: 'v1', 6: 'v3', 7: 'v4' }[this.major]}/ai`;
  }

  gateway({ key = world.key, headers } = {}) {
    return this.module.createGateway({ apiKey: key, baseURL: this.base, headers });
  }

  talk(params) {
    const { generateText, streamText, jsonSchema, tool, Output } = this.module;
    const imageResult = (image) => this.image(image);
    const messages = [];
    const settings = {
      model: this.gateway(params)(params.model), messages, maxRetries: params.retries ?? 0,
      tools: params.tools && Object.fromEntries(Object.entries(params.tools).map(([name, t]) => [name, tool({ description: t.description, inputSchema: jsonSchema(t.schema) })])),
      toolChoice: params.choice && (['auto', 'none', 'required'].includes(params.choice) ? params.choice : { type: 'tool', toolName: params.choice }),
      maxOutputTokens: params.maxTokens, temperature: params.temperature, stopSequences: params.stop,
      providerOptions: params.gateway && { gateway: params.gateway },
    };
    // Version 7 has instructions outside of the messages.
    if (params.system) settings[this.major >= 7 ? 'instructions' : 'system'] = params.system;
    if (params.schema) settings[this.major === 5 ? 'experimental_output' : 'output'] = Output.object({ schema: jsonSchema(params.schema) });
    const send = async ({ stream, signal, onDelta } = {}) => {
      if (!stream) {
        const r = await generateText({ ...settings, abortSignal: signal });
        return this.whole(messages, r, r.response.messages);
      }
      let failed;
      const r = streamText({ ...settings, abortSignal: signal, onError: ({ error }) => { failed ??= error; } });
      for await (const part of r.fullStream) {
        if (part.type === 'text-delta') onDelta?.(part.text);
        if (part.type === 'error') failed ??= part.error;
        if (part.type === 'abort') failed ??= Object.assign(new Error('aborted'), { name: 'AbortError' });
      }
      if (failed) {
        Promise.resolve(r.response).catch(() => {}); // it says the same
        throw failed;
      }
      const [text, reasoningText, toolCalls, finishReason, usage, providerMetadata, response] = await Promise.all(
        [r.text, r.reasoningText, r.toolCalls, r.finishReason, r.usage, r.providerMetadata, r.response]);
      return this.whole(messages, { text, reasoningText, toolCalls, finishReason, usage, providerMetadata }, response.messages);
    };
    const file = (data, type, name) => ({ type: 'file', data, mediaType: type, filename: name });
    return {
      messages,
      say(parts, how) {
        messages.push({
          role: 'user',
          content: parts.map((p) => {
            if (p.text) return { type: 'text', text: p.text };
            if (p.imageURL) return { type: 'image', image: new URL(p.imageURL) };
            if (p.image) return { type: 'image', image: p.image, mediaType: p.type };
            return file(p.pdf, 'application/pdf', p.name);
          }),
        });
        return send(how);
      },
      results(list, how) {
        messages.push({
          role: 'tool',
          content: list.map(({ call, text, failed, image }) => ({
            type: 'tool-result', toolCallId: call.id, toolName: call.name,
            output: image ? { type: 'content', value: [{ type: 'text', text }, imageResult(image)] } : { type: failed ? 'error-text' : 'text', value: text },
          })),
        });
        return send(how);
      },
    };
  }

  /** An image in the result of a tool, for which each major has other words. */
  image({ image, type }) {
    const data = base64(image);
    if (this.major === 5) return { type: 'media', data, mediaType: type };
    if (this.major === 6) return { type: 'image-data', data, mediaType: type };
    return { type: 'file', data: { type: 'data', data }, mediaType: type };
  }

  whole(messages, r, more) {
    messages.push(...more);
    const u = r.usage;
    const metadata = r.providerMetadata?.gateway;
    return {
      text: r.text, reasoning: r.reasoningText ?? '',
      calls: r.toolCalls.filter((c) => !c.providerExecuted).map((c) => ({ id: c.toolCallId, name: c.toolName, input: c.input })),
      finish: r.finishReason,
      usage: u && {
        input: u.inputTokens, output: u.outputTokens,
        cached: u.inputTokenDetails ? u.inputTokenDetails.cacheReadTokens : u.cachedInputTokens,
        reasoning: u.outputTokenDetails ? u.outputTokenDetails.reasoningTokens : u.reasoningTokens,
      },
      metadata,
    };
  }
}
