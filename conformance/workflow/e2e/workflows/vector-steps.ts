// The steps that import it.
import { Vector } from './vector';

export async function vector(...parts: number[]) {
  'use step';
  return new Vector(parts);
}

export async function total(vectors: Vector[]) {
  'use step';
  return vectors.reduce((sum, v) => sum.plus(v));
}
