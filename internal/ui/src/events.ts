// Server-sent events of the API. EventSource cannot send the session's key, so they are read as a stream is.
import { ApiError, send, type Query } from './api';
import { parse } from './json';
import { patience, pause } from './live';
import { whileSeen } from './seen';

/** silence is how long a stream may say nothing, heartbeats included, before it counts as broken: in ms. */
const silence = 40_000;

/** largest is how long an event may be, in characters; a record is a few thousand. */
const largest = 8 << 20;

/** final are errors that trying again does not mend. */
const final = new Set(['unauthenticated', 'permission_denied', 'not_found', 'invalid', 'not_supported']);

interface Options<T> {
  query?: Query;
  signal: AbortSignal;
  /** is told each time a connection is there; last is the id of the last event of those before it */
  onOpen?: (last: string) => void;
  onEvent: (value: T) => void;
  onBreak?: (e: ApiError) => void;
}

/**
 * follow reads events until signal, and takes the stream up after the last one when it breaks or ends, or when somebody looks at
 * the page again. It throws what cannot be mended.
 */
export async function follow<T>(to: string, o: Options<T>): Promise<void> {
  let last = '';
  let failed = 0;
  while (!o.signal.aborted) {
    try {
      await whileSeen(o.signal, (signal) =>
        once<T>(to, { ...o, signal }, last, (id, value) => {
          failed = 0;
          if (id) last = id;
          o.onEvent(value);
        }),
      );
    } catch (e) {
      if (o.signal.aborted) return;
      if (!(e instanceof ApiError) || final.has(e.code)) throw e;
      o.onBreak?.(e);
    }
    await pause(patience(failed++), o.signal);
  }
}

async function once<T>(to: string, o: Options<T>, last: string, take: (id: string, value: T) => void): Promise<void> {
  const stop = new AbortController();
  const abort = () => stop.abort();
  o.signal.addEventListener('abort', abort);
  if (o.signal.aborted) abort();
  let timer = window.setTimeout(abort, silence);
  try {
    const headers: Record<string, string> = { Accept: 'text/event-stream' };
    if (last) headers['Last-Event-ID'] = last;
    const answer = await send('GET', to, { query: o.query, signal: stop.signal, headers });
    o.onOpen?.(last);
    const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
    const events = new Events();
    for (;;) {
      const { done, value } = await reader.read();
      window.clearTimeout(timer);
      timer = window.setTimeout(abort, silence);
      if (done) return;
      for (const e of events.feed(value)) {
        if (e.type === 'error') {
          const { error } = JSON.parse(e.data) as { error: { code: string; message: string; hint?: string } };
          throw new ApiError(error.code, error.message, error.hint);
        }
        take(e.id, parse(e.data) as T);
      }
    }
  } catch (e) {
    if (e instanceof ApiError || o.signal.aborted) throw e;
    throw new ApiError('unavailable', 'The connection broke off');
  } finally {
    window.clearTimeout(timer);
    o.signal.removeEventListener('abort', abort);
  }
}

/** Events cuts a text that comes in pieces into events. Source: WHATWG HTML, 9.2.6; lines end as the daemon ends them. */
class Events {
  private rest = '';

  feed(text: string): { id: string; type: string; data: string }[] {
    const blocks = (this.rest + text).split('\n\n');
    this.rest = blocks.pop()!;
    if (this.rest.length > largest) throw new ApiError('too_large', 'The daemon sent an event that is too large');
    const all = [];
    for (const block of blocks) {
      let id = '';
      let type = '';
      const data: string[] = [];
      for (const line of block.split('\n')) {
        const colon = line.indexOf(':');
        if (colon <= 0) continue; // a comment, or nothing
        const value = line.slice(colon + (line[colon + 1] === ' ' ? 2 : 1));
        if (line.startsWith('id:')) id = value;
        else if (line.startsWith('event:')) type = value;
        else if (line.startsWith('data:')) data.push(value);
      }
      if (data.length) all.push({ id, type, data: data.join('\n') });
    }
    return all;
  }
}
