// A module in a folder whose name begins with a dot.
async function twice(n: number) {
  'use step';
  return 2 * n;
}

export async function wellKnown(n: number) {
  'use workflow';
  return 1 + (await twice(n));
}
