// A server of the routes of the Workflow SDK, a pipeline, and a chat with a page.
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { serve } from '@hono/node-server';
import { convertToModelMessages, createUIMessageStreamResponse } from 'ai';
import { Hono } from 'hono';
import { getRun, start } from 'workflow/api';

const require = createRequire(import.meta.url);
const built = './.well-known/workflow/v1'; // by "workflow build"
const { agent, pipeline } = Object.assign({}, ...Object.values(require(`${built}/manifest.json`).workflows));
const model = process.env.MODEL ?? 'cay/scripted';
const app = new Hono();

for (const name of ['flow', 'step']) {
  const { POST } = require(`${built}/${name}.js`);
  app.post(`/.well-known/workflow/v1/${name}`, (c) => POST(c.req.raw));
}

app.post('/pipeline', async (c) => c.json({ id: (await start(pipeline, [await c.req.json()])).runId }));
app.get('/pipeline/:run', async (c) => {
  const run = getRun(c.req.param('run'));
  const status = await run.status;
  return c.json(status === 'completed' ? { status, results: await run.returnValue } : { status });
});

// The two routes that WorkflowChatTransport asks: an answer begins, and goes on after it broke off.
app.post('/api/chat', async (c) => {
  const { messages } = await c.req.json();
  const run = await start(agent, [model, await convertToModelMessages(messages)]);
  return createUIMessageStreamResponse({ stream: run.readable, headers: { 'x-workflow-run-id': run.runId } });
});
app.get('/api/chat/:run/stream', (c) => {
  const startIndex = Number(c.req.query('startIndex') ?? 0);
  return createUIMessageStreamResponse({ stream: getRun(c.req.param('run')).getReadable({ startIndex }) });
});

const page = async (c, file, type) => c.body(await readFile(new URL(file, import.meta.url)), 200, { 'content-type': type });
app.get('/', (c) => page(c, 'page/index.html', 'text/html; charset=utf-8'));
app.get('/chat.js', (c) => page(c, 'page/built/chat.js', 'text/javascript'));
app.onError((e, c) => c.json({ error: e.message }, 500));

serve({ fetch: app.fetch, port: Number(process.env.PORT ?? 3000), hostname: '127.0.0.1' }, (at) => console.log(`listening on http://127.0.0.1:${at.port}`));
