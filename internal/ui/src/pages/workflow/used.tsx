// What steps of the Workflow SDK have used: the preload names the step with each call to the daemon.
import { useEffect, useState } from 'preact/hooks';
import { get, path, type Page } from '../../api';
import { Badge, Name } from '../../components/show';
import { listed, sandboxes, useSandboxes } from '../../live';
import { count, dollars } from '../gateway/money';
import type { Spend } from '../gateway/types';
import type { Run } from './types';

/** Spent shows the number of a run's model calls and their cost, as they are now and when the run's status changes. */
function Spent({ run }: { run: Run }) {
  const [sum, setSum] = useState<{ requests: number; cost: number; unpriced: number } | undefined>();
  const [error, setError] = useState<string | undefined>();
  useEffect(() => {
    const stop = new AbortController();
    get<Page<Spend>>(path('gateway', 'spend'), { by: ['model'], session: run.id, since: run.created_at }, stop.signal).then(
      ({ items }) => setSum(items.reduce((n, s) => ({ requests: n.requests + s.requests, cost: n.cost + Number(s.cost), unpriced: n.unpriced + s.unpriced }), { requests: 0, cost: 0, unpriced: 0 })),
      (e) => stop.signal.aborted || setError(String(e)),
    );
    return () => stop.abort();
  }, [run.id, run.status]);
  if (!sum) return error ? <span class="dim" title={error}> cost unknown</span> : null;
  return (
    <span class="dim">
      {' '}
      {count(sum.requests)} for {dollars(sum.cost)}
      {sum.unpriced > 0 && `, ${count(sum.unpriced)} of unknown price`}
    </span>
  );
}

/** Used shows the sandboxes that a run has made, or one step of it; of a run it leads to the calls of models as well. */
export function Used({ run, step }: { run: Run; step?: string }) {
  useSandboxes();
  const made = sandboxes.value.filter((s) => s.annotations?.['workflow.run'] === run.id && (!step || s.annotations['workflow.step'] === step));
  return (
    <>
      {(made.length > 0 || (!step && listed.value)) && (
        <section class="wf-value">
          <h3>Sandboxes</h3>
          {made.length === 0 && <span class="dim">None that is still there</span>}
          <ul class="wf-used">
            {made.slice(0, 100).map((s) => (
              <li key={s.id}>
                <Badge status={s.status} />{' '}
                <a class="wf-link" href={`/sandboxes/${encodeURIComponent(s.id)}`}>
                  <Name>{s.name}</Name>
                </a>
              </li>
            ))}
          </ul>
        </section>
      )}
      {!step && (
        <section class="wf-value">
          <h3>Models</h3>
          <a class="wf-link" href={`/gateway/requests?session=${encodeURIComponent(run.id)}`}>
            Calls of the run
          </a>
          <Spent run={run} />
        </section>
      )}
    </>
  );
}
