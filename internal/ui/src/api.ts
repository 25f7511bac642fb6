// The HTTP API, as docs/api.md has it. Everything the pages know comes from here.
import { signal } from '@preact/signals';
import { percent } from './bytes';
import { forgetDownloads } from './download';
import { parse, written } from './json';

const keyName = 'cay.key';

/** loggedIn is false until this origin has the key of a session, and once a session has ended. */
export const loggedIn = signal(readKey() !== '');

function readKey(): string {
  try {
    return localStorage.getItem(keyName) ?? '';
  } catch {
    return '';
  }
}

function keepKey(key: string): void {
  if (key) localStorage.setItem(keyName, key);
  else localStorage.removeItem(keyName);
  loggedIn.value = key !== '';
}

// Somebody logged in or out in another page of this origin.
window.addEventListener('storage', (e) => {
  if (e.key === keyName || e.key === null) loggedIn.value = readKey() !== '';
});

/** ApiError is an error in the API's words, or 'unavailable' if nothing answered. */
export class ApiError extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly hint = '',
    readonly status = 0,
  ) {
    super(message);
  }
}

type Value = string | number | boolean | undefined;
export type Query = Record<string, Value | string[]>;

export interface Options {
  query?: Query;
  json?: unknown;
  body?: BodyInit;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

function address(path: string, query: Query = {}): string {
  const q: string[] = [];
  for (const [k, v] of Object.entries(query)) {
    for (const one of Array.isArray(v) ? v : [v]) {
      if (one !== undefined && one !== '' && one !== false) q.push(`${encodeURIComponent(k)}=${percent(String(one))}`);
    }
  }
  return q.length ? `${path}?${q.join('&')}` : path;
}

/** path joins elements of a path, each escaped. */
export function path(...elements: string[]): string {
  return '/v1/' + elements.map(encodeURIComponent).join('/');
}

/** send makes a request in the session's name. It throws an ApiError unless the answer is good. */
export async function send(method: string, to: string, o: Options = {}): Promise<Response> {
  const headers: Record<string, string> = { 'Cay-Session-Key': readKey(), ...o.headers };
  let body = o.body;
  if (o.json !== undefined) {
    headers['Content-Type'] = 'application/json';
    body = written(o.json);
  }
  let answer: Response;
  try {
    answer = await fetch(address(to, o.query), { method, headers, body, signal: o.signal, credentials: 'same-origin', cache: 'no-store' });
  } catch (e) {
    if (o.signal?.aborted) throw e;
    throw new ApiError('unavailable', 'The daemon does not answer', 'Is "cay serve" running?');
  }
  if (answer.ok) return answer;
  const e = await errorOf(answer);
  if (e.code === 'unauthenticated' && !to.startsWith('/ui/')) keepKey('');
  throw e;
}

async function errorOf(answer: Response): Promise<ApiError> {
  try {
    const { error } = (await answer.json()) as { error: { code: string; message: string; hint?: string } };
    return new ApiError(error.code, error.message, error.hint, answer.status);
  } catch {
    return new ApiError('internal', `The daemon answered with status ${answer.status}`, '', answer.status);
  }
}

/** call is send for an answer of JSON, or none. */
export async function call<T>(method: string, to: string, o: Options = {}): Promise<T> {
  const answer = await send(method, to, o);
  if (answer.status === 204) return undefined as T;
  const v = parse(await answer.text()) as T & { error?: { code: string; message: string; hint?: string } };
  // What is asked for may have failed, and say so: that is a text.
  if (v && typeof v === 'object' && v.error && typeof v.error === 'object' && 'code' in v.error) throw new ApiError(v.error.code, v.error.message, v.error.hint);
  return v;
}

export const get = <T>(to: string, query?: Query, signal?: AbortSignal) => call<T>('GET', to, { query, signal });
export const post = <T>(to: string, json?: unknown) => call<T>('POST', to, { json });

/** silence is how long a stream may say nothing, heartbeats included, before it counts as broken: in ms. */
const silence = 40_000;

/** LineReader cuts a text that comes in pieces into lines, and throws the error that is one of them. */
class LineReader<T> {
  private rest = '';
  constructor(private readonly onLine: (line: T) => void) {}

  feed(text: string): void {
    const all = (this.rest + text).split('\n');
    this.rest = all.pop()!;
    for (const line of all) {
      if (!line.trim()) continue;
      const v = parse(line) as T & { error?: { code: string; message: string; hint?: string }; type?: string };
      if (v.error && typeof v.error === 'object' && (v.type === undefined || v.type === 'error')) {
        throw new ApiError(v.error.code, v.error.message, v.error.hint);
      }
      this.onLine(v);
    }
  }
}

/**
 * lines reads a stream of lines to its end, and throws what broke it. It reads from a WebSocket, since browsers have six
 * connections for all pages of an origin, and many WebSockets; where that is refused, from an answer, which says why.
 */
export async function lines<T>(to: string, o: Options & { onLine: (line: T) => void }): Promise<void> {
  const stop = new AbortController();
  const abort = () => stop.abort();
  o.signal?.addEventListener('abort', abort);
  if (o.signal?.aborted) abort();
  let timer = 0;
  const heard = () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(abort, silence);
  };
  heard();
  const reader = new LineReader(o.onLine);
  const feed = (text: string) => {
    heard();
    reader.feed(text);
  };
  try {
    if (!(await socketText(address(to, o.query), stop.signal, feed))) await answerText(to, { ...o, signal: stop.signal }, feed);
  } catch (e) {
    if (e instanceof ApiError && e.code === 'unauthenticated') keepKey(''); // the login ended meanwhile
    if (e instanceof ApiError || o.signal?.aborted) throw e;
    throw new ApiError('unavailable', 'The connection broke off');
  } finally {
    window.clearTimeout(timer);
    o.signal?.removeEventListener('abort', abort);
  }
}

/** socketText reads the texts of a WebSocket to its end. It returns false if it was never open, and throws if it breaks. */
function socketText(to: string, stop: AbortSignal, feed: (text: string) => void): Promise<boolean> {
  return new Promise((done, fail) => {
    if (stop.aborted) return fail(new Error('aborted'));
    const socket = openSocket(to, 'cay.lines');
    let open = false;
    const end = (settle: () => void) => {
      socket.onopen = socket.onmessage = socket.onclose = null;
      stop.removeEventListener('abort', abort);
      socket.close();
      settle();
    };
    const abort = () => end(() => fail(new Error('aborted')));
    stop.addEventListener('abort', abort);
    socket.onopen = () => {
      open = true;
    };
    socket.onmessage = (e) => {
      try {
        feed(e.data as string);
      } catch (error) {
        end(() => fail(error));
      }
    };
    socket.onclose = (e) => end(() => (!open ? done(false) : e.code === 1000 ? done(true) : fail(new Error('broken'))));
  });
}

async function answerText(to: string, o: Options, feed: (text: string) => void): Promise<void> {
  const answer = await send('GET', to, { ...o, headers: { Accept: 'application/x-ndjson' } });
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    feed(value);
  }
}

/** openSocket opens a WebSocket in the session's name. */
function openSocket(to: string, protocol: string): WebSocket {
  const url = new URL(to, location.href);
  url.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:';
  return new WebSocket(url, [protocol, 'cay.session.' + readKey()]);
}

/** openTerminal opens the WebSocket of a command's terminal, from a cursor on. */
export function openTerminal(sandbox: string, command: string, cursor: number): WebSocket {
  const socket = openSocket(address(path('sandboxes', sandbox, 'commands', command, 'terminal'), { cursor }), 'cay.terminal');
  socket.binaryType = 'arraybuffer';
  return socket;
}

export async function logIn(how: { token: string } | { code: string }): Promise<void> {
  const { key } = await call<{ key: string }>('POST', '/ui/login', { json: how });
  keepKey(key);
}

export async function logOut(): Promise<void> {
  try {
    await call('POST', '/ui/logout');
  } finally {
    keepKey('');
    void forgetDownloads();
  }
}

/** Page is one page of a list. */
export interface Page<T> {
  items: T[];
  next?: string;
}

/** upload sends a file as the body of a PUT, and says how much of it has gone. It throws an ApiError. */
export function upload(to: string, query: Query, file: Blob, onProgress: (sent: number) => void, signal: AbortSignal): Promise<void> {
  // fetch does not say how far it is.
  return new Promise((done, fail) => {
    const x = new XMLHttpRequest();
    const abort = () => x.abort();
    signal.addEventListener('abort', abort);
    x.upload.onprogress = (e) => onProgress(e.loaded);
    x.onloadend = () => {
      signal.removeEventListener('abort', abort);
      if (x.status >= 200 && x.status < 300) return done();
      if (signal.aborted) return fail(new ApiError('canceled', 'The upload was given up'));
      if (!x.status) return fail(new ApiError('unavailable', 'The connection broke off'));
      void errorOf(new Response(x.responseText, { status: x.status })).then((e) => {
        if (e.code === 'unauthenticated') keepKey('');
        fail(e);
      });
    };
    x.open('PUT', address(to, query));
    x.setRequestHeader('Cay-Session-Key', readKey());
    x.setRequestHeader('Content-Type', 'application/octet-stream');
    if (signal.aborted) return fail(new ApiError('canceled', 'The upload was given up'));
    x.send(file);
  });
}
