// Sums of steps. The module again.ts has functions of the same names.
import { sleep } from 'workflow';

export async function add(a: number, b: number) {
  'use step';
  return a + b;
}

export async function addTen(n: number) {
  'use workflow';
  let sum = n;
  for (const part of [1, 4, 5]) sum = await add(sum, part);
  return sum;
}

/** Steps after a sleep that does not end meanwhile. */
export async function besideSleep() {
  'use workflow';
  let woken = false;
  void sleep('1d').then(() => {
    woken = true;
  });
  const sums: number[] = [];
  for (let i = 1; i <= 3; i++) sums.push(await add(sums.at(-1) ?? 0, i));
  return { sums, woken };
}
