// What the log of a run says of its agent: who asked what, what each call of a model took and cost, and what waits for an answer.
import { written } from '../../json';
import { text } from './conversation';
import type { Answer, Event, Payload, Question } from './types';

export interface Call {
  id: string;
  /** agent.model, or tool. and a name */
  name: string;
  status: 'running' | 'completed' | 'failed' | 'retrying';
  startedAt?: number;
  endedAt?: number;
  attempt: number;
  answer?: Answer;
  error?: string;
}

export interface Waiting extends Question {
  hook: string;
  token: string;
}

export interface Log {
  input?: Payload | null;
  /** steps of the workflow by their ids, in the order in which they began */
  calls: Map<string, Call>;
  /** questions that wait, by the ids of the calls of tools */
  waiting: Map<string, Waiting>;
  /** answers that were given, by the same */
  answered: Map<string, { approved: boolean; reason?: string; by?: string }>;
  attributes: Record<string, string>;
  status?: 'completed' | 'failed' | 'cancelled';
  error?: string;
  code?: string;
  endedAt?: number;
  startedAt?: number;
}

export const newLog = (): Log => ({ calls: new Map(), waiting: new Map(), answered: new Map(), attributes: {} });

/** words is what an error says, of which nobody knows what it is. */
export function words(p: Payload | null | undefined): string {
  const v = p?.json;
  if (typeof v === 'string') return v;
  if (v && typeof v === 'object') {
    const m = (v as { message?: unknown }).message;
    return typeof m === 'string' ? m : (written(v) ?? '');
  }
  return p?.base64 ? 'The error is sealed.' : '';
}

/** asked is the question of a hook, if it is one for an approval. */
export function asked(p: Payload | null | undefined): Question | undefined {
  const q = p?.json as Partial<Question> | undefined;
  if (!q || typeof q !== 'object' || typeof q.call_id !== 'string' || q.approval_id !== 'approval-' + q.call_id) return undefined;
  return { approval_id: q.approval_id, call_id: q.call_id, agent: text(q.agent), tool: text(q.tool), input: q.input, signed: q.signed === true };
}

/** answerOf is an answer with the types that it should have: programs write logs. */
function answerOf(a: Answer): Answer {
  const u = a.usage;
  const n = (v: unknown) => (typeof v === 'number' && Number.isFinite(v) ? v : 0);
  return {
    agent: text(a.agent),
    model: text(a.model),
    generation_id: text(a.generation_id),
    message: a.message && typeof a.message === 'object' ? { content: a.message.content } : undefined,
    usage:
      u && typeof u === 'object'
        ? { calls: n(u.calls), input: n(u.input), cache_read: n(u.cache_read), output: n(u.output), reasoning: n(u.reasoning), cost: Number.isFinite(Number(text(u.cost) || NaN)) ? text(u.cost) : '0', cost_known: u.cost_known === true }
        : undefined,
  };
}

/** note takes the next event. */
export function note(log: Log, e: Event, hooks: Map<string, string>): void {
  const at = Date.parse(e.at);
  const id = e.id ?? '';
  const step = () => {
    let c = log.calls.get(id);
    if (!c) log.calls.set(id, (c = { id, name: e.name ?? '', status: 'running', attempt: 0 }));
    if (e.name) c.name = e.name;
    c.attempt = Math.max(c.attempt, e.attempt ?? 0);
    if (e.started_at) c.startedAt = Math.min(c.startedAt ?? Infinity, Date.parse(e.started_at));
    return c;
  };
  switch (e.type) {
    case 'run_created':
      log.input = e.payload;
      log.startedAt = at;
      Object.assign(log.attributes, e.attributes);
      break;
    case 'attr_set':
      Object.assign(log.attributes, e.attributes);
      break;
    case 'step_created':
      step();
      break;
    case 'step_started': {
      const c = step();
      c.status = 'running';
      c.startedAt ??= at;
      break;
    }
    case 'step_completed': {
      const c = step();
      c.status = 'completed';
      c.endedAt = at;
      c.startedAt ??= at;
      c.error = undefined;
      if (c.name === 'agent.model' && e.payload?.json && typeof e.payload.json === 'object') c.answer = answerOf(e.payload.json as Answer);
      break;
    }
    case 'step_failed':
    case 'step_retrying': {
      const c = step();
      c.status = e.type === 'step_failed' ? 'failed' : 'retrying';
      c.error = words(e.payload) || e.code;
      if (e.type === 'step_failed') c.endedAt = at;
      break;
    }
    case 'hook_created': {
      const q = asked(e.payload);
      if (!q || !e.token) break;
      hooks.set(id, q.call_id);
      log.waiting.set(q.call_id, { ...q, hook: id, token: e.token });
      break;
    }
    case 'hook_received': {
      const call = hooks.get(id);
      if (call === undefined) break;
      const v = e.payload?.json as unknown;
      const a = typeof v === 'boolean' ? { approved: v } : ((v ?? {}) as { approved?: boolean; reason?: string; by?: string; signature?: unknown });
      if (typeof a.approved !== 'boolean') break; // it is none, and the question stays
      if (log.waiting.get(call)?.signed && !('signature' in a && a.signature)) break; // so does one that takes a signature
      log.waiting.delete(call);
      log.answered.set(call, { approved: a.approved, reason: typeof a.reason === 'string' ? a.reason : undefined, by: typeof a.by === 'string' ? a.by : undefined });
      break;
    }
    case 'hook_disposed': {
      const call = hooks.get(id);
      if (call !== undefined) log.waiting.delete(call);
      break;
    }
    case 'run_completed':
    case 'run_failed':
    case 'run_cancelled':
      log.status = e.type.slice(4) as Log['status'];
      log.endedAt = at;
      log.waiting.clear();
      if (e.type === 'run_failed') {
        log.error = words(e.payload);
        log.code = e.code;
      } else if (e.reason) log.error = e.reason;
      break;
  }
}
