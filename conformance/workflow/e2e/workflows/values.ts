// Values across steps, and what steps and workflows know of themselves.
import { fetch, getStepMetadata, getWorkflowMetadata } from 'workflow';

export async function now() {
  'use step';
  return Date.now();
}

async function withNull() {
  'use step';
  return 'before\0after';
}

export async function nullByte() {
  'use workflow';
  return withNull();
}

async function here() {
  'use step';
  return { step: getStepMetadata(), workflow: getWorkflowMetadata() };
}

export async function metadata() {
  'use workflow';
  const { workflowName, workflowRunId, workflowStartedAt, url } = getWorkflowMetadata();
  const { step, workflow } = await here();
  return { outside: { workflowName, workflowRunId, workflowStartedAt, url }, inside: workflow, step };
}

const noted = async <T>(body: () => Promise<T>) => ({ step: getStepMetadata(), workflow: getWorkflowMetadata(), value: await body() });

async function helped(label: string) {
  'use step';
  const { step, workflow, value } = await noted(async () => label);
  return { label: value, run: workflow.workflowRunId, step: step.stepId, attempt: step.attempt };
}

/** A helper of the module asks for the metadata. */
export async function metadataOfHelper(label: string) {
  'use workflow';
  return helped(label);
}

/** Fetches in the workflow itself. */
export async function fetched(url: string) {
  'use workflow';
  const response = await fetch(url);
  return { status: response.status, body: await response.json() };
}

/** Each kind of value, through a step. */
export async function kinds() {
  'use workflow';
  const sent = {
    map: new Map<unknown, unknown>([['a', new Set([1])]]),
    date: new Date(86_400_000),
    big: -(3n ** 50n),
    numbers: [-0, Number.NaN, Number.POSITIVE_INFINITY],
    pattern: /^a+b/gi,
    address: new URL('http://127.0.0.1/path?q=1'),
    query: new URLSearchParams([['a', '1'], ['a', '2']]),
    headers: new Headers({ 'x-a': '1' }),
    bytes: new Uint8Array([0, 127, 255]),
    floats: new Float64Array([0.5, -0.25]),
    buffer: new Uint8Array([1, 2]).buffer,
    error: new RangeError('out of it'),
    missing: undefined,
    nothing: null,
    text: 'ü \u{1f300} \0',
  };
  const back = (await mirror(sent)) as typeof sent;
  const same = {
    map: (back.map.get('a') as Set<number>).has(1),
    date: back.date.getTime() === 86_400_000,
    big: back.big === sent.big,
    numbers: back.numbers.every((n, i) => Object.is(n, sent.numbers[i])),
    pattern: String(back.pattern) === String(sent.pattern),
    address: back.address.href === sent.address.href,
    query: back.query.getAll('a').join() === '1,2',
    headers: back.headers.get('x-a') === '1',
    bytes: back.bytes instanceof Uint8Array && back.bytes.join() === '0,127,255',
    floats: back.floats instanceof Float64Array && back.floats.join() === '0.5,-0.25',
    buffer: back.buffer.byteLength === 2,
    error: back.error.message === 'out of it',
    missing: 'missing' in back && back.missing === undefined,
    nothing: back.nothing === null,
    text: back.text === sent.text,
  };
  return Object.entries(same).filter(([, ok]) => !ok).map(([name]) => name);
}

async function mirror(value: unknown) {
  'use step';
  return value;
}
