import { getRun } from 'workflow/api';
import type { Progress } from '../../../../../workflows/steps';

/** Sends what a run tells, one line of JSON each, from an index on. */
export async function GET(request: Request, { params }: { params: Promise<{ id: string }> }) {
  const startIndex = Number(new URL(request.url).searchParams.get('from') ?? 0);
  const progress = getRun((await params).id).getReadable<Progress>({ startIndex });
  const lines = new TransformStream<Progress, string>({ transform: (part, to) => to.enqueue(`${JSON.stringify(part)}\n`) });
  return new Response(progress.pipeThrough(lines).pipeThrough(new TextEncoderStream()), { headers: { 'content-type': 'application/x-ndjson', 'cache-control': 'no-store' } });
}
