// A server of the routes of the Workflow SDK, and a chat with a page.
import { readFile } from 'node:fs/promises';
import { createModelCallToUIChunkTransform } from '@ai-sdk/workflow';
import { serve } from '@hono/node-server';
import { convertToModelMessages, createUIMessageStreamResponse } from 'ai';
import { Hono } from 'hono';
import { getRun, start } from 'workflow/api';

const built = new URL('.well-known/workflow/v1/', import.meta.url); // by "workflow build"
const { workflows } = JSON.parse(await readFile(new URL('manifest.json', built)));
const { agent } = Object.assign({}, ...Object.values(workflows));
const app = new Hono();

const { POST } = await import(new URL('flow.mjs', built));
app.post('/.well-known/workflow/v1/flow', (c) => POST(c.req.raw));

app.post('/api/chat', async (c) => {
  const { messages } = await c.req.json();
  const run = await start(agent, ['cay/scripted', await convertToModelMessages(messages)]);
  const stream = run.readable.pipeThrough(createModelCallToUIChunkTransform());
  return createUIMessageStreamResponse({ stream, headers: { 'x-workflow-run-id': run.runId } });
});
app.get('/api/chat/:run/stream', (c) => {
  const stream = getRun(c.req.param('run')).getReadable();
  return createUIMessageStreamResponse({ stream: stream.pipeThrough(createModelCallToUIChunkTransform({ uiStartIndex: Number(c.req.query('startIndex') ?? 0) })) });
});

const page = async (c, file, type) => c.body(await readFile(new URL(file, import.meta.url)), 200, { 'content-type': type });
app.get('/', (c) => page(c, 'page/index.html', 'text/html; charset=utf-8'));
app.get('/chat.js', (c) => page(c, 'page/built/chat.js', 'text/javascript'));
app.onError((e, c) => c.json({ error: e.message }, 500));

serve({ fetch: app.fetch, port: Number(process.env.PORT ?? 0), hostname: '127.0.0.1' }, (at) => console.log(`listening on http://127.0.0.1:${at.port}`));
