// What can be done with a sandbox.
import { call, path, post } from '../../api';
import { ask } from '../../components/dialog';
import { complain, toast } from '../../components/toast';
import { Name } from '../../components/show';
import { go } from '../../router';
import { visible } from '../../text';
import type { Sandbox } from '../../types';
import { canResume } from './asleep';

export function Actions({ sandbox: s }: { sandbox: Sandbox }) {
  const at = (verb: string) => path('sandboxes', s.id, verb);
  const name = <Name class="strong">{s.name}</Name>;
  const run = (verb: string, done: string) => () =>
    post(at(verb)).then(() => toast(done), complain);
  const running = s.status === 'running';
  const stop = () =>
    ask({
      title: 'Stop the sandbox?',
      text: (
        <>
          All processes in {name} end. {s.persistent ? 'Its files are saved, and it can be resumed.' : 'It is not persistent: its files are lost.'}
        </>
      ),
      action: 'Stop',
      danger: !s.persistent,
      run: () => post(at('stop')),
    });
  const extend = () =>
    ask({
      title: 'Extend the sandbox',
      text: <>Move the end of {name}.</>,
      action: 'Extend',
      field: { label: 'By how many minutes', value: '15', number: true, required: true },
      run: (v) => post(at('extend'), { duration_ms: Math.round(Number(v) * 60_000) }).then(() => toast('Extended')),
    });
  const fork = () =>
    ask({
      title: 'Fork the sandbox',
      text: <>Copy {name}, with its files and, while it runs, its processes.</>,
      action: 'Fork',
      field: { label: 'How many copies', value: '1', number: true, required: true },
      run: async (v) => {
        const made = await post<{ sandboxes: Sandbox[] }>(at('fork'), { count: Number(v) });
        toast(`Made ${made.sandboxes.map((m) => visible(m.name)).join(', ')}`);
        if (made.sandboxes.length === 1) go(`/sandboxes/${made.sandboxes[0]!.id}`);
      },
    });
  const remove = () =>
    ask({
      title: 'Remove the sandbox?',
      text: <>{name} is stopped and forgotten, with its files and logs. The snapshots that its stops made go with it, those that somebody made stay.</>,
      action: 'Remove',
      danger: true,
      run: async () => {
        await call('DELETE', path('sandboxes', s.id));
        toast('Removed');
        go('/sandboxes');
      },
    });
  return (
    <div class="actions">
      {canResume(s) && (
        <button class="primary" onClick={run('resume', 'It runs')}>
          Resume
        </button>
      )}
      {running && (
        <>
          <button onClick={extend}>Extend</button>
          <button onClick={run('pause', 'Paused')}>
            Pause
          </button>
          <button onClick={run('hibernate', 'Hibernated')}>
            Hibernate
          </button>
        </>
      )}
      {(running || s.status === 'paused' || s.status === 'hibernated' || s.snapshot_id) && <button onClick={fork}>Fork</button>}
      {(running || s.status === 'paused' || s.status === 'hibernated') && <button onClick={stop}>Stop</button>}
      <button class="danger" onClick={remove}>
        Remove
      </button>
    </div>
  );
}
