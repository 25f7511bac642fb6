// An agent whose calls of models and tools are steps of a workflow.
import { type ModelCallStreamPart, WorkflowAgent } from '@ai-sdk/workflow';
import type { ModelMessage } from 'ai';
import { getWritable } from 'workflow';
import { z } from 'zod';

async function run({ code }: { code: string }) {
  'use step';
  return String(eval(code)); // the script of the test is trusted
}

export async function agent(model: string, messages: ModelMessage[]) {
  'use workflow';
  const agent = new WorkflowAgent({
    model,
    instructions: 'You answer questions by running JavaScript.',
    tools: { runCode: { description: 'Evaluates JavaScript.', inputSchema: z.object({ code: z.string() }), execute: run } },
  });
  await agent.stream({ messages, writable: getWritable<ModelCallStreamPart>() });
}
