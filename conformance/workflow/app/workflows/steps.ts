// Steps, and workflows of steps, that need nothing but the SDK.
import { createHook, FatalError, getStepMetadata, getWorkflowMetadata, RetryableError, sleep } from 'workflow';
import { finish, say, write } from './stream';

async function add(a: number, b: number) {
  'use step';
  return a + b;
}

export async function sequential(n: number) {
  'use workflow';
  let sum = 0;
  for (let i = 1; i <= n; i++) sum = await add(sum, i);
  return sum;
}

export async function parallel(n: number) {
  'use workflow';
  const sums = await Promise.all(Array.from({ length: n }, (_, i) => add(i, i)));
  return sums.reduce((a, b) => a + b, 0);
}

async function mirror(value: unknown) {
  'use step';
  return value;
}

/** Values that JSON has no form for, through a step and as the result. */
export async function values() {
  'use workflow';
  const sent = { map: new Map([['a', 1]]), set: new Set([1, 2]), at: new Date(0), big: 2n ** 70n, bytes: new Uint8Array([0, 255]), text: 'a\0b', nothing: undefined };
  const back = (await mirror(sent)) as typeof sent;
  const same = back.map.get('a') === 1 && back.set.has(2) && back.at.getTime() === 0 && back.big === sent.big && back.bytes[1] === 255 && back.text === sent.text && 'nothing' in back;
  return { ...back, same };
}

async function fatal() {
  'use step';
  await write(`fatal ${getStepMetadata().attempt}`);
  throw new FatalError('not again');
}

async function twice() {
  'use step';
  const { attempt } = getStepMetadata();
  await write(`twice ${attempt}`);
  if (attempt < 2) throw new RetryableError('once more', { retryAfter: '1s' });
  return attempt;
}

async function never() {
  'use step';
  await write(`never ${getStepMetadata().attempt}`);
  throw new Error('never works');
}
never.maxRetries = 1;

export async function errors() {
  'use workflow';
  const messages: string[] = [];
  const attempts = await twice();
  for (const step of [fatal, never]) {
    try {
      await step();
    } catch (e) {
      messages.push((e as Error).message);
    }
  }
  await finish();
  return { attempts, messages };
}

export async function fails() {
  'use workflow';
  throw new Error('the workflow itself fails');
}

/** Sleeps, and says between which times. */
export async function asleep(duration: number) {
  'use workflow';
  const from = await now();
  await say('asleep');
  await sleep(duration);
  return { from, until: await now(), run: getWorkflowMetadata().workflowRunId };
}

async function now() {
  'use step';
  return Date.now();
}

async function slow() {
  'use step';
  const { attempt } = getStepMetadata();
  await write('begins');
  // The first attempt lasts until its process is killed.
  if (attempt === 1) await new Promise(() => {});
  return attempt;
}

/** A step that the death of its process cuts off. */
export async function cutOff() {
  'use workflow';
  await add(1, 1);
  return slow();
}

async function hold() {
  'use step';
  await write('begins');
  // Until a test asks the app to let it go.
  await new Promise((resolve) => Object.assign(globalThis, { letGo: resolve }));
  return getStepMetadata().attempt;
}

/** A hook that takes a value while a step is under way, and a step beside it. */
export async function heldBeside(token: string) {
  'use workflow';
  const hook = createHook<{ value: number }>({ token });
  const step = hold();
  const { value } = await hook;
  await say('taken');
  const attempt = await step;
  await finish();
  return { value, attempt };
}

/** A step that lasts as long as a test wants. */
export async function held() {
  'use workflow';
  const attempt = await hold();
  await finish();
  return attempt;
}
