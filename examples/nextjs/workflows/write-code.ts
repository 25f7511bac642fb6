import { finish, runTests, tell, writeModule, writeTests } from './steps';

export type Outcome = { passed: boolean; attempts: number; code: string; output: string };

const attempts = 3;

/** Writes a module for a task, tests it in a sandbox, and mends it until its tests pass. */
export async function writeCode(task: string): Promise<Outcome> {
  'use workflow';
  let code = '';
  let output = '';
  for (let attempt = 1; attempt <= attempts; attempt++) {
    await tell({ attempt, does: code ? 'mends the module' : 'writes the module' });
    code = await writeModule(task, code, output);
    await tell({ attempt, does: 'writes tests', code });
    const tests = await writeTests(task, code);
    await tell({ attempt, does: 'runs the tests in a sandbox', tests });
    const run = await runTests(code, tests);
    output = run.output;
    await tell({ attempt, does: run.passed ? 'has passed' : 'has failed', output });
    if (run.passed) {
      await finish();
      return { passed: true, attempts: attempt, code, output };
    }
  }
  await finish();
  return { passed: false, attempts, code, output };
}
