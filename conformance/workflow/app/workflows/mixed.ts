// A workflow with some of everything, for processes that are killed at random.
import { createHook, sleep } from 'workflow';
import { getRun, start } from 'workflow/api';
import { finish, say } from './stream';

/** A value that only a record can repeat, after a while in which a process can be killed. */
async function draw() {
  'use step';
  await new Promise((resolve) => setTimeout(resolve, Math.random() * 200));
  return Math.random();
}

export async function doubled(n: number) {
  'use workflow';
  await draw();
  await sleep(100);
  return 2 * n;
}

async function startDoubled(n: number) {
  'use step';
  return (await start(doubled, [n])).runId;
}

async function resultOf(run: string) {
  'use step';
  return (await getRun(run).returnValue) as number;
}

export async function mixed(n: number, token: string) {
  'use workflow';
  const hook = createHook<{ value: number }>({ token });
  const first = await draw();
  await say(first);
  const pair = await Promise.all([draw(), draw()]);
  await sleep(300);
  const child = await startDoubled(n);
  const { value } = await hook;
  const twice = await resultOf(child);
  await say(twice);
  await finish();
  return { first, pair, value, twice };
}
