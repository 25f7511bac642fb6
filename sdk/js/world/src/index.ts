/**
 * A World of the Workflow SDK, its 4.x and 5.0 lines, that keeps runs on a cay daemon:
 *
 *     WORKFLOW_TARGET_WORLD=@cayhq/world CAY_URL=http://127.0.0.1:7070 CAY_TOKEN=...
 *
 * Deliveries come over one connection that the app opens, so that nothing has to be able to reach
 * the app. See docs/workflow-world.md.
 *
 * @module
 */
import { watch } from './app.ts';
import { Client } from './client.ts';
import { Deliveries } from './deliveries.ts';
import { deploymentId } from './deployment.ts';
import { Events } from './events.ts';
import { Queue } from './queue.ts';
import { specVersion } from './sdk.ts';
import { hooks, runs, steps } from './storage.ts';
import { flat, streams } from './streams.ts';

interface Shared {
  client(): Client;
  deployment(): string;
  deliveries: Deliveries;
}

const key = Symbol.for('@cayhq/world/shared/1');

/** shared is what all Worlds of this process have in common: bundlers load copies of the SDK. */
function shared(): Shared {
  const g = globalThis as unknown as Record<symbol, Shared | undefined>;
  if (g[key]) return g[key];
  let client: Client | undefined;
  let deployment: string | undefined;
  const s: Shared = {
    // Builds create Worlds, too, where no daemon is.
    client() {
      if (client) return client;
      const { CAY_URL: url, CAY_TOKEN: token } = process.env;
      if (!url || !token) throw new Error('@cayhq/world needs CAY_URL, the address of a cay daemon, and CAY_TOKEN, a token of it');
      return (client = new Client(url, token));
    },
    deployment: () => (deployment ??= deploymentId()),
    deliveries: undefined as unknown as Deliveries,
  };
  s.deliveries = new Deliveries(() => s.client(), s.deployment);
  return (g[key] = s);
}

/** configured reports whether this process runs the app, and is no build of it. */
function configured(): boolean {
  return Boolean(process.env.CAY_URL && process.env.CAY_TOKEN) && process.env.NEXT_PHASE !== 'phase-production-build';
}

/** createWorld returns the World that the environment describes. It connects when the app listens. */
export function createWorld() {
  const { client, deployment, deliveries } = shared();
  const connect = () => {
    if (configured()) deliveries.start();
  };
  if (configured()) {
    watch();
    connect();
  }
  const queue = new Queue(client, deployment, () => deliveries.secret(), connect);
  const events = new Events(client);
  const ofRuns = streams(client);
  return {
    specVersion: specVersion(),
    capabilities: { hookRetention: { active: true }, maxConcurrency: true, deploymentAffinity: true },

    getDeploymentId: async () => deployment(),
    queue: (...args: Parameters<Queue['publish']>) => queue.publish(...args),
    queueBatch: (...args: Parameters<Queue['publishMany']>) => queue.publishMany(...args),
    createQueueHandler: (...args: Parameters<Queue['handler']>) => queue.handler(...args),
    resolveLatestDeploymentId: () => queue.latest(),

    runs: runs(client),
    steps: steps(client),
    hooks: hooks(client),
    events: { create: events.create, createBatch: events.createBatch, get: events.get, list: events.list, listByCorrelationId: events.listByCorrelationId },
    streams: ofRuns,
    ...flat(ofRuns),

    /** start connects to the daemon; it waits for the app's server by itself. */
    async start() {
      client(); // which says what is missing
      watch();
      deliveries.start();
    },
    /** close ends the connection. What is being delivered goes on, and is delivered again if it cannot end. */
    async close() {
      delete (globalThis as unknown as Record<symbol, unknown>)[key];
      await deliveries.close();
      if (configured()) client().close();
    },
  };
}

export default createWorld;
