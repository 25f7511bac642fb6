// An app with workflows: a server of the routes that the SDK wants, and of those by which
// tests start runs and look at them. It prints its address when it listens.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { serve } from '@hono/node-server';
import { Hono } from 'hono';
import { getHookByToken, getRun, resumeHook, resumeWebhook, start } from 'workflow/api';

const require = createRequire(import.meta.url);
const built = './.well-known/workflow/v1'; // by "workflow build"
const workflows = Object.assign({}, ...Object.values(require(`${built}/manifest.json`).workflows));
const app = new Hono();

// The 4.8 line builds two CommonJS bundles, the 5.0 line a module that is both.
for (const name of ['flow.js', 'step.js', 'flow.mjs']) {
  const file = new URL(`${built}/${name}`, import.meta.url);
  if (!existsSync(file)) continue;
  const { POST } = name.endsWith('.mjs') ? await import(file) : require(fileURLToPath(file));
  app.post(`/.well-known/workflow/v1/${name.split('.')[0]}`, (c) => POST(c.req.raw));
}
// The SDK's 5.0 line serializes requests of the platform alone; those of Hono's server are its own.
app.all('/.well-known/workflow/v1/webhook/:token', async (c) => {
  const body = /^(GET|HEAD)$/.test(c.req.method) ? undefined : await c.req.arrayBuffer();
  return resumeWebhook(c.req.param('token'), new Request(c.req.url, { method: c.req.method, headers: c.req.header(), body }));
});

// JSON has no words for some of the values of workflows.
const plain = (_, value) => {
  if (value instanceof Map) return { Map: [...value] };
  if (value instanceof Set) return { Set: [...value] };
  if (value instanceof Uint8Array) return { bytes: [...value] };
  return typeof value === 'bigint' ? { bigint: String(value) } : value;
};
const json = (value, status) => new Response(JSON.stringify(value, plain), { status, headers: { 'content-type': 'application/json' } });

app.post('/runs/:workflow', async (c) => {
  const run = await start(workflows[c.req.param('workflow')], await c.req.json());
  return json({ runId: run.runId });
});
app.get('/runs/:run', async (c) => json({ status: await getRun(c.req.param('run')).status }));
app.get('/runs/:run/result', async (c) => {
  const run = getRun(c.req.param('run'));
  try {
    return json({ result: await run.returnValue });
  } catch (e) {
    return json({ status: await run.status, error: e.name, message: e.cause?.message ?? e.message });
  }
});
app.post('/runs/:run/cancel', async (c) => {
  await getRun(c.req.param('run')).cancel();
  return json({});
});
app.get('/runs/:run/stream', (c) => {
  const values = getRun(c.req.param('run')).getReadable({ startIndex: Number(c.req.query('from') ?? 0) });
  const lines = new TransformStream({ transform: (value, to) => to.enqueue(new TextEncoder().encode(`${JSON.stringify(value)}\n`)) });
  return new Response(values.pipeThrough(lines));
});
app.get('/hooks/:token', async (c) => json({ runId: (await getHookByToken(c.req.param('token'))).runId }));
app.post('/hooks/:token', async (c) => json({ runId: (await resumeHook(c.req.param('token'), await c.req.json())).runId }));
app.post('/let-go', (c) => {
  globalThis.letGo();
  return json({});
});
app.onError((e) => json({ error: e.name, message: e.message }, 500));

serve({ fetch: app.fetch, overrideGlobalObjects: false, port: Number(process.env.PORT ?? 0), hostname: '127.0.0.1' }, (at) => console.log(`listening on http://127.0.0.1:${at.port}`));
