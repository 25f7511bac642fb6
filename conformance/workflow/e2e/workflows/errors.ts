// Errors, and what becomes of them.
import { createHook, FatalError, getStepMetadata, RetryableError } from 'workflow';
import { stepThatThrows, throwThere } from './throwers';
import { say } from './tell';

function innermost() {
  throw new Error('from deep within');
}

function inner() {
  innermost();
}

export async function nested() {
  'use workflow';
  inner();
}

export async function crossFile() {
  'use workflow';
  throwThere();
}

async function throwsOnce() {
  'use step';
  throw new Error('thrown by the step');
}
throwsOnce.maxRetries = 0;

const caught = (e: unknown) => ({ message: (e as Error).message, stack: String((e as Error).stack), fatal: FatalError.is(e) });

export async function stepError() {
  'use workflow';
  return throwsOnce().then(() => 'nothing thrown', caught);
}

export async function stepErrorCrossFile() {
  'use workflow';
  return stepThatThrows().then(() => 'nothing thrown', caught);
}

async function thirdTime() {
  'use step';
  const { attempt } = getStepMetadata();
  if (attempt < 3) throw new Error(`attempt ${attempt} fails`);
  return attempt;
}

export async function retried() {
  'use workflow';
  return thirdTime();
}

async function fatal() {
  'use step';
  throw new FatalError('never again');
}

export async function fatalError() {
  'use workflow';
  await fatal();
}

export async function fatalCaught() {
  'use workflow';
  return fatal().then(() => 'nothing thrown', caught);
}

async function later(after: string) {
  'use step';
  const { attempt, stepStartedAt } = getStepMetadata();
  if (attempt === 1) throw new RetryableError('not yet', { retryAfter: after as '1s' });
  return { attempt, waited: Date.now() - stepStartedAt.getTime() };
}

export async function retriedLater(after: string) {
  'use workflow';
  return later(after);
}

async function withoutRetries() {
  'use step';
  throw new Error(`attempt ${getStepMetadata().attempt} is the only one`);
}
withoutRetries.maxRetries = 0;

export async function notRetried() {
  'use workflow';
  return withoutRetries().then(() => 'nothing thrown', caught);
}

async function ends(n: number) {
  'use step';
  return { twice: 2 * n, attempt: getStepMetadata().attempt };
}

/** A step after a signal, by which a test can first make the daemon fail. */
export async function signaled(token: string, n: number) {
  'use workflow';
  const hook = createHook({ token });
  await say('waits');
  await hook;
  return ends(n);
}

// The SDK compiles a call of a step into this, here of a step that no module has.
const unknownStep = (name: string) => (globalThis as any)[Symbol.for('WORKFLOW_USE_STEP')](`step//./workflows/errors//${name}`)();

export async function unknownCaught() {
  'use workflow';
  return unknownStep('notThere').then(() => 'nothing thrown', caught);
}

export async function unknownUncaught() {
  'use workflow';
  await unknownStep('notThereEither');
}

export class OutOfStock extends Error {
  constructor(
    readonly item: string,
    readonly left: number,
  ) {
    super(`${item} is out of stock`);
    this.name = 'OutOfStock';
  }
  static [Symbol.for('workflow-serialize')](e: OutOfStock) {
    return { item: e.item, left: e.left };
  }
  static [Symbol.for('workflow-deserialize')]({ item, left }: { item: string; left: number }) {
    return new OutOfStock(item, left);
  }
}

async function checks(value: unknown) {
  'use step';
  const e = value as OutOfStock;
  return { is: e instanceof OutOfStock, item: e.item, left: e.left, message: e.message };
}

/** An error of a class of the app, as a value into a step. */
export async function customError() {
  'use workflow';
  return checks(new OutOfStock('a screw', 0));
}
