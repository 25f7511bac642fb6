// Functions that throw, in a module of their own.
export function throwHere() {
  throw new Error('thrown by another module');
}

export function throwThere() {
  throwHere();
}

export async function stepThatThrows() {
  'use step';
  throwThere();
}
stepThatThrows.maxRetries = 0;
