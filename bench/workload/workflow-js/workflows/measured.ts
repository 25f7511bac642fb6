// Workflows that are measured. Steps leave marks in the process, which the server reads.
import { getWritable } from 'workflow';

const marks = () => (globalThis as unknown as { marks: unknown[] }).marks;

async function mark() {
  'use step';
  marks().push({ at: performance.now(), cpu: process.cpuUsage() });
}

/** Runs n steps, one after the other, that do nothing else. */
export async function steps(n: number) {
  'use workflow';
  for (let i = 0; i < n; i++) await mark();
  return n;
}

async function emit(n: number, pause: number) {
  'use step';
  const writer = getWritable<{ sent: number }>().getWriter();
  for (let i = 0; i < n; i++) {
    await writer.write({ sent: performance.now() });
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
  await writer.close(); // another handle would close the stream before the last value is sent
}

/** Writes n values into its stream, with a pause of that many milliseconds after each. */
export async function stream(n: number, pause: number) {
  'use workflow';
  await emit(n, pause);
  return n;
}
