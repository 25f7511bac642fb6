// An app of the Workflow SDK that is measured: the routes that the SDK wants, and two that run a
// workflow and answer how it went.
//
//   GET /steps?n=100             {"at": [...], "cpu": [...]}: when each step ran, and how much CPU
//                                this process had used, in milliseconds
//   GET /stream?n=100&pause=20   {"latency": [...]}: milliseconds from the write of each value until
//                                a reader in this process has it
//
// It prints its address when it listens, and ends when its input ends.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import { serve } from '@hono/node-server';
import { Hono } from 'hono';
import { start } from 'workflow/api';
import { getWorld } from 'workflow/runtime';

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

app.get('/steps', async (c) => {
  globalThis.marks = [];
  const run = await start(workflows.steps, [Number(c.req.query('n'))]);
  await run.returnValue;
  return c.json({ at: marks.map((m) => m.at), cpu: marks.map((m) => (m.cpu.user + m.cpu.system) / 1000) });
});

app.get('/stream', async (c) => {
  const run = await start(workflows.stream, [Number(c.req.query('n')), Number(c.req.query('pause'))]);
  const latency = [];
  for await (const value of run.getReadable()) latency.push(performance.now() - value.sent);
  await run.returnValue;
  return c.json({ latency });
});

app.onError((e, c) => c.json({ error: String(e.stack ?? e) }, 500));

process.stdin.on('end', () => process.exit()).resume();
serve({ fetch: app.fetch, overrideGlobalObjects: false, port: Number(process.env.PORT ?? 0), hostname: '127.0.0.1' }, async (at) => {
  // Some Worlds have workers, which their users start when the server starts.
  if (process.env.START_WORLD) await (await getWorld()).start();
  console.log(`listening on http://127.0.0.1:${at.port}`);
});
