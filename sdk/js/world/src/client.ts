// HTTP to the daemon.
import { createHmac } from 'node:crypto';
import * as http from 'node:http';
import * as https from 'node:https';
import { decode } from './cbor.ts';
import { errorOf, transportError, WorldError } from './errors.ts';

/** api is where the daemon serves what the SDK's own client of Vercel's service asks for. */
export const api = '/vercel/workflow/api';
export const queues = '/vercel/queue/api/v3';

export interface Request {
  body?: Uint8Array | string;
  type?: string;
  headers?: Record<string, string>;
  /** may be sent again when no answer has come, or the daemon has failed; by default reads alone */
  again?: boolean;
  signal?: AbortSignal;
}

export interface Answer {
  headers: http.IncomingHttpHeaders;
  body: Buffer;
}

const tries = 6;
const firstPause = 100; // ms, doubled each time
const failed = new Set([500, 502, 503, 504]); // of the daemon, or of a proxy before it

/** Client asks one daemon. */
export class Client {
  private readonly lib: typeof http | typeof https;
  private readonly agent: http.Agent;
  readonly base: URL;

  constructor(url: string, private readonly token: string) {
    this.base = new URL(url);
    this.lib = this.base.protocol === 'https:' ? https : http;
    this.agent = new this.lib.Agent({ keepAlive: true, keepAliveMsecs: 10_000, maxFreeSockets: 32 });
  }

  /** sign returns what only holders of the token can say of a text. */
  sign(text: string): string {
    return createHmac('sha256', this.token).update(text).digest('hex');
  }

  close(): void {
    this.agent.destroy();
  }

  /** open sends a request and returns the answer once its head is there. */
  open(method: string, path: string, r: Request = {}): Promise<http.IncomingMessage> {
    const { promise, resolve, reject } = withResolvers<http.IncomingMessage>();
    const headers: Record<string, string | number> = { ...r.headers, authorization: `Bearer ${this.token}` };
    if (r.type) headers['content-type'] = r.type;
    const body = typeof r.body === 'string' ? Buffer.from(r.body) : r.body;
    if (body || (method !== 'GET' && method !== 'DELETE')) headers['content-length'] = body?.length ?? 0;
    const req = this.lib.request(
      {
        protocol: this.base.protocol, hostname: this.base.hostname.replace(/^\[|\]$/g, ''), port: this.base.port,
        path: this.base.pathname.replace(/\/$/, '') + path, method, headers, agent: this.agent, signal: r.signal,
      },
      resolve,
    );
    req.on('error', reject);
    req.end(body);
    return promise;
  }

  /** call sends a request and returns the answer. Answers that are errors are thrown. */
  async call(method: string, path: string, r: Request = {}): Promise<Answer> {
    const what = `${method} ${path.split('?')[0]}`;
    const again = r.again ?? method === 'GET';
    for (let n = 1; ; n++) {
      let sent = false;
      try {
        const res = await this.open(method, path, r);
        sent = true;
        const status = res.statusCode ?? 0;
        const body = await collect(res);
        if (status >= 200 && status < 300) return { headers: res.headers, body };
        const err = errorOf(what, status, body, res.headers['retry-after']);
        if (!failed.has(status) || !again || n >= tries) throw err;
      } catch (err) {
        if (err instanceof WorldError || r.signal?.aborted) throw err;
        const never = !sent && refused.has((err as NodeJS.ErrnoException).code ?? ''); // nobody has read it
        if (!(again || never) || n >= tries) throw transportError(what, err);
      }
      await pause(firstPause * 2 ** (n - 1), r.signal);
    }
  }

  /** value is call for answers that are CBOR, or JSON. */
  async value<T>(method: string, path: string, r: Request = {}): Promise<T> {
    const { headers, body } = await this.call(method, path, r);
    try {
      return (headers['content-type']?.includes('json') ? JSON.parse(body.toString()) : decode(body)) as T;
    } catch (err) {
      throw new WorldError('WorkflowWorldError', `${method} ${path.split('?')[0]}: the answer is not understood: ${(err as Error).message}`, { code: 'PARSE_ERROR' });
    }
  }
}

const refused = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH']);

async function collect(res: http.IncomingMessage): Promise<Buffer> {
  const pieces: Buffer[] = [];
  for await (const piece of res) pieces.push(piece as Buffer);
  return pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces);
}

/** query is the query of a URL; what is undefined is left out. */
export function query(fields: Record<string, string | number | undefined>): string {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(fields)) if (v !== undefined) q.set(k, String(v));
  const s = q.toString();
  return s && `?${s}`;
}

export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => {
      clearTimeout(timer);
      reject(signal!.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', stop);
      resolve();
    }, ms);
    signal?.addEventListener('abort', stop, { once: true });
  });
}

/** withResolvers is Promise.withResolvers, which Node 20 has not. */
export function withResolvers<T>(): { promise: Promise<T>; resolve: (v: T) => void; reject: (e: unknown) => void } {
  let resolve!: (v: T) => void;
  let reject!: (e: unknown) => void;
  const promise = new Promise<T>((a, b) => {
    resolve = a;
    reject = b;
  });
  return { promise, resolve, reject };
}
