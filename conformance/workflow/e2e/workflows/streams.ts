// Streams: of a run, named, in arguments and in results.
import { getWritable } from 'workflow';
import { getRun, start } from 'workflow/api';
import { finish, say } from './tell';

async function lines(n: number) {
  'use step';
  const encoder = new TextEncoder();
  return new ReadableStream<Uint8Array>({
    async start(controller) {
      for (let i = 0; i < n; i++) {
        controller.enqueue(encoder.encode(`line ${i}\n`));
        await new Promise((resolve) => setTimeout(resolve, 30));
      }
      controller.close();
    },
  });
}

/** The result is a stream. */
export async function readable(n: number) {
  'use workflow';
  return lines(n);
}

async function count(from: ReadableStream<Uint8Array>) {
  'use step';
  let size = 0;
  for await (const chunk of from as unknown as AsyncIterable<Uint8Array>) size += chunk.byteLength;
  return size;
}

/** A stream from one step into another. */
export async function between(n: number) {
  'use workflow';
  return count(await lines(n));
}

async function writeBytes(to: WritableStream, text: string) {
  'use step';
  const writer = to.getWriter();
  await writer.write(new TextEncoder().encode(text));
  writer.releaseLock();
}

async function writeValue(to: WritableStream, value: unknown) {
  'use step';
  const writer = to.getWriter();
  await writer.write(value);
  writer.releaseLock();
}

async function close(to: WritableStream) {
  'use step';
  await to.close();
}

/** The workflow gets its streams and hands them to steps. */
export async function output() {
  'use workflow';
  const own = getWritable();
  const named = getWritable({ namespace: 'named' });
  await writeBytes(own, 'bytes of the run');
  await writeBytes(named, 'bytes by name');
  await writeValue(own, { of: 'the run' });
  await writeValue(named, { by: 'name' });
  await close(own);
  await close(named);
  return 'written';
}

/** Steps get the streams themselves. */
export async function outputOfSteps() {
  'use workflow';
  await say(new TextEncoder().encode('first'));
  await say({ n: 1 }, 'of steps');
  await say(new TextEncoder().encode('second'));
  await say({ n: 2 }, 'of steps');
  await finish();
  await finish('of steps');
  return 'written';
}

/** A child that writes into its parent's stream. */
export async function writesFor(to: WritableStream<Uint8Array>, text: string) {
  'use workflow';
  await writeBytes(to, text);
  return 'written';
}

async function startWith(to: WritableStream<Uint8Array>, text: string) {
  'use step';
  const child = await start(writesFor, [to, text]);
  await child.returnValue;
  return child.runId;
}

export async function forwardedByWorkflow(text: string) {
  'use workflow';
  const to = getWritable<Uint8Array>();
  const child = await startWith(to, text);
  await close(to);
  return { child };
}

async function startWithOwn(text: string) {
  'use step';
  const to = getWritable<Uint8Array>();
  const child = await start(writesFor, [to, text]);
  await child.returnValue;
  await to.close();
  return child.runId;
}

export async function forwardedByStep(text: string) {
  'use workflow';
  return { child: await startWithOwn(text) };
}

async function firstOf(run: string) {
  'use step';
  const reader = getRun(run).getReadable().getReader();
  const { value } = await reader.read();
  await reader.cancel();
  return value;
}

/** Reads another run's stream. */
export async function readsFrom(run: string) {
  'use workflow';
  return firstOf(run);
}
