// A workflow that gets instances of a class which it does not import.
import { total, vector } from './vector-steps';

export async function vectors() {
  'use workflow';
  const [a, b] = [await vector(1, 2), await vector(30, 40)];
  const sum = await total([a, b]);
  const again = await total([sum, a, b]);
  return { a: a.parts, sum: sum.parts, again: again.parts };
}
