// The list of runs.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { ApiError, call, get, path, post } from '../../api';
import { ask } from '../../components/dialog';
import { Icon } from '../../components/icons';
import { Called, Duration, Name, Time } from '../../components/show';
import { Empty, ErrorView, Loading } from '../../components/state';
import { Table, type Column } from '../../components/table';
import { complain, toast } from '../../components/toast';
import { go, place, setQuery } from '../../router';
import { functionOf, visible } from '../../text';
import { tookOf, useRuns, type Filter } from './list';
import { ended, type Run } from './types';
import { Live, RunBadge, Views, Why } from './views';

const statuses = ['', 'pending', 'running', 'completed', 'failed', 'cancelled'];

const times: { id: string; name: string; ms: number }[] = [
  { id: '', name: 'Any time', ms: 0 },
  { id: '15m', name: 'Last 15 minutes', ms: 900_000 },
  { id: '1h', name: 'Last hour', ms: 3_600_000 },
  { id: '24h', name: 'Last 24 hours', ms: 86_400_000 },
  { id: '7d', name: 'Last 7 days', ms: 7 * 86_400_000 },
  { id: '30d', name: 'Last 30 days', ms: 30 * 86_400_000 },
];

/** setAttributes changes which attributes the list is filtered by: the address repeats the parameter. */
function setAttributes(all: string[]): void {
  const q = new URLSearchParams(location.search);
  q.delete('attribute');
  q.delete('q');
  for (const a of all) q.append('attribute', a);
  go(location.pathname + (q.size ? '?' + q : ''));
}

/** attribute is one as the API filters by it: "=" in names is escaped. */
const attribute = (name: string, value: string): string => `${name.replace(/%/g, '%25').replace(/=/g, '%3D')}=${value}`;

const shown = (a: string): string => {
  const at = a.indexOf('=');
  try {
    return decodeURIComponent(a.slice(0, at)) + a.slice(at);
  } catch {
    return a;
  }
};

const matches = (r: Run, text: string): boolean =>
  r.workflow.toLowerCase().includes(text) ||
  r.id.toLowerCase().includes(text) ||
  !!r.key?.toLowerCase().includes(text) ||
  Object.entries(r.attributes ?? {}).some(([k, v]) => `${k}=${v}`.toLowerCase().includes(text));

/** useRun asks for the run of an id somebody searches for: it may be older than all that are listed. */
function useRun(id: string): Run | undefined {
  const [run, set] = useState<Run>();
  useEffect(() => {
    set(undefined);
    if (!id) return;
    const stop = new AbortController();
    get<Run>(path('workflows', 'runs', id), undefined, stop.signal).then(set, () => {});
    return () => stop.abort();
  }, [id]);
  return run;
}

/** eachOf does something for all ids, six at a time, and returns how many failed. */
async function eachOf(ids: string[], run: (id: string) => Promise<unknown>): Promise<number> {
  const left = [...ids];
  let failed = 0;
  let error: unknown;
  await Promise.all(
    Array.from({ length: 6 }, async () => {
      for (let id = left.shift(); id !== undefined; id = left.shift()) {
        try {
          await run(id);
        } catch (e) {
          failed++;
          error = e;
        }
      }
    }),
  );
  if (failed) complain(error);
  return failed;
}

export function RunsPage() {
  const { query } = place.value;
  const text = (query.get('q') ?? '').trim();
  const time = times.find((t) => t.id === query.get('time')) ?? times[0]!;
  const filter: Filter = { status: query.get('status') ?? '', workflow: query.get('workflow') ?? '', attributes: query.getAll('attribute'), time: time.ms };
  const list = useRuns(filter);
  const direct = useRun(/^wrun_\w{26}$/.test(text) ? text : '');
  const [selected, select] = useState<ReadonlySet<string>>(new Set());
  const lastClicked = useRef(-1);

  const asked = text.toLowerCase();
  const rows = useMemo(() => {
    const found = asked ? list.runs.filter((r) => matches(r, asked)) : list.runs;
    return direct && !found.some((r) => r.id === direct.id) ? [direct, ...found] : found;
  }, [list.runs, asked, direct]);
  // A search goes through all there are, as far as they are kept.
  useEffect(() => {
    if (asked && list.more && !direct) list.loadMore(true);
  }, [asked, list.runs.length, list.more, direct]);

  // Names of workflows that were seen, to choose from.
  const names = useRef(new Set<string>());
  for (const r of list.runs) names.current.add(r.workflow);
  if (filter.workflow) names.current.add(filter.workflow);

  const chosen = rows.filter((r) => selected.has(r.id));
  const open = chosen.filter((r) => !ended(r.status));
  const toggle = (n: number, range: boolean) => {
    const next = new Set(selected);
    const on = !next.has(rows[n]!.id);
    const from = range && lastClicked.current >= 0 ? Math.min(lastClicked.current, n) : n;
    const to = range && lastClicked.current >= 0 ? Math.max(lastClicked.current, n) : n;
    for (const r of rows.slice(from, to + 1)) {
      if (on) next.add(r.id);
      else next.delete(r.id);
    }
    lastClicked.current = n;
    select(next);
  };
  const latest = useRef(rows);
  latest.current = rows;

  const columns: Column<Run>[] = [
    {
      name: '',
      width: '18px',
      class: 'wf-check',
      show: (r) => (
        <input
          type="checkbox"
          aria-label={`Select ${r.id}`}
          checked={selected.has(r.id)}
          onClick={(e) => toggle(latest.current.indexOf(r), e.shiftKey)}
        />
      ),
    },
    { name: 'Status', width: '102px', show: (r) => <RunBadge status={r.status}>{r.cancel_requested && !ended(r.status) ? 'cancelling' : r.status}</RunBadge> },
    {
      name: 'Workflow',
      width: 'minmax(150px, 2.2fr)',
      main: true,
      show: (r) => <Called class="strong">{r.workflow}</Called>,
    },
    { name: 'Key', width: 'minmax(70px, 1.2fr)', class: 'wide wf-over', show: (r) => r.key && <Name class="dim">{r.key}</Name> },
    { name: 'Error', width: 'minmax(70px, 1.2fr)', class: 'wide wf-over', show: (r) => <Why run={r} /> },
    {
      name: 'Attributes',
      width: 'minmax(100px, 2fr)',
      class: 'wide wf-over',
      show: (r) => (
        <span class="tags">
          {Object.entries(r.attributes ?? {})
            .sort(([a], [b]) => Number(a.startsWith('$')) - Number(b.startsWith('$')))
            .slice(0, 4)
            .map(([k, v]) => (
              <button key={k} class="tag" title="Show only these" onClick={() => setAttributes([...new Set([...filter.attributes, attribute(k, v)])])}>
                <Name>{`${k}=${v}`}</Name>
              </button>
            ))}
        </span>
      ),
    },
    { name: 'Id', width: 'minmax(90px, 1.3fr)', class: 'wide', show: (r) => <RunId id={r.id} /> },
    { name: 'Events', width: '58px', class: 'wide num', show: (r) => <span class="dim">{r.events.toLocaleString()}</span> },
    { name: 'Took', width: '92px', class: 'wide num', show: (r) => <Took run={r} /> },
    { name: 'Created', width: '88px', class: 'num', show: (r) => <Time at={r.created_at} /> },
  ];

  const cancelChosen = () =>
    ask({
      title: open.length === 1 ? 'Cancel the run?' : `Cancel ${open.length.toLocaleString()} runs?`,
      text: 'Their code sees that they are cancelled, undoes what it has to undo, and ends.',
      action: 'Cancel them',
      keep: 'Keep them running',
      danger: true,
      field: { label: 'Reason, if there is one', value: '' },
      run: async (reason) => {
        const failed = await eachOf(
          open.map((r) => r.id),
          (id) => post<Run>(path('workflows', 'runs', id, 'cancel'), { reason }).then(list.put),
        );
        toast(`${(open.length - failed).toLocaleString()} of ${open.length.toLocaleString()} cancelled`, failed ? 'bad' : 'good');
        select(new Set());
      },
    });
  const cancelAll = () => {
    const what = filter.status === 'pending' || filter.status === 'running' ? [filter.status] : ['pending', 'running'];
    const attributes = Object.fromEntries(filter.attributes.map((a) => [shown(a.slice(0, a.indexOf('=')) + '=').slice(0, -1), a.slice(a.indexOf('=') + 1)]));
    ask({
      title: 'Cancel all that match the filter?',
      text: `At most 500 runs that are ${what.join(' or ')}${filter.workflow ? `, of ${visible(functionOf(filter.workflow))}` : ''}${filter.attributes.length ? `, with ${visible(filter.attributes.map(shown).join(', '))}` : ''}${filter.time ? `, of the ${time.name.toLowerCase()}` : ''}. Also those that are not listed yet.`,
      action: 'Cancel them',
      keep: 'Keep them running',
      danger: true,
      field: { label: 'Reason, if there is one', value: '' },
      run: async (reason) => {
        const { items } = await call<{ items: { error?: unknown }[] }>('POST', path('workflows', 'runs', 'cancel'), {
          json: {
            reason,
            status: what,
            workflow: filter.workflow || undefined,
            attributes: filter.attributes.length ? attributes : undefined,
            since: filter.time ? new Date(Date.now() - filter.time).toISOString() : undefined,
          },
        });
        toast(`${items.length.toLocaleString()} ${items.length === 1 ? 'run' : 'runs'} told to end`);
        list.refresh();
      },
    });
  };

  const filtered = !!(filter.status || filter.workflow || filter.attributes.length || filter.time || text);
  const reset = () => go('/workflows');
  return (
    <div class="page full">
      <header class="page-head">
        <div class="title">
          <h1>Workflows</h1>
          <Views at="/workflows" />
        </div>
        <label class="filter">
          <Icon name="search" size={14} />
          <input
            data-filter
            type="search"
            aria-label="Search runs"
            placeholder="Workflow, id, key, or name=value"
            value={query.get('q') ?? ''}
            spellcheck={false}
            onInput={(e) => setQuery({ q: e.currentTarget.value })}
            onKeyDown={(e) => {
              const at = text.indexOf('=');
              if (e.key === 'Enter' && at > 0) setAttributes([...new Set([...filter.attributes, attribute(text.slice(0, at), text.slice(at + 1))])]);
              else if (e.key === 'Enter' && rows.length === 1) go(`/workflows/${rows[0]!.id}`);
            }}
          />
          <kbd>/</kbd>
        </label>
      </header>
      <div class="wf-filters">
        <div class="chips" role="group" aria-label="Status">
          {statuses.map((s) => (
            <button key={s} class="chip" aria-pressed={s === filter.status} onClick={() => setQuery({ status: s })}>
              {s ? s[0]!.toUpperCase() + s.slice(1) : 'All'}
            </button>
          ))}
        </div>
        <select aria-label="Workflow" value={filter.workflow} onChange={(e) => setQuery({ workflow: e.currentTarget.value })}>
          <option value="">All workflows</option>
          {[...names.current].sort().map((n) => (
            <option key={n} value={n}>
              {visible([...names.current].some((other) => other !== n && functionOf(other) === functionOf(n)) ? n : functionOf(n))}
            </option>
          ))}
        </select>
        <select aria-label="Time" value={time.id} onChange={(e) => setQuery({ time: e.currentTarget.value })}>
          {times.map((t) => (
            <option key={t.id} value={t.id}>
              {t.name}
            </option>
          ))}
        </select>
        {filter.attributes.map((a) => (
          <button key={a} class="chip" aria-pressed="true" aria-label={`Do not filter by ${shown(a)}`} onClick={() => setAttributes(filter.attributes.filter((x) => x !== a))}>
            <Name>{shown(a)}</Name> <Icon name="close" size={11} />
          </button>
        ))}
      </div>
      {list.error && !list.loaded ? (
        <ErrorView error={list.error} retry={list.refresh} />
      ) : !list.loaded && rows.length === 0 ? (
        <Loading />
      ) : rows.length === 0 && !filtered ? (
        <Empty title="No run yet" command="cay workflow start order 42">
          A run is what a durable workflow does once. This list shows it the moment it is there.
        </Empty>
      ) : rows.length === 0 && list.more ? (
        <Loading />
      ) : rows.length === 0 ? (
        <Empty title="Nothing matches">
          <button onClick={reset}>Show all</button>
        </Empty>
      ) : (
        <Table fill label="Runs" columns={columns} rows={rows} id={(r) => r.id} href={(r) => `/workflows/${encodeURIComponent(r.id)}`} onView={asked ? undefined : list.look} />
      )}
      <footer class="wf-foot">
        {chosen.length > 0 ? (
          <>
            <span class="num">{chosen.length.toLocaleString()} selected</span>
            <span class="actions">
              <button onClick={() => select(new Set(rows.map((r) => r.id)))}>Select the {rows.length.toLocaleString()} listed</button>
              <button onClick={() => select(new Set())}>Select none</button>
              <button class="danger" disabled={open.length === 0} onClick={cancelChosen}>
                Cancel {open.length.toLocaleString()}
              </button>
            </span>
          </>
        ) : (
          <>
            <span class="dim num" role="status">
              {rows.length.toLocaleString()} {rows.length === 1 ? 'run' : 'runs'}
              {asked && ` of the latest ${list.runs.length.toLocaleString()}`}
              {list.more ? ', more as you scroll' : list.full ? ', the list ends here: filter to see older ones' : ''}
            </span>
            {list.error instanceof ApiError ? <span class="bad-text">{visible(list.error.message)}</span> : <Live on={list.live} />}
            {filtered && !asked && rows.some((r) => !ended(r.status)) && (
              <button class="ghost" onClick={cancelAll}>
                Cancel all that match
              </button>
            )}
          </>
        )}
      </footer>
    </div>
  );
}

/** RunId is the end of an id: ids that were made one after the other begin with the same. */
function RunId({ id }: { id: string }) {
  return (
    <code class="dim" title={visible(id)}>
      …{visible(id.slice(-10))}
    </code>
  );
}

/** Took says how long a run has taken, and goes on while it runs. */
export function Took({ run }: { run: Run }) {
  const ms = tookOf(run);
  return ms === undefined ? <span class="dim">–</span> : <Duration ms={ms} />;
}
