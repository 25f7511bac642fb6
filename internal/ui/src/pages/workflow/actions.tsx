// What can be done with a run.
import { path, post } from '../../api';
import { ask } from '../../components/dialog';
import { toast } from '../../components/toast';
import { Called } from '../../components/show';
import { go } from '../../router';
import { wake } from './span';
import { ended, type Run, type Span } from './types';

export function Actions({ run: r, spans, onChange }: { run: Run; spans: readonly Span[]; onChange: () => void }) {
  const asleep = spans.filter((s) => s.kind === 'wait' && s.status === 'open');
  const name = <Called class="strong">{r.workflow}</Called>;
  const cancel = (force: boolean) =>
    ask({
      title: force ? 'Cancel the run by force?' : 'Cancel the run?',
      text: force ? <>{name} ends at once. Its code does not run any more, and undoes nothing.</> : <>The code of {name} sees that it is cancelled, undoes what it has to undo, and ends.</>,
      action: force ? 'Cancel by force' : 'Cancel the run',
      keep: 'Keep it running',
      danger: true,
      field: { label: 'Reason, if there is one', value: '' },
      run: async (reason) => {
        await post(path('workflows', 'runs', r.id, 'cancel'), { reason, force });
        toast(force ? 'Cancelled' : 'It was told to end');
        onChange();
      },
    });
  const rerun = () =>
    ask({
      title: 'Run it again?',
      text: <>A new run of {name} starts with the same input.</>,
      action: 'Run again',
      run: async () => {
        const made = await post<Run>(path('workflows', 'runs', r.id, 'rerun'), {});
        toast('Started');
        go(`/workflows/${encodeURIComponent(made.id)}`);
      },
    });
  return (
    <div class="actions">
      {asleep.length > 0 && !ended(r.status) && <button onClick={() => wake(r.id, asleep.length === 1 ? [asleep[0]!.id] : undefined)}>{asleep.length === 1 ? 'Wake' : `Wake ${asleep.length}`}</button>}
      {ended(r.status) && <button onClick={rerun}>Run again</button>}
      {!ended(r.status) && (
        <button class="danger" onClick={() => cancel(!!r.cancel_requested)}>
          {r.cancel_requested ? 'Cancel by force' : 'Cancel'}
        </button>
      )}
    </div>
  );
}

