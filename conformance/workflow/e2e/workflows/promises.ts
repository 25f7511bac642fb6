// Steps at the same time.
import { FatalError, sleep } from 'workflow';

async function after(ms: number, value: string) {
  'use step';
  await new Promise((resolve) => setTimeout(resolve, ms));
  return value;
}

async function refuse() {
  'use step';
  throw new FatalError('refused');
}

export async function all() {
  'use workflow';
  const [a, b, c] = await Promise.all([after(300, 'a'), after(1, 'b'), after(100, 'c')]);
  return [a, b, c].join('');
}

export async function race() {
  'use workflow';
  return Promise.race([after(6000, 'slow'), after(50, 'fast'), after(7000, 'slower')]);
}

export async function any() {
  'use workflow';
  return Promise.any([refuse(), after(50, 'works'), after(5000, 'late')]);
}

/** Takes steps off a pool in the order in which they end. */
export async function pool(delays: number[]) {
  'use workflow';
  const left = new Map(delays.map((ms, i) => [i, after(ms, String(i)).then(Number)]));
  const done: number[] = [];
  while (left.size > 0) {
    const i = await Promise.race(left.values());
    left.delete(i);
    done.push(i);
  }
  return done;
}

/** A sleep against a step, both ways. */
export async function deadline() {
  'use workflow';
  const first = await Promise.race([sleep('1s').then(() => 'the sleep'), after(4000, 'the step')]);
  const second = await Promise.race([sleep('1h').then(() => 'the sleep'), after(10, 'the step')]);
  return [first, second];
}
