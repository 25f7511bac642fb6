import { getRun } from 'workflow/api';
import type { Outcome } from '../../../../workflows/write-code';

/** Tells how a run ends, when it has. */
export async function GET(_: Request, { params }: { params: Promise<{ id: string }> }) {
  const run = getRun<Outcome>((await params).id);
  if (!(await run.exists)) return Response.json({ error: 'there is no such run' }, { status: 404 });
  const status = await run.status;
  if (status === 'completed') return Response.json({ status, ...(await run.returnValue) });
  if (status !== 'failed') return Response.json({ status });
  const error = await run.returnValue.then(() => '', (e) => e.cause?.message ?? e.message);
  return Response.json({ status, error });
}
