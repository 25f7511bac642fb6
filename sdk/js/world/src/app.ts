// The app's own server: deliveries are posted to it over loopback, as the SDK's runtime expects
// them, with a secret of the app.
import * as http from 'node:http';
import type { AddressInfo } from 'node:net';
import { Server } from 'node:net';

/** flowPath is where every app of the SDK handles workflows; stepPath is of the 4.x line. */
export const flowPath = '/.well-known/workflow/v1/flow';
export const stepPath = '/.well-known/workflow/v1/step';

interface Listening {
  servers: Set<Server>;
  waiters: Set<() => void>;
}

const key = Symbol.for('@cayhq/world/listening');

/** listening are the servers of this process. Those that listen before this module is loaded count. */
function listening(): Listening {
  const g = globalThis as unknown as Record<symbol, Listening | undefined>;
  if (g[key]) return g[key];
  const found: Listening = (g[key] = { servers: new Set(), waiters: new Set() });
  const add = (s: Server) => {
    found.servers.add(s);
    s.once('close', () => found.servers.delete(s));
    for (const wake of found.waiters) wake();
  };
  const handles = (process as unknown as { _getActiveHandles?: () => unknown[] })._getActiveHandles?.() ?? [];
  for (const h of handles) if (h instanceof Server && h.listening) add(h);
  const listen = Server.prototype.listen as (...args: unknown[]) => Server;
  (Server.prototype as { listen: unknown }).listen = function (this: Server, ...args: unknown[]) {
    this.once('listening', () => add(this));
    return listen.apply(this, args);
  };
  return found;
}

/** watch has servers be noticed from now on. */
export function watch(): void {
  listening();
}

function addressOf(s: Server): string | undefined {
  const at = s.address() as AddressInfo | string | null;
  if (!at || typeof at === 'string') return undefined;
  const host = at.address === '::' ? '127.0.0.1' : at.address === '0.0.0.0' ? '127.0.0.1' : at.address;
  return `http://${host.includes(':') ? `[${host}]` : host}:${at.port}`;
}

/** App posts to the app's server. */
export class App {
  private readonly agent = new http.Agent({ keepAlive: true });
  private url?: string;
  private asked = new WeakSet<Server>();

  get found(): boolean {
    return this.url !== undefined;
  }

  close(): void {
    this.agent.destroy();
  }

  /** lost has the server be looked for again. */
  lost(): void {
    this.url = undefined;
    this.asked = new WeakSet();
  }

  /** again has servers be asked that had no such routes: they may have by now. */
  again(): void {
    this.asked = new WeakSet();
    for (const wake of listening().waiters) wake();
  }

  /** find waits until a server of this process handles workflows, and returns its address. */
  async find(signal: AbortSignal): Promise<string> {
    if (this.url) return this.url;
    const set = process.env.CAY_APP_URL;
    if (set) return (this.url = set.replace(/\/$/, ''));
    const known = listening();
    for (;;) {
      let woken = false;
      let wake = () => {
        woken = true;
      };
      const note = () => wake();
      known.waiters.add(note);
      try {
        for (const s of known.servers) {
          const at = addressOf(s);
          if (!at || this.asked.has(s)) continue;
          this.asked.add(s);
          if (await this.handles(at)) return (this.url = at);
        }
        if (woken) continue;
        await new Promise<void>((resolve, reject) => {
          wake = resolve;
          const stop = () => reject(signal.reason);
          if (signal.aborted) stop();
          signal.addEventListener('abort', stop, { once: true });
        });
      } finally {
        known.waiters.delete(note);
      }
    }
  }

  /** handles asks a server whether it is the app: its route answers health checks. */
  private async handles(at: string): Promise<boolean> {
    try {
      const { status, body } = await this.post(`${at}${flowPath}?__health`, {}, new Uint8Array());
      return status === 200 && body.includes('"healthy"');
    } catch {
      return false; // it speaks something else
    }
  }

  /** post posts, and returns the answer however long that takes. */
  post(url: string, headers: Record<string, string>, body: Uint8Array): Promise<{ status: number; body: string }> {
    return new Promise((resolve, reject) => {
      const req = http.request(url, { method: 'POST', agent: this.agent, headers: { ...headers, 'content-length': body.length } }, (res) => {
        let text = '';
        res.setEncoding('utf8');
        res.on('data', (piece: string) => {
          if (text.length < 1 << 20) text += piece;
        });
        res.on('end', () => resolve({ status: res.statusCode ?? 0, body: text }));
        res.on('error', reject);
      });
      req.on('error', reject);
      req.end(body);
    });
  }
}
