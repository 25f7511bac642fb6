// One run: what it is, and tabs for all that can be seen of it.
import { useEffect } from 'preact/hooks';
import { Icon } from '../../components/icons';
import { Called, Code, Name, Time } from '../../components/show';
import { ErrorView, Loading } from '../../components/state';
import { chosenTab, Tabs } from '../../components/tabs';
import { functionOf, visible } from '../../text';
import { Actions } from './actions';
import { Events } from './events';
import { useFollow } from './follow';
import { Hooks } from './hooks';
import { Took } from './runs';
import { Streams } from './streams';
import { Trace } from './trace';
import { ended, type Run } from './types';
import { messageOf } from './value';
import { RunBadge } from './views';

const tabs = [
  { id: 'timeline', name: 'Timeline' },
  { id: 'events', name: 'Events' },
  { id: 'streams', name: 'Streams' },
  { id: 'hooks', name: 'Hooks' },
];

export function RunPage({ id }: { id: string }) {
  const { timeline: t, events, error, cut, live, reload } = useFollow(id);
  const r = t?.run;
  useEffect(() => {
    document.title = r ? `${visible(functionOf(r.workflow))} · cay` : 'cay';
    return () => {
      document.title = 'cay';
    };
  }, [r?.workflow]);
  if (!r)
    return (
      <div class="page">
        <header class="page-head">
          <div class="title">
            <AllRuns />
            <h1>{error ? 'No such run to show' : 'Run'}</h1>
          </div>
        </header>
        {error ? <ErrorView error={error} retry={reload} /> : <Loading />}
      </div>
    );
  const tab = chosenTab(tabs);
  const waiting = t.spans.filter((s) => s.kind === 'hook' && s.status === 'open').length;
  const failure = r.status === 'failed' ? events.findLast((e) => e.type === 'run_failed') : undefined;
  const notes: Record<string, string> = { events: r.events.toLocaleString(), hooks: waiting ? String(waiting) : '' };
  return (
    <div class={`page${tab === 'hooks' ? '' : ' full'}`}>
      <header class="page-head">
        <div class="title">
          <AllRuns />
          <h1>
            <Called>{r.workflow}</Called>
          </h1>
          <RunBadge status={r.status}>{r.cancel_requested && !ended(r.status) ? 'cancelling' : r.status}</RunBadge>
          <span class="dim ends">
            <Took run={r} />
            {r.started_at ? ', started ' : ', created '}
            <Time at={r.started_at ?? r.created_at} />
          </span>
          <span class="wide">
            <Code>{r.id}</Code>
          </span>
        </div>
        <Actions run={r} spans={t.spans} onChange={reload} />
      </header>
      {(error !== undefined || (!live && !ended(r.status))) && (
        <p class="wf-note" role="status">
          What is shown may be old: {error === undefined ? 'the connection broke off, and is tried again' : visible(error instanceof Error ? error.message : String(error))}
        </p>
      )}
      {failure && (
        <a class="wrong wf-why" href="?view=$run">
          <strong>{visible(r.error_code ?? 'failed')}</strong> <span>{messageOf(failure.payload)}</span>
        </a>
      )}
      {r.cancel_reason && (
        <p class="wf-note">
          {r.status === 'cancelled' ? 'Cancelled' : 'To be cancelled'}: <Name>{r.cancel_reason}</Name>
        </p>
      )}
      {r.attributes?.['$diverged'] && (
        <p class="wrong">
          <Name>{r.attributes['$diverged']}</Name>
        </p>
      )}
      <Family run={r} />
      <Tabs
        tabs={tabs.map((x) => (notes[x.id] ? { ...x, note: <span class="tab-note num">{notes[x.id]}</span> } : x))}
        label="Views of the run"
      />
      <section class="tab-body" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        {tab === 'timeline' && <Trace timeline={t} events={events} />}
        {tab === 'events' && <Events run={r.id} events={events} cut={cut} over={ended(r.status)} />}
        {tab === 'streams' && <Streams run={r.id} events={r.events} over={ended(r.status)} />}
        {tab === 'hooks' && <Hooks spans={t.spans} events={events} />}
      </section>
    </div>
  );
}

function AllRuns() {
  return (
    <a class="ghost back" href="/workflows" aria-label="All runs">
      <Icon name="back" />
    </a>
  );
}

/** What agents and schedules say of themselves by attributes. */
function Family({ run: r }: { run: Run }) {
  const a = r.attributes ?? {};
  const link = (id: string, what: string) => (
    <span>
      {what}{' '}
      <a class="wf-link" href={`/workflows/${encodeURIComponent(id)}`}>
        <Name>{id}</Name>
      </a>
    </span>
  );
  const parts = [
    r.parent && link(r.parent, 'child of'),
    r.previous && link(r.previous, 'continues'),
    r.next && link(r.next, 'goes on in'),
    a['$schedule'] && (
      <span>
        schedule <Name class="strong">{a['$schedule']}</Name>
      </span>
    ),
    a['$agent'] && (
      <span>
        agent <Name class="strong">{a['$agent']}</Name>
      </span>
    ),
    a['$agent.model'] && <Name class="dim">{a['$agent.model']}</Name>,
    a['$agent.tokens'] && <span class="num">{Number(a['$agent.tokens']).toLocaleString()} tokens</span>,
    a['$agent.cost'] && <span class="num">${visible(a['$agent.cost'])}</span>,
    a['$agent'] && (
      <a class="wf-link" href={`/agents/${encodeURIComponent(r.id)}`}>
        Conversation
      </a>
    ),
  ].filter(Boolean);
  return parts.length ? <div class="wf-family">{parts.map((p, i) => <span key={i}>{p}</span>)}</div> : null;
}
