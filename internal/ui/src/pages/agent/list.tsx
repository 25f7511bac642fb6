// Runs of agents, newest first.
import { useEffect, useMemo } from 'preact/hooks';
import { Icon } from '../../components/icons';
import { Name, Time } from '../../components/show';
import { Empty, ErrorView, Loading } from '../../components/state';
import { Table, type Column } from '../../components/table';
import { place, setQuery } from '../../router';
import { visible } from '../../text';
import { count, dollars, millis } from '../gateway/money';
import { statusWidth } from '../gateway/requests';
import { tookOf, useRuns } from '../workflow/list';
import { useListed } from '../workflow/listed';
import type { Run } from '../workflow/types';
import { Live, RunBadge, Why } from '../workflow/views';
import { asked } from './log';
import { attribute, type Payload } from './types';

const statuses = [
  { id: '', name: 'All' },
  { id: 'running', name: 'Running' },
  { id: 'completed', name: 'Completed' },
  { id: 'failed', name: 'Failed' },
  { id: 'cancelled', name: 'Cancelled' },
];

function Took({ run }: { run: Run }) {
  const ms = tookOf(run);
  return ms === undefined ? <span class="dim">–</span> : <>{millis(ms)}</>;
}

/** useWaiting is which runs wait for somebody's approval of a tool, of the 1,000 hooks that have waited longest. */
export function useWaiting(project: string): ReadonlySet<string> {
  const hooks = useListed<{ run: string; metadata?: Payload | null }>('hooks', { project, limit: 1000 });
  return useMemo(() => new Set(hooks.value?.items.filter((h) => asked(h.metadata)).map((h) => h.run)), [hooks.value]);
}

const columns = (waiting: ReadonlySet<string>): Column<Run>[] => [
  {
    name: 'Status',
    width: statusWidth,
    class: 'dot',
    show: (r) => {
      const word = r.status === 'running' && waiting.has(r.id) ? 'waits' : r.status;
      return (
        <RunBadge status={word === 'waits' ? 'paused' : r.status}>
          <span class="wide" title={word === 'waits' ? 'waits for an approval' : word}>
            {word}
          </span>
        </RunBadge>
      );
    },
  },
  {
    name: 'Agent',
    width: 'minmax(110px, 1.4fr)',
    main: true,
    show: (r) => (
      <span class="name-cell">
        <Name class="strong">{r.attributes?.[attribute.agent] || 'no name'}</Name>
        {r.workflow !== r.attributes?.[attribute.agent] && (
          <span class="dim wide">
            <Name>{r.workflow}</Name>
          </span>
        )}
      </span>
    ),
  },
  { name: 'Error', width: 'minmax(70px, 1.2fr)', class: 'wide wf-over', show: (r) => <Why run={r} /> },
  { name: 'Model', width: 'minmax(90px, 1.2fr)', class: 'wide', show: (r) => <Name class="dim">{r.attributes?.[attribute.model]}</Name> },
  { name: 'Run', width: 'minmax(90px, 1.2fr)', class: 'wide', show: (r) => <code class="dim">{visible(r.id)}</code> },
  { name: 'Tokens', width: '72px', class: 'wide num', show: (r) => (r.attributes?.[attribute.tokens] ? count(Number(r.attributes[attribute.tokens])) : '–') },
  { name: 'Cost', width: '72px', class: 'num', show: (r) => (r.attributes?.[attribute.cost] ? dollars(r.attributes[attribute.cost]) : <span class="dim">–</span>) },
  { name: 'Took', width: '84px', class: 'wide num', show: (r) => <Took run={r} /> },
  { name: 'Began', width: '78px', class: 'num', show: (r) => <Time at={r.created_at} /> },
];

export function AgentRuns() {
  const { query } = place.value;
  const status = query.get('status') ?? '';
  const agent = query.get('agent') ?? '';
  const project = query.get('project') ?? '';
  const text = query.get('q') ?? '';
  const runs = useRuns({ status, workflow: '', attributes: [agent ? `${attribute.agent}=${agent}` : attribute.agent], time: 0, project });
  const words = text.trim().toLowerCase();
  const waiting = useWaiting(project);
  const shownColumns = useMemo(() => columns(waiting), [waiting]);
  // A search goes through all there are, as far as they are kept.
  useEffect(() => {
    if (words && runs.more) runs.loadMore(true);
  }, [words, runs.runs.length, runs.more]);
  const rows = useMemo(
    () => runs.runs.filter((r) => !words || [r.id, r.workflow, ...Object.values(r.attributes ?? {})].some((v) => v.toLowerCase().includes(words))),
    [runs.runs, words],
  );
  const names = useMemo(() => [...new Set(runs.runs.map((r) => r.attributes?.[attribute.agent] ?? ''))].filter(Boolean).sort().slice(0, 12), [runs.runs]);
  const shown = agent && !names.includes(agent) ? [agent, ...names] : names;
  const filtered = !!(words || status || agent);
  return (
    <div class="page full agents">
      <header class="page-head">
        <h1>Agents</h1>
        <label class="filter">
          <Icon name="search" size={14} />
          <input data-filter type="search" aria-label="Filter" placeholder="Agent, model or run" value={text} spellcheck={false} onInput={(e) => setQuery({ q: e.currentTarget.value })} />
          <kbd>/</kbd>
        </label>
      </header>
      <div class="chips" role="group" aria-label="Status">
        {statuses.map((s) => (
          <button key={s.id} class="chip" aria-pressed={s.id === status} onClick={() => setQuery({ status: s.id })}>
            {s.name}
          </button>
        ))}
        {(shown.length > 1 || agent) && <i class="chip-gap" />}
        {(shown.length > 1 || agent) &&
          shown.map((n) => (
            <button key={n} class="chip" aria-pressed={n === agent} onClick={() => setQuery({ agent: n === agent ? '' : n })}>
              <Name>{n}</Name>
            </button>
          ))}
      </div>
      {!runs.loaded ? (
        runs.error ? (
          <ErrorView error={runs.error} retry={runs.refresh} />
        ) : (
          <Loading />
        )
      ) : rows.length === 0 && !filtered ? (
        <Empty title="No agent has run yet" command="make demo">
          Runs of workflows that call an agent of the Go package agent are listed here, and can be watched as they go on.
        </Empty>
      ) : rows.length === 0 ? (
        <Empty title="Nothing matches">
          <a href="/agents">Show all</a>
        </Empty>
      ) : (
        <Table
          fill
          label="Runs of agents"
          columns={shownColumns}
          rows={rows}
          id={(r) => r.id}
          href={(r) => `/agents/${encodeURIComponent(r.id)}${project ? `?project=${encodeURIComponent(project)}` : ''}`}
          onView={words ? undefined : runs.look}
        />
      )}
      {runs.loaded && (
        <footer class="list-foot dim">
          <span class="num" role="status">
            {rows.length.toLocaleString()} {rows.length === 1 ? 'run' : 'runs'}
            {words && ` of the latest ${runs.runs.length.toLocaleString()}`}
            {runs.more ? ', more as you scroll' : runs.full ? ', the list ends here: filter to see older ones' : ''}
          </span>
          <Live on={runs.live} />
        </footer>
      )}
    </div>
  );
}
