// The stream of a run, by which a run tells tests how far it is.
import { getWritable } from 'workflow';

/** For steps. */
export async function write(value: unknown) {
  const writer = getWritable().getWriter();
  await writer.write(value);
  writer.releaseLock();
}

/** For workflows. */
export async function say(value: unknown) {
  'use step';
  await write(value);
}

export async function finish() {
  'use step';
  await getWritable().close();
}
