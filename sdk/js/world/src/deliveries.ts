// The connection over which the daemon hands this process the messages of its deployment.
import { randomBytes } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { App, flowPath, stepPath } from './app.ts';
import { Frames, type Frame } from './cbor.ts';
import { pause, type Client } from './client.ts';
import type { WorldError } from './errors.ts';
import { attemptHeader, messageHeader, secretHeader } from './queue.ts';

const firstPause = 50; // ms, doubled each time
const lastPause = 5_000;
const silence = 30_000; // ms; the daemon sends something every 10 s
const extendEvery = 60_000; // ms
const visibility = 300; // s, of a lease
const stepTopic = /^__([a-z][a-z0-9]*_)?wkf_step_/;

/** Deliveries keeps a connection to the daemon, and hands what comes over it to the app. */
export class Deliveries {
  private readonly instance = randomBytes(16).toString('hex');
  private readonly working = new Map<string, NodeJS.Timeout>(); // by receipt
  private readonly app = new App();
  private readonly ended = new AbortController();
  private running?: Promise<void>;

  constructor(private readonly client: () => Client, private readonly deployment: () => string) {}

  /**
   * secret is what the app's handler demands of deliveries. All processes of a deployment have the
   * same: a server that workers share hands a request to any of them.
   */
  secret(): string {
    return this.client().sign(`delivery to ${this.deployment()}`);
  }

  /** start connects once a server of this process handles workflows. It returns at once. */
  start(): void {
    if (this.ended.signal.aborted) return;
    if (!this.running) this.running = this.run();
    else if (!this.app.found) this.app.again();
  }

  async close(): Promise<void> {
    this.ended.abort(new Error('the World is closed'));
    await this.running;
    for (const timer of this.working.values()) clearInterval(timer);
    this.app.close();
  }

  private async run(): Promise<void> {
    const { signal } = this.ended;
    let failures = 0;
    while (!signal.aborted) {
      try {
        await this.app.find(signal);
        await this.connection(signal, () => {
          if (failures > 0) console.error(`cay: connected to ${this.client().base.origin} again`);
          failures = 0;
        });
      } catch (err) {
        if (signal.aborted) return;
        if (failures === 0) console.error(`cay: no workflow is delivered to deployment ${this.deployment()}: ${(err as Error).message}; trying again`);
      }
      const wait = pause(Math.min(firstPause * 2 ** failures, lastPause), signal).catch(() => undefined);
      failures++;
      await wait;
    }
  }

  /** connection takes deliveries until the connection ends. */
  private async connection(signal: AbortSignal, opened: () => void): Promise<void> {
    const one = new AbortController();
    const stop = () => one.abort(signal.reason);
    signal.addEventListener('abort', stop, { once: true });
    let res: IncomingMessage | undefined;
    try {
      res = await this.client().open('POST', `/v1/workflows/deployments/${encodeURIComponent(this.deployment())}/deliveries`, {
        type: 'application/json',
        body: JSON.stringify({ instance: this.instance, working: [...this.working.keys()] }),
        signal: one.signal,
      });
      if (res.statusCode !== 200) throw new Error(`${this.client().base.origin} answers ${res.statusCode} ${await text(res)}`);
      opened();
      res.socket.unref(); // the app's server is what keeps the process
      await this.take(res);
    } finally {
      signal.removeEventListener('abort', stop);
      one.abort();
      res?.destroy();
    }
  }

  private take(res: IncomingMessage): Promise<void> {
    return new Promise((resolve, reject) => {
      const frames = new Frames();
      const quiet = setTimeout(() => reject(new Error(`the daemon has said nothing for ${silence / 1000} s`)), silence);
      quiet.unref();
      const end = (err?: Error) => {
        clearTimeout(quiet);
        if (err) reject(err);
        else resolve();
      };
      res.on('data', (piece: Buffer) => {
        quiet.refresh();
        try {
          for (const f of frames.push(piece)) if (f.meta.receipt) void this.deliver(f);
        } catch (err) {
          end(err as Error);
        }
      });
      res.on('end', () => end());
      res.on('error', end);
      res.on('close', () => end(new Error('the connection broke')));
    });
  }

  /** deliver has the app handle one message, and tells the daemon how that went. */
  private async deliver({ meta, body }: Frame): Promise<void> {
    const receipt = meta.receipt as string;
    if (this.working.has(receipt)) return;
    const extend = setInterval(() => void this.extend(meta.topic, receipt), extendEvery);
    extend.unref();
    this.working.set(receipt, extend);
    try {
      await this.settle(receipt, await this.handle(meta, body));
    } finally {
      clearInterval(extend);
      this.working.delete(receipt);
    }
  }

  private async handle(meta: Record<string, any>, body: Uint8Array): Promise<{ error?: string; retry_after?: number }> {
    try {
      const url = (await this.app.find(this.ended.signal)) + (stepTopic.test(meta.topic) ? stepPath : flowPath);
      const { status, body: said } = await this.app.post(
        url,
        { 'content-type': meta.type, [secretHeader]: this.secret(), [messageHeader]: meta.id, [attemptHeader]: String(meta.attempt) },
        body,
      );
      if (status >= 200 && status < 300) return {};
      let error = `POST ${url} answers ${status}: ${said.slice(0, 2000)}`;
      let retryAfter: number | undefined;
      try {
        ({ error, retryAfter } = { error, ...JSON.parse(said) });
      } catch {
        // Not of the World's handler.
      }
      console.error(`cay: a delivery failed (message ${meta.id}, attempt ${meta.attempt}): ${error}`);
      return { error, ...(retryAfter !== undefined && { retry_after: retryAfter }) };
    } catch (err) {
      this.app.lost();
      return { error: `the app's server does not answer: ${(err as Error).message}` };
    }
  }

  private async settle(receipt: string, outcome: object): Promise<void> {
    try {
      await this.client().call('POST', `/v1/workflows/deployments/${encodeURIComponent(this.deployment())}/deliveries/${encodeURIComponent(receipt)}`, {
        type: 'application/json',
        body: JSON.stringify(outcome),
        again: true,
      });
    } catch (err) {
      if ((err as WorldError).status === 404) return; // it was another's by then
      console.error(`cay: the daemon could not be told how a delivery went, and will deliver it again: ${(err as Error).message}`);
    }
  }

  private async extend(topic: string, receipt: string): Promise<void> {
    try {
      await this.client().call('PATCH', `/vercel/queue/api/v3/topic/${encodeURIComponent(topic)}/consumer/default/lease/${encodeURIComponent(receipt)}`, {
        type: 'application/json',
        body: JSON.stringify({ visibilityTimeoutSeconds: visibility }),
        again: true,
      });
    } catch (err) {
      if ((err as WorldError).status !== 404) console.error(`cay: a lease could not be extended: ${(err as Error).message}`);
    }
  }
}

async function text(res: IncomingMessage): Promise<string> {
  let s = '';
  for await (const piece of res) s += piece;
  try {
    return JSON.parse(s).error?.message ?? s;
  } catch {
    return s;
  }
}
