// A second module whose functions have the names of those in sums.ts.
export async function add(a: number, b: number) {
  'use step';
  return a + b + 0.5;
}

export async function addTen(n: number) {
  'use workflow';
  let sum = n;
  for (const part of [2, 3, 5]) sum = await add(sum, part);
  return sum;
}
