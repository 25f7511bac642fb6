// Commands in a sandbox, one after the other. The methods of Sandbox are steps by themselves.
import { Sandbox } from '@vercel/sandbox';

export async function pipeline(commands: string[]) {
  'use workflow';
  const sandbox = await Sandbox.create({ runtime: 'node24', networkPolicy: 'deny-all' });
  try {
    const results: { command: string; exitCode: number; output: string }[] = [];
    for (const command of commands) {
      const done = await sandbox.runCommand('sh', ['-c', command]);
      results.push({ command, exitCode: done.exitCode, output: await done.output('both') });
    }
    return results;
  } finally {
    await sandbox.stop();
  }
}
