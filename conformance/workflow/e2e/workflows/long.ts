// A step that lasts until a test lets it go, and says each time that its body begins.
import { getStepMetadata } from 'workflow';
import { finish, write } from './tell';

async function body(token: string) {
  'use step';
  const { attempt } = getStepMetadata();
  await write(`begins ${attempt}`);
  await (globalThis as any).holds(token);
  return attempt;
}

export async function long(token: string) {
  'use workflow';
  const attempt = await body(token);
  await finish();
  return attempt;
}
