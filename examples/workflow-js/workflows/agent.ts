// An agent that runs code: the model decides when to make a sandbox, and what to run there.
import { Sandbox } from '@vercel/sandbox';
import { DurableAgent } from '@workflow/ai/agent';
import type { ModelMessage, UIMessageChunk } from 'ai';
import { getWritable } from 'workflow';
import { z } from 'zod';

export async function agent(model: string, messages: ModelMessage[]) {
  'use workflow';
  let sandbox: Sandbox | undefined;
  const agent = new DurableAgent({
    model,
    instructions: 'You answer questions by running JavaScript. Make a sandbox first, and run code in it that prints the answer.',
    tools: {
      makeSandbox: {
        description: 'Makes a sandbox, without a network, in which code runs.',
        inputSchema: z.object({}),
        execute: async () => {
          sandbox ??= await Sandbox.create({ runtime: 'node24', networkPolicy: 'deny-all' });
          return sandbox.name;
        },
      },
      runCode: {
        description: 'Runs JavaScript (ESM) with Node in the sandbox, and returns its output.',
        inputSchema: z.object({ code: z.string() }),
        execute: async ({ code }: { code: string }) => {
          if (!sandbox) return 'There is no sandbox: make one first.';
          const done = await sandbox.runCommand('node', ['--input-type=module', '--eval', code]);
          return (await done.output('both')).slice(-4000).trim();
        },
      },
    },
  });
  try {
    await agent.stream({ messages, writable: getWritable<UIMessageChunk>(), maxSteps: 10 });
  } finally {
    await sandbox?.stop();
  }
}
