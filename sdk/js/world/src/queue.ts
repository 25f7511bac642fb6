// Messages: what is published, and the handler that the app's route calls for each delivery.
import { timingSafeEqual } from 'node:crypto';
import { decode, encode } from './cbor.ts';
import { query, queues, type Client } from './client.ts';
import { WorldError } from './errors.ts';

export interface PublishOptions {
  deploymentId?: string;
  idempotencyKey?: string;
  delaySeconds?: number;
  headers?: Record<string, string>;
  specVersion?: number;
}

interface Message {
  payload: Record<string, unknown>;
  queueName: string;
  deploymentId?: string;
}

export type Handler = (payload: unknown, meta: { attempt: number; queueName: string; messageId: string }) => Promise<unknown>;

// The headers of a delivery.
export const secretHeader = 'x-cay-delivery';
export const messageHeader = 'x-cay-message';
export const attemptHeader = 'x-cay-attempt';

const cborSince = 3;
// A longer sleep is a chain of messages: the runtime looks at the clock whenever it is woken.
const maxDelay = 364 * 24 * 3600;

/** Queue publishes messages of one deployment and takes its deliveries. */
export class Queue {
  constructor(
    private readonly client: () => Client,
    private readonly deployment: () => string,
    private readonly secret: () => string,
    private readonly connect: () => void,
  ) {}

  async publish(name: string, payload: Record<string, unknown>, o: PublishOptions = {}): Promise<{ messageId: string }> {
    this.connect();
    const to = o.deploymentId ?? this.deployment();
    const headers: Record<string, string> = { 'vqs-deployment-id': to };
    if (o.idempotencyKey) headers['vqs-idempotency-key'] = o.idempotencyKey;
    if (o.delaySeconds && o.delaySeconds > 0) headers['vqs-delay-seconds'] = String(Math.min(o.delaySeconds, maxDelay));
    if (typeof payload.runId === 'string') headers['x-vercel-workflow-run-id'] = payload.runId;
    if (typeof payload.stepId === 'string') headers['x-vercel-workflow-step-id'] = payload.stepId;
    const message: Message = { payload, queueName: name, deploymentId: to };
    const old = o.specVersion !== undefined && o.specVersion < cborSince;
    const path = `${queues}/topic/${encodeURIComponent(name.replace(/[^A-Za-z0-9_-]/g, '-'))}`;
    return this.client().value('POST', path, {
      headers,
      type: old ? 'application/json' : 'application/cbor',
      body: old ? JSON.stringify(message) : encode(message),
      again: Boolean(o.idempotencyKey), // another message at worst: deliveries may come twice
    });
  }

  async publishMany(name: string, messages: { message: Record<string, unknown>; opts?: PublishOptions }[]): Promise<object[]> {
    return Promise.all(
      messages.map(async ({ message, opts }) => {
        try {
          return await this.publish(name, message, opts);
        } catch (err) {
          const e = err as WorldError;
          return { messageId: null, error: e.message, retryable: e.status === undefined || e.status >= 500 || e.status === 429 };
        }
      }),
    );
  }

  /** handler returns what the app's route is to call with each request. */
  handler(prefix: string, handle: Handler): (req: Request) => Promise<Response> {
    this.connect();
    return async (req) => {
      if (!this.known(req.headers.get(secretHeader))) {
        return Response.json({ error: 'only the app itself delivers here: the message has not come over its connection to the daemon' }, { status: 401 });
      }
      const messageId = req.headers.get(messageHeader) ?? '';
      const bytes = new Uint8Array(await req.arrayBuffer());
      const isJSON = req.headers.get('content-type')?.startsWith('application/json');
      const message = (isJSON ? JSON.parse(Buffer.from(bytes).toString()) : decode(bytes)) as Message;
      if (!message?.queueName?.startsWith(prefix)) {
        return Response.json({ error: `queue ${message?.queueName} is not handled here` }, { status: 400 });
      }
      try {
        const result = await handle(message.payload, { attempt: Number(req.headers.get(attemptHeader)) || 1, queueName: message.queueName, messageId });
        const again = (result as { timeoutSeconds?: unknown } | undefined)?.timeoutSeconds;
        if (typeof again === 'number' && message.payload.invoke !== true) {
          // A message of its own: attempts count failures, and the runtime gives up after some.
          await this.publish(message.queueName, message.payload, {
            deploymentId: message.deploymentId, delaySeconds: again, ...(isJSON && { specVersion: 2 }),
          });
        }
        return Response.json({ ok: true });
      } catch (err) {
        const after = (err as WorldError)?.retryAfter;
        return Response.json({ error: String((err as Error)?.stack ?? err), ...(typeof after === 'number' && after > 0 && { retryAfter: after }) }, { status: 500 });
      }
    };
  }

  private known(secret: string | null): boolean {
    if (!secret) return false;
    const a = Buffer.from(secret);
    const b = Buffer.from(this.secret());
    return a.length === b.length && timingSafeEqual(a, b);
  }

  async latest(): Promise<string> {
    const path = `/api/v1/workflow/resolve-latest-deployment/${encodeURIComponent(this.deployment())}${query({})}`;
    return (await this.client().value<{ id: string }>('GET', path)).id;
  }
}
