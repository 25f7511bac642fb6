import { Sandbox } from '@vercel/sandbox';
import { generateText } from 'ai';
import { getWritable } from 'workflow';

/** What the page is told of a run. */
export type Progress = { attempt: number; does: string; code?: string; tests?: string; output?: string };

const model = process.env.MODEL ?? 'cay/scripted';
const system = 'You write JavaScript modules (ESM) for Node, without dependencies. Answer with one block of code and nothing else.';

/** Asks the model for a module; with what its tests said, for a better one. */
export async function writeModule(task: string, draft: string, output: string) {
  'use step';
  const prompt = draft
    ? `The tests of solution.mjs fail. Mend it.\nTask: ${task}\n\nsolution.mjs:\n${draft}\n\nThe tests say:\n${output}`
    : `Write solution.mjs.\nTask: ${task}`;
  const { text } = await generateText({ model, system, prompt });
  return block(text);
}

/** Asks the model for tests of a module. */
export async function writeTests(task: string, code: string) {
  'use step';
  const prompt = `Write tests for solution.mjs with node:assert and node:test. Test what the task asks for.\nTask: ${task}\n\nsolution.mjs:\n${code}`;
  const { text } = await generateText({ model, system, prompt });
  return block(text);
}

/** Runs tests in a sandbox of their own, which has no network. */
export async function runTests(code: string, tests: string) {
  'use step';
  const sandbox = await Sandbox.create({ runtime: 'node24', timeout: 120_000, networkPolicy: 'deny-all' });
  try {
    await sandbox.writeFiles([
      { path: 'solution.mjs', content: Buffer.from(code) },
      { path: 'solution.test.mjs', content: Buffer.from(tests) },
    ]);
    const done = await sandbox.runCommand('node', ['--test', '--test-reporter=spec', 'solution.test.mjs']);
    const output = await done.output('both');
    return { passed: done.exitCode === 0, output: output.slice(-4000) };
  } finally {
    await sandbox.stop();
  }
}

/** Writes into the run's stream, which the page reads. */
export async function tell(progress: Progress) {
  'use step';
  const writer = getWritable<Progress>().getWriter();
  await writer.write(progress);
  writer.releaseLock();
}

export async function finish() {
  'use step';
  await getWritable().close();
}

/** The code of an answer: models put it between fences. */
function block(text: string) {
  return (/```\w*\n([\s\S]*?)```/.exec(text)?.[1] ?? text).trim();
}
