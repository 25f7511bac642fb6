// Workflows that wait for others, and that others read.
import { createHook, createWebhook } from 'workflow';
import { finish, say } from './stream';

/** Takes three values by a hook, in the order in which they come. */
export async function hook(token: string) {
  'use workflow';
  const values: unknown[] = [];
  const waiting = createHook<{ value: unknown; last?: boolean }>({ token });
  await say('waiting');
  for await (const payload of waiting) {
    values.push(payload.value);
    if (payload.last) break;
  }
  return values;
}

/** Answers the first request to its own address. */
export async function webhook() {
  'use workflow';
  const hook = createWebhook();
  await say(hook.url);
  const request = await hook;
  return { method: request.method, text: await read(request) };
}

async function read(request: Request) {
  'use step';
  return request.text();
}

/** Writes n values into the stream of the run. */
export async function stream(n: number) {
  'use workflow';
  for (let i = 0; i < n; i++) await say({ i });
  await finish();
  return n;
}
