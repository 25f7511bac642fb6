// What an agent writes to a run's stream, as messages of steps of parts. None of it is to be trusted: not the order in which
// chunks come, not that what they name is there, and no text.
import { Exact } from '../../json';
import type { Answer, Chunk } from './types';

export interface TextPart {
  kind: 'text' | 'reasoning';
  id: string;
  text: string;
  open: boolean;
}

export interface ToolPart {
  kind: 'tool';
  call: string;
  name: string;
  /** what the model has written of the input so far */
  inputText: string;
  input?: unknown;
  hasInput: boolean;
  output?: unknown;
  error?: string;
  state: 'writing' | 'running' | 'asked' | 'done' | 'failed' | 'denied';
  preliminary: boolean;
  byProvider: boolean;
  approval?: string;
  /** what the tool has done, if it is an agent */
  work?: Part[];
}

export interface OtherPart {
  kind: 'file' | 'source' | 'data';
  name: string;
  detail?: string;
  value?: unknown;
}

export type Part = TextPart | ToolPart | OtherPart;

export interface Step {
  /** of the workflow's step that asks the model; '' for what is before the first one */
  id: string;
  parts: Part[];
  open: boolean;
  /** how often the answer broke off, and was begun again */
  again: number;
  /** is another one when something has changed */
  version: number;
}

export interface Message {
  id: string;
  steps: Step[];
  finish?: string;
  error?: string;
  aborted?: string;
}

/** longest is how much is kept of a text, in characters. */
const longest = 1 << 20;
/** most is how many parts a step has, and steps and messages there are. */
const most = 5000;

/** text is v if it is one, or a number, and nothing else: an object can say of itself that it cannot be a text. */
export const text = (v: unknown): string => (typeof v === 'string' ? v : typeof v === 'number' || v instanceof Exact ? String(v) : '');

/** Conversation is made of chunks in their order. */
export class Conversation {
  messages: Message[] = [];
  /** chunks that could not be read: sealed ones, and such as are none */
  unreadable = 0;

  take(c: Chunk | undefined): void {
    if (!c || typeof c !== 'object' || typeof c.type !== 'string') {
      this.unreadable++;
      return;
    }
    switch (c.type) {
      case 'start':
        this.message(text(c.messageId));
        return;
      case 'start-step':
        this.step(text(c.step));
        return;
      case 'finish-step':
        this.close(false);
        return;
      case 'reset-step': {
        const s = this.last();
        s.parts = [];
        s.again++;
        s.version++;
        return;
      }
      case 'text-start':
      case 'reasoning-start':
        this.add({ kind: c.type === 'text-start' ? 'text' : 'reasoning', id: text(c.id), text: '', open: true });
        return;
      case 'text-delta':
      case 'reasoning-delta': {
        const kind = c.type === 'text-delta' ? 'text' : 'reasoning';
        const part = this.block(kind, text(c.id)) ?? this.add({ kind, id: text(c.id), text: '', open: true });
        if (part?.kind === kind && part.text.length < longest) part.text += text(c.delta);
        this.last().version++;
        return;
      }
      case 'text-end':
      case 'reasoning-end': {
        const part = this.block(c.type === 'text-end' ? 'text' : 'reasoning', text(c.id));
        if (part) part.open = false;
        this.last().version++;
        return;
      }
      case 'file':
        this.add({ kind: 'file', name: text(c.filename) || text(c.mediaType) || 'file', detail: address(c.url) });
        return;
      case 'source-url':
      case 'source-document':
        this.add({ kind: 'source', name: text(c.title) || text(c.filename) || text(c.url), detail: address(c.url) });
        return;
      case 'finish': {
        this.close(true);
        const m = this.messages.at(-1);
        if (m) m.finish = text(c.finishReason) || 'stop';
        return;
      }
      case 'error': {
        this.close(true);
        this.current().error = text(c.errorText) || 'The answer failed.';
        return;
      }
      case 'abort':
        this.close(true);
        this.current().aborted = text(c.reason) || 'The answer was stopped.';
        return;
    }
    if (c.type.startsWith('tool-')) this.tool(c);
    else if (c.type.startsWith('data-')) this.add({ kind: 'data', name: c.type.slice(5), value: c.data });
    // All else is nothing to look at: metadata of messages.
  }

  private message(id: string): Message {
    this.close(true);
    const m: Message = { id, steps: [] };
    if (this.messages.length < most) this.messages.push(m);
    return m;
  }

  /** current is the message that is being written. */
  private current(): Message {
    const m = this.messages.at(-1);
    return m && !m.finish ? m : this.message('');
  }

  /**
   * step begins a step. A second one with the same id means that the answer which began with the first broke off and is given
   * again: what lies between counts no more. Source: agent.StreamName.
   */
  private step(id: string): void {
    let again = 0;
    if (id) {
      for (let i = this.messages.length - 1; i >= 0; i--) {
        const m = this.messages[i]!;
        const at = m.steps.findIndex((s) => s.id === id);
        if (at < 0) continue;
        again = m.steps[at]!.again + 1;
        m.steps.splice(at);
        m.finish = m.error = m.aborted = undefined;
        this.messages.splice(i + 1);
        break;
      }
    }
    this.close(false);
    const m = this.current();
    if (m.steps.length < most) m.steps.push({ id, parts: [], open: true, again, version: 0 });
  }

  private last(): Step {
    const m = this.current();
    let s = m.steps.at(-1);
    if (!s) m.steps.push((s = { id: '', parts: [], open: true, again: 0, version: 0 }));
    return s;
  }

  private add<P extends Part>(p: P): P | undefined {
    const s = this.last();
    s.version++;
    if (s.parts.length >= most) return undefined;
    s.parts.push(p);
    return p;
  }

  private block(kind: 'text' | 'reasoning', id: string): TextPart | undefined {
    return this.last().parts.findLast((p): p is TextPart => p.kind === kind && p.id === id && p.open);
  }

  /** close ends what is open of the last step, or, where all of it ends, of the message. */
  private close(all: boolean): void {
    const steps = this.messages.at(-1)?.steps ?? [];
    for (const s of all ? steps : steps.slice(-1)) {
      if (!s.open && !all) continue;
      s.open = false;
      s.version++;
      for (const p of s.parts) if (p.kind === 'text' || p.kind === 'reasoning') p.open = false;
    }
  }

  /** call finds a call of a tool, which may be of an earlier step. */
  call(id: string): { part: ToolPart; step: Step } | undefined {
    for (const m of [...this.messages].reverse())
      for (const step of [...m.steps].reverse()) {
        const part = step.parts.find((p): p is ToolPart => p.kind === 'tool' && p.call === id);
        if (part) return { part, step };
      }
    return undefined;
  }

  private tool(c: Chunk): void {
    const id = text(c.toolCallId);
    let found = this.call(id);
    if (!found) {
      const part = this.add<ToolPart>({ kind: 'tool', call: id, name: text(c.toolName), inputText: '', hasInput: false, state: 'writing', preliminary: false, byProvider: !!c.providerExecuted });
      if (!part) return;
      found = { part, step: this.last() };
    }
    const { part: t, step } = found;
    step.version++;
    if (c.toolName) t.name = text(c.toolName);
    switch (c.type) {
      case 'tool-input-delta':
        if (t.inputText.length < longest) t.inputText += text(c.inputTextDelta);
        break;
      case 'tool-input-available':
        t.input = c.input;
        t.hasInput = true;
        if (t.state === 'writing') t.state = 'running';
        break;
      case 'tool-input-error':
        t.input = c.input;
        t.hasInput = c.input !== undefined;
        t.error = text(c.errorText);
        t.state = 'failed';
        break;
      case 'tool-approval-request':
        t.approval = text(c.approvalId);
        t.state = 'asked';
        break;
      case 'tool-output-available':
        // What an agent has said stays to be seen when its last word takes its place.
        t.work = (c.preliminary ? workOf(c.output) : undefined) ?? t.work;
        t.output = c.preliminary && t.work ? undefined : c.output;
        t.preliminary = !!c.preliminary;
        t.state = c.preliminary ? 'running' : t.error === undefined ? 'done' : 'failed';
        break;
      case 'tool-output-error':
        t.error = text(c.errorText);
        t.state = 'failed';
        break;
      case 'tool-output-denied':
        t.state = 'denied';
        break;
    }
  }
}

/** deepest is how many agents may be tools of each other, mostParts how many parts of one are shown. */
const deepest = 5;
const mostParts = 500;

const states: Record<string, ToolPart['state']> = { 'input-streaming': 'writing', 'input-available': 'running', 'output-available': 'done', 'output-error': 'failed', 'output-denied': 'denied', 'approval-requested': 'asked' };

/** workOf are the parts of a message that an agent, which is a tool, has written so far; undefined if it is none. Source: agent.AsTool. */
export function workOf(output: unknown, depth = 0): Part[] | undefined {
  const m = output as { role?: unknown; parts?: unknown } | null;
  if (!m || typeof m !== 'object' || typeof m.role !== 'string' || !Array.isArray(m.parts) || depth > deepest) return undefined;
  const parts: Part[] = [];
  for (const p of m.parts.slice(-mostParts) as (Record<string, unknown> | null)[]) {
    if (!p || typeof p !== 'object') continue;
    const kind = text(p.type);
    if (kind === 'text' || kind === 'reasoning') parts.push({ kind, id: '', text: text(p.text).slice(0, longest), open: p.state === 'streaming' });
    else if (kind === 'dynamic-tool') {
      const work = workOf(p.output, depth + 1);
      const preliminary = p.preliminary === true;
      parts.push({
        kind: 'tool',
        call: text(p.toolCallId),
        name: text(p.toolName),
        inputText: '',
        input: p.input,
        hasInput: p.input !== undefined,
        output: work ? undefined : p.output,
        error: p.errorText === undefined ? undefined : text(p.errorText),
        state: preliminary ? 'running' : (states[text(p.state)] ?? 'running'),
        preliminary,
        byProvider: false,
        work,
      });
    }
  }
  return parts;
}

/** callsIn are the calls of tools among parts, and those that tools have made which are agents. */
export function* callsIn(parts: readonly Part[]): Generator<string> {
  for (const p of parts) {
    if (p.kind !== 'tool') continue;
    yield p.call;
    if (p.work) yield* callsIn(p.work);
  }
}

/** address is where a file or a source is, unless it is the file itself. */
function address(url: unknown): string | undefined {
  const u = text(url);
  if (!u) return undefined;
  return u.startsWith('data:') ? `${Math.round((u.length * 3) / 4 / 1024)} KiB` : u.slice(0, 2000);
}

/** fromAnswer makes a step of what the log has of it: for agents that write nothing to the stream. */
export function fromAnswer(id: string, a: Answer): Step {
  const parts: Part[] = [];
  const content = a.message?.content;
  if (typeof content === 'string') parts.push({ kind: 'text', id: '', text: content, open: false });
  for (const p of Array.isArray(content) ? (content as (Record<string, unknown> | null)[]) : []) {
    if (!p || typeof p !== 'object') continue;
    if (p.type === 'text' || p.type === 'reasoning') parts.push({ kind: p.type, id: '', text: text(p.text), open: false });
    else if (p.type === 'tool-call')
      parts.push({ kind: 'tool', call: text(p.toolCallId), name: text(p.toolName), inputText: '', input: p.input, hasInput: true, state: 'done', preliminary: false, byProvider: !!p.providerExecuted });
    else parts.push({ kind: 'data', name: text(p.type), value: p });
  }
  return { id, parts, open: false, again: 0, version: 0 };
}
