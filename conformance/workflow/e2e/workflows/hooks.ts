// Hooks and webhooks.
import { createHook, createWebhook, type RequestWithResponse, sleep } from 'workflow';
import { say } from './tell';

type Payload = { value: unknown; secret?: string; last?: boolean };

/** Takes payloads by a hook until the last one. */
export async function collect(token: string, secret: string) {
  'use workflow';
  const values: Payload[] = [];
  using hook = createHook<Payload>({ token, metadata: { secret } });
  await say('waits');
  for await (const payload of hook) {
    values.push(payload);
    if (payload.last) break;
  }
  return values;
}

/** Takes one payload; the token is free when the run ends. */
export async function once(token: string, secret: string) {
  'use workflow';
  using hook = createHook<Payload>({ token, metadata: { secret } });
  await say('waits');
  const { value } = await hook;
  return { value, of: 'once' };
}

/** Takes one payload, gives the token back, and goes on. */
export async function release(token: string, until: string) {
  'use workflow';
  let value: unknown;
  {
    using hook = createHook<Payload>({ token });
    await say('waits');
    value = (await hook).value;
  }
  await say('released');
  await createHook({ token: until });
  return value;
}

async function processed(payload: Payload) {
  'use step';
  return { done: payload.value };
}

/** Takes payloads while it sleeps. */
export async function collectAsleep(token: string) {
  'use workflow';
  using hook = createHook<Payload>({ token });
  void sleep('1d');
  await say('waits');
  const values: unknown[] = [];
  for await (const payload of hook) {
    values.push(await processed(payload));
    await say(payload.value);
    if (payload.last) break;
  }
  return values;
}

async function answer(request: RequestWithResponse) {
  'use step';
  const text = await request.text();
  await request.respondWith(new Response(`you said ${text}`, { status: 201, headers: { 'x-said': text } }));
  return text;
}

/** Three webhooks: the SDK answers the first, the second has an answer, a step answers the third. */
export async function webhooks() {
  'use workflow';
  const first = createWebhook();
  const second = createWebhook({ respondWith: new Response('an answer made before', { status: 402 }) });
  const third = createWebhook({ respondWith: 'manual' });
  await say([first.token, second.token, third.token]);
  const got: unknown[] = [];
  for (const hook of [first, second]) {
    const request = await hook;
    got.push({ method: request.method, path: new URL(request.url).pathname, text: await request.text() });
  }
  const request = await third;
  got.push({ method: request.method, path: new URL(request.url).pathname, text: await answer(request) });
  return got;
}
