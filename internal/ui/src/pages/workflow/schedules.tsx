// Schedules: what starts runs by the clock.
import { call, path } from '../../api';
import { ask } from '../../components/dialog';
import { Badge, Called, Facts, JSONView, Name, Time } from '../../components/show';
import { complain, toast } from '../../components/toast';
import { ListPage, useListed } from './listed';
import type { Schedule } from './types';

export function SchedulesPage() {
  const list = useListed<Schedule>('schedules');
  const pause = async (s: Schedule, paused: boolean) => {
    try {
      await call('PATCH', path('workflows', 'schedules', s.id), { json: { paused } });
      toast(paused ? 'Paused' : 'Resumed');
      list.reload();
    } catch (e) {
      complain(e);
    }
  };
  const remove = (s: Schedule) =>
    ask({
      title: 'Delete the schedule?',
      text: (
        <>
          <Name class="strong">{s.id}</Name> starts no more runs. Those that it has started go on.
        </>
      ),
      action: 'Delete',
      danger: true,
      run: async () => {
        await call('DELETE', path('workflows', 'schedules', s.id));
        toast('Deleted');
        list.reload();
      },
    });
  return (
    <ListPage
      of={list}
      at="/workflows/schedules"
      empty={{ title: 'No schedule yet', command: "cay workflow schedule set nightly report '0 3 * * *'", text: 'A schedule starts runs of a workflow by the clock.' }}
    >
      {(items) => (
        <ul class="wf-list">
          {items.map((s) => (
            <li key={s.id} class="panel">
              <div class="wf-list-head">
                <Badge status={s.paused ? 'paused' : 'running'}>{s.paused ? 'paused' : 'on'}</Badge>
                <Name class="strong">{s.id}</Name>
                <span class="grow" />
                <span class="actions">
                  <button onClick={() => void pause(s, !s.paused)}>{s.paused ? 'Resume' : 'Pause'}</button>
                  <button class="danger" onClick={() => remove(s)}>
                    Delete
                  </button>
                </span>
              </div>
              <div class="wf-schedule">
                <Facts
                  of={[
                    ['Starts', <a class="wf-link" href={`/workflows?workflow=${encodeURIComponent(s.workflow)}`}><Called>{s.workflow}</Called></a>],
                    ['When', <><code><Name>{s.cron}</Name></code> <span class="dim"><Name>{s.zone || 'UTC'}</Name></span></>],
                    ['Overlap', s.overlap ? 'a run may start while an earlier one goes on' : undefined],
                  ]}
                />
                <Facts
                  of={[
                    ['Next', s.paused ? 'when it is resumed' : <Time at={s.next_at} />],
                    ['Last', <Time at={s.last_at} />],
                    ['Last run', s.last_run && <a class="wf-link" href={`/workflows/${encodeURIComponent(s.last_run)}`}><Name>{s.last_run}</Name></a>],
                    ['All', <a class="wf-link" href={`/workflows?attribute=${encodeURIComponent('$schedule=' + s.id)}`}>runs it has started</a>],
                  ]}
                />
                {s.input && 'json' in s.input && s.input.json !== null && (
                  <div>
                    <span class="dim">Input</span>
                    <JSONView value={s.input.json} />
                  </div>
                )}
              </div>
            </li>
          ))}
        </ul>
      )}
    </ListPage>
  );
}
