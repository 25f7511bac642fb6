// Streams by which a run tells tests how far it is.
import { getWritable } from 'workflow';

/** For steps. */
export async function write(value: unknown, namespace?: string) {
  const writer = getWritable({ namespace }).getWriter();
  await writer.write(value);
  writer.releaseLock();
}

/** For workflows. */
export async function say(value: unknown, namespace?: string) {
  'use step';
  await write(value, namespace);
}

export async function finish(namespace?: string) {
  'use step';
  await getWritable({ namespace }).close();
}
