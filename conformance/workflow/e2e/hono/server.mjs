// The routes of the SDK, and those of the tests, on Hono.
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { serve } from '@hono/node-server';
import { Hono } from 'hono';
import { resumeWebhook } from 'workflow/api';
import { handle } from './routes.mjs';

const built = new URL('./.well-known/workflow/v1/', import.meta.url); // by "workflow build"
const manifest = JSON.parse(readFileSync(new URL('manifest.json', built)));
const app = new Hono();

// The 4.8 line builds two CommonJS bundles, the 5.0 line a module that is both.
for (const name of ['flow.js', 'step.js', 'flow.mjs']) {
  const file = new URL(name, built);
  if (!existsSync(file)) continue;
  const { POST } = name.endsWith('.mjs') ? await import(file) : createRequire(import.meta.url)(file.pathname);
  app.all(`/.well-known/workflow/v1/${name.split('.')[0]}`, (c) => POST(c.req.raw));
}
// As the webhook's route that the SDK builds. The 5.0 line serializes requests of the platform
// alone; those of Hono's server are its own.
app.all('/.well-known/workflow/v1/webhook/:token', async (c) => {
  const body = /^(GET|HEAD)$/.test(c.req.method) ? undefined : await c.req.arrayBuffer();
  const request = new Request(c.req.url, { method: c.req.method, headers: c.req.header(), body });
  return resumeWebhook(c.req.param('token'), request).catch(() => new Response(null, { status: 404 }));
});
app.all('*', (c) => handle(c.req.raw, manifest));

serve({ fetch: app.fetch, overrideGlobalObjects: false, port: Number(process.env.PORT ?? 0), hostname: '127.0.0.1' }, (at) => console.log(`listening on http://127.0.0.1:${at.port}`));
