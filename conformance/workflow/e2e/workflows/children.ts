// Runs that other runs start.
import { getRun, start } from 'workflow/api';
import { add } from './sums';

export async function child(n: number) {
  'use workflow';
  return { of: n, result: await add(n, n) };
}

async function startChild(n: number) {
  'use step';
  return (await start(child, [n])).runId;
}

async function resultOf(run: string) {
  'use step';
  return getRun(run).returnValue;
}

export async function parent(n: number) {
  'use workflow';
  const run = await startChild(n);
  return { run, result: await resultOf(run) };
}
