// The log of a run.
import type { ComponentChildren } from 'preact';
import { useMemo } from 'preact/hooks';
import { path, send } from '../../api';
import { Code, Facts, Name, Time } from '../../components/show';
import { Empty } from '../../components/state';
import { Table, type Column } from '../../components/table';
import { written } from '../../json';
import { place, setQuery } from '../../router';
import { functionOf, visible } from '../../text';
import { has, useWhole } from './follow';
import type { Event } from './types';
import { Copy, Failure, messageOf, textOf, Value } from './value';

const failures = new Set(['run_failed', 'step_failed', 'step_retrying', 'cancel_requested', 'run_cancelled', 'hook_conflict']);
const tone = (e: Event): string => (failures.has(e.type) ? (e.type === 'step_retrying' ? 'warn' : 'bad') : e.type.endsWith('_completed') ? 'good' : '');
const isFailure = (e: Event): boolean => e.type === 'run_failed' || e.type === 'step_failed' || e.type === 'step_retrying' || (e.type === 'child_ended' && e.code !== 'completed');

/** brief is what an event says, on one line. */
export function brief(e: Event): string {
  const parts: string[] = [];
  if (e.attempt && e.type.startsWith('step_')) parts.push(`attempt ${e.attempt}`);
  if (e.type === 'version_marked') parts.push(`version ${e.attempt ?? 0}`);
  if (e.token) parts.push(visible(e.token));
  if (e.until && e.type !== 'run_created') parts.push(`until ${moment(e.until, e.at)}`);
  if (e.reason) parts.push(visible(e.reason));
  if (e.code) parts.push(visible(e.code));
  if (isFailure(e)) parts.push(messageOf(e.payload));
  else if (has(e.payload)) parts.push(textOf(e.payload));
  else if (has(e.input)) parts.push(textOf(e.input));
  else if (e.dropped) parts.push('…');
  if (e.attributes) parts.push(visible(Object.entries(e.attributes).map(([k, v]) => `${k}=${v}`).join(' ')));
  return parts.filter(Boolean).join('  ');
}

/** moment is a time of the day, with its date if that is not near a time. */
export function moment(at: string, near: string | number): string {
  const far = Math.abs(Date.parse(at) - new Date(near).getTime()) > 20 * 3_600_000;
  return new Date(at).toLocaleString(undefined, { ...(far && { year: 'numeric', month: 'short', day: 'numeric' }), hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });
}

const clock = (at: string): string => {
  const d = new Date(at);
  return d.toLocaleTimeString(undefined, { hourCycle: 'h23' }) + '.' + String(d.getMilliseconds()).padStart(3, '0');
};

const columns: Column<Event>[] = [
  { name: 'Slot', width: '46px', class: 'num', show: (e) => <span class="dim">{e.slot}</span> },
  { name: 'Time', width: '98px', class: 'wide num', show: (e) => <span class="dim">{clock(e.at)}</span> },
  {
    name: 'Event',
    width: 'minmax(120px, 150px)',
    main: true,
    show: (e) => <span class={`wf-type ${tone(e)}`}>{visible(e.type)}</span>,
  },
  { name: 'Of', width: 'minmax(100px, 1.2fr)', show: (e) => <Name whole={e.name}>{e.name && e.id && !e.id.includes(e.name) ? `${functionOf(e.name)} ${e.id}` : e.id || functionOf(e.name ?? '')}</Name> },
  { name: 'What', width: 'minmax(120px, 3fr)', class: 'wide', show: (e) => <span class="wf-brief dim">{brief(e)}</span> },
];

/** asJSON is events as JSON: as they were read, or, if that would not be all, as the API writes them. */
async function asJSON(run: string, events: readonly Event[]): Promise<string> {
  if (events.every((e) => !e.dropped)) return written(events, 2) ?? '';
  const slots = new Set(events.map((e) => e.slot));
  const [first, last] = [events[0]!.slot, events.at(-1)!.slot];
  const answer = await send('GET', path('workflows', 'runs', run, 'events'), { query: { from: first, limit: last - first + 1 }, headers: { Accept: 'application/x-ndjson' } });
  const lines = (await answer.text()).split('\n').filter((l) => l.trim() && slots.has((JSON.parse(l) as Event).slot));
  return `[\n${lines.join(',\n')}\n]`;
}

export function Events({ run, events, cut, over }: { run: string; events: readonly Event[]; cut: boolean; over: boolean }) {
  const { query } = place.value;
  const text = (query.get('q') ?? '').trim();
  const view = query.get('view') ?? '';
  const asked = text.toLowerCase();
  const rows = useMemo(
    () => (asked ? events.filter((e) => `${e.type} ${e.id ?? ''} ${e.name ?? ''} ${brief(e)}`.toLowerCase().includes(asked)) : events),
    [events, asked],
  );
  const chosen = view ? events.find((e) => String(e.slot) === view) : undefined;
  return (
    <div class="wf-part">
      <div class="wf-bar">
        <input data-filter type="search" aria-label="Search events" placeholder="Search events" value={query.get('q') ?? ''} spellcheck={false} onInput={(e) => setQuery({ q: e.currentTarget.value })} />
        <span class="dim num">
          {rows.length.toLocaleString()} {rows.length === 1 ? 'event' : 'events'}
          {cut && `, the log goes on: cay workflow events ${run} reads it`}
        </span>
        <span class="grow" />
        <Copy text={() => asJSON(run, rows)} label="Copy JSON of the events">
          Copy JSON
        </Copy>
      </div>
      {rows.length === 0 ? (
        <Empty title={events.length ? 'Nothing matches' : 'No event yet'} />
      ) : (
        <div class={`split${chosen ? '' : ' alone'}`}>
          <div class="split-list">
            <Table
              fill
              tail={!over}
              label="Events"
              rowHeight={32}
              columns={chosen ? [columns[0]!, columns[2]!, columns[3]!] : columns}
              rows={rows}
              id={(e) => String(e.slot)}
              onOpen={(e) => setQuery({ view: String(e.slot) === view ? '' : String(e.slot) })}
              selected={view}
            />
          </div>
          {chosen && <OneEvent key={chosen.slot} run={run} event={chosen} />}
        </div>
      )}
    </div>
  );
}

function OneEvent({ run, event: known }: { run: string; event: Event }) {
  const e = useWhole(run, known) ?? known;
  return (
    <div class="split-view padded">
      <div class="panel-head">
        <h2>
          <span class={`wf-type ${tone(e)}`}>{visible(e.type)}</span> <span class="dim num">{e.slot}</span>
        </h2>
        <span class="actions">
          <Copy text={() => asJSON(run, [known])} label="Copy JSON of the event">
            Copy JSON
          </Copy>
          <button onClick={() => setQuery({ view: '' })}>Close</button>
        </span>
      </div>
      <Facts
        of={[
          ['At', <Time at={e.at} />],
          ['Name', e.name && <Name>{e.name}</Name>],
          ['Id', e.id && <Code>{e.id}</Code>],
          ['Attempt', e.attempt && e.type.startsWith('step_') ? String(e.attempt) : undefined],
          ['Began', e.started_at && <Time at={e.started_at} />],
          ['Until', e.until && e.type !== 'run_created' && <Time at={e.until} />],
          ['Token', e.token && <Code>{e.token}</Code>],
          ['Key', e.key && <Code>{e.key}</Code>],
          ['Code', e.code && <Name>{e.code}</Name>],
          ['Reason', e.reason && <Name>{e.reason}</Name>],
          ...Object.entries(e.attributes ?? {}).map(([k, v]): [string, ComponentChildren] => [visible(k), v ? <Name>{v}</Name> : <span class="dim">removed</span>]),
        ]}
      />
      {has(e.input) && (
        <section class="wf-value">
          <h3>Input</h3>
          <Value of={e.input} />
        </section>
      )}
      {has(e.payload) && (
        <section class="wf-value">
          <h3>{isFailure(e) ? 'Error' : 'Value'}</h3>
          {isFailure(e) ? <Failure of={e.payload} code={e.code} /> : <Value of={e.payload} />}
        </section>
      )}
    </div>
  );
}
