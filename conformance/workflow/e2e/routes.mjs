// The routes by which tests start runs and look at them, for a server of any framework.
import { isUtf8 } from 'node:buffer';
import { getHookByToken, getRun, resumeHook, start } from 'workflow/api';
import { hydrateResourceIO, observabilityRevivers } from 'workflow/observability';
import { getWorld, healthCheck } from 'workflow/runtime';
import { subtract } from './workflows/direct.mjs';

// JSON has no words for some values. Bytes that are no text are shown as such.
const plain = (_, value) => {
  if (value instanceof Uint8Array) return isUtf8(value) ? { bytes: Buffer.from(value).toString() } : { base64: Buffer.from(value).toString('base64') };
  if (value instanceof Error) return { name: value.name, message: value.message, stack: value.stack };
  return typeof value === 'bigint' ? { bigint: String(value) } : value;
};
const text = (value) => JSON.stringify(value, plain) ?? 'null';
const json = (value, status = 200) => new Response(text(value), { status, headers: { 'content-type': 'application/json' } });
const lines = (values) => new Response(values.pipeThrough(new TransformStream({ transform: (value, to) => to.enqueue(new TextEncoder().encode(`${text(value)}\n`)) })));

// Steps that tests hold, by a token: a promise, and what resolves it.
const held = new Map();
const hold = (token) => {
  if (!held.has(token)) {
    const h = {};
    h.released = new Promise((resolve) => Object.assign(h, { release: resolve }));
    held.set(token, h);
  }
  return held.get(token);
};
globalThis.holds = (token) => hold(token).released;

// Those of the SDK do not know its errors.
const revivers = { ...observabilityRevivers, Error: (e) => e, FatalError: (e) => e };

/** Finds a function of the manifest by "name", or by "module:name" where several have it. */
function find(kind, manifest, name) {
  const [fn, module] = name.split(':').reverse();
  const found = Object.entries(manifest[kind]).filter(([file, fns]) => fn in fns && (!module || file.replace(/\.\w+$/, '').endsWith(`/${module}`)));
  if (found.length !== 1) throw new Error(`${found.length} ${kind} are ${name}: ${Object.keys(manifest[kind])}`);
  return found[0][1][fn];
}

const pages = async (list) => {
  const items = [];
  for (let cursor; ; ) {
    const page = await list({ limit: 3, cursor });
    items.push(...page.data);
    if (!page.hasMore) return items;
    cursor = page.cursor;
  }
};
const failure = (e) => ({ error: e.name, message: e.message, ...(e.cause && { cause: { name: e.cause.name, message: e.cause.message, code: e.cause.code ?? e.errorCode, stack: e.cause.stack, fatal: e.cause.fatal } }) });

const routes = {
  'POST /runs/:name': async ({ name, body, manifest }) => {
    const args = body.map((arg) => (arg?.step ? Object.assign(() => {}, find('steps', manifest, arg.step)) : arg));
    const workflow = name.startsWith('workflow//') ? { workflowId: name } : find('workflows', manifest, name);
    return json({ runId: (await start(workflow, args)).runId });
  },
  'GET /runs/:name/result': async ({ name }) => {
    const run = getRun(name);
    try {
      return json({ result: await run.returnValue });
    } catch (e) {
      return json({ status: await run.status, ...failure(e) });
    }
  },
  'GET /runs/:name/result-stream': async ({ name }) => lines(await getRun(name).returnValue),
  'GET /runs/:name/data': async ({ name, world }) => json(hydrateResourceIO(await world.runs.get(name), revivers)),
  'GET /runs/:name/bare': async ({ name, world }) => json(await world.runs.get(name, { resolveData: 'none' })),
  'GET /runs/:name/steps': async ({ name, world }) => json((await pages((pagination) => world.steps.list({ runId: name, pagination }))).map((step) => hydrateResourceIO(step, revivers))),
  'GET /runs/:name/events': async ({ name, world }) => json((await pages((pagination) => world.events.list({ runId: name, pagination }))).map(({ eventId, eventType, correlationId, createdAt }) => ({ eventId, eventType, correlationId, createdAt }))),
  'GET /runs/:name/hooks': async ({ name, world }) => json((await pages((pagination) => world.hooks.list({ runId: name, pagination }))).map(({ token }) => token)),
  'GET /runs/:name/stream': ({ name, query }) => lines(getRun(name).getReadable({ startIndex: query.has('from') ? Number(query.get('from')) : undefined, namespace: query.get('namespace') ?? undefined })),
  'GET /runs/:name/tail': async ({ name, query }) => {
    const values = getRun(name).getReadable({ namespace: query.get('namespace') ?? undefined });
    const tail = await values.getTailIndex();
    await values.cancel();
    return json(tail);
  },
  // The stream of a run without a namespace, by pages: how many chunks there are, and how many pages.
  'GET /runs/:name/chunks': async ({ name, world }) => {
    const stream = `${name.replace('wrun_', 'strm_')}_user`;
    const get = (options) => (world.streams ? world.streams.getChunks(name, stream, options) : world.getStreamChunks(stream, name, options));
    const sizes = [];
    for (let cursor; ; ) {
      const page = await get({ limit: 1, cursor });
      sizes.push(page.data.length);
      if (!page.hasMore) return json({ sizes, done: page.done });
      cursor = page.cursor;
    }
  },
  'POST /runs/:name/cancel': async ({ name }) => {
    await getRun(name).cancel();
    return json({});
  },
  // The runs of a workflow, the oldest first.
  'GET /list/:name': async ({ name, query, manifest, world }) => {
    const filter = { workflowName: find('workflows', manifest, name).workflowId, status: query.get('status') ?? undefined, resolveData: 'none' };
    return json((await pages((p) => world.runs.list({ ...filter, pagination: { ...p, sortOrder: 'asc' } }))).map(({ runId }) => runId));
  },
  'GET /hooks/:name': async ({ name }) => {
    const hook = await getHookByToken(name);
    return json({ runId: hook.runId, metadata: await hook.metadata }); // a promise in the 5.0 line
  },
  'POST /hooks/:name': async ({ name, body }) => json({ runId: (await resumeHook(await getHookByToken(name), body)).runId }),
  'POST /release/:name': ({ name }) => {
    hold(name).release();
    return json({});
  },
  'POST /subtract/:name': async ({ body }) => json(await subtract(...body)),
  'GET /todos/:name': ({ name }) => json({ todo: Number(name) }),
  // The 5.0 line has one endpoint, and takes no name.
  'GET /health/:name': async ({ name, world }) => json(await healthCheck(world, ...[name].slice(3 - healthCheck.length), { timeout: 30_000 })),
};

/** Answers a request. The manifest is that of the app's build. */
export async function handle(request, manifest) {
  const { pathname, searchParams: query } = new URL(request.url);
  const [, kind, name, what] = pathname.split('/').map(decodeURIComponent);
  const route = routes[`${request.method} /${kind}/:name${what ? `/${what}` : ''}`];
  if (!route) return json({ error: 'not_found' }, 404);
  try {
    const body = request.method === 'POST' ? JSON.parse((await request.text()) || 'null') : undefined;
    return await route({ name, query, body, manifest, world: await getWorld() });
  } catch (e) {
    return json(failure(e), 500);
  }
}
