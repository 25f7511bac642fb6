// Commands in a sandbox: the methods of Sandbox are steps by themselves.
import { Sandbox } from '@vercel/sandbox';

export async function pipeline(commands: string[]) {
  'use workflow';
  const sandbox = await Sandbox.create();
  try {
    const results: { exitCode: number; output: string }[] = [];
    for (const command of commands) {
      const done = await sandbox.runCommand('sh', ['-c', command]);
      results.push({ exitCode: done.exitCode, output: await done.stdout() });
    }
    return { name: sandbox.name, results };
  } finally {
    await sandbox.stop();
  }
}
