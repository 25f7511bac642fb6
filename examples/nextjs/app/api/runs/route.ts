import { start } from 'workflow/api';
import { writeCode } from '../../../workflows/write-code';

/** Starts a run. */
export async function POST(request: Request) {
  const { task } = await request.json();
  if (typeof task !== 'string' || !task.trim() || task.length > 4000) {
    return Response.json({ error: 'task is to be a text of 1 to 4000 characters' }, { status: 400 });
  }
  const run = await start(writeCode, [task.trim()]);
  return Response.json({ id: run.runId });
}
