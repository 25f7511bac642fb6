// Sleeps.
import { sleep } from 'workflow';
import { now } from './values';
import { say } from './tell';

export async function sleeping(ms: number) {
  'use workflow';
  const from = Date.now();
  await say('sleeps');
  await sleep(ms);
  return { from, until: Date.now() };
}

export async function sleepingTogether(n: number) {
  'use workflow';
  const from = Date.now();
  await Promise.all(Array.from({ length: n }, () => sleep('1s')));
  return { from, until: Date.now() };
}

/** A sleep in each turn of a loop. */
export async function sleepingInLoop(turns: number, ms: number) {
  'use workflow';
  const at: number[] = [];
  for (let i = 0; i < turns; i++) {
    if (i > 0) await sleep(ms);
    at.push(await now());
  }
  return at;
}
