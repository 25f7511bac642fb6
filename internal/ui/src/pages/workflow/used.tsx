// What steps of the Workflow SDK have used: the preload names the step with each call to the daemon.
import { Badge, Name } from '../../components/show';
import { listed, sandboxes, useSandboxes } from '../../live';

/** Used shows the sandboxes that a run has made, or one step of it; of a run it leads to the calls of models as well. */
export function Used({ run, step }: { run: string; step?: string }) {
  useSandboxes();
  const made = sandboxes.value.filter((s) => s.annotations?.['workflow.run'] === run && (!step || s.annotations['workflow.step'] === step));
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
          <a class="wf-link" href={`/gateway/requests?session=${encodeURIComponent(run)}`}>
            Calls of the run
          </a>
        </section>
      )}
    </>
  );
}
