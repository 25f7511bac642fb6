// The side panel of the timeline: all that is known of one span, or of the run.
import type { ComponentChildren } from 'preact';
import { path, post } from '../../api';
import { Code, Duration, Facts, Name, Time } from '../../components/show';
import { complain, toast } from '../../components/toast';
import { setQuery } from '../../router';
import { functionOf, visible } from '../../text';
import { brief, moment } from './events';
import { has, told, useWhole } from './follow';
import { HookFacts } from './hooks';
import { ended, type Event, type Span, type Timeline } from './types';
import { Used } from './used';
import { Failure, messageOf, Value } from './value';
import { RunBadge } from './views';
import { labelOf, purposeOf } from './waits';

function Part({ title, run, event, of }: { title: string; run: string; event?: Event; of: 'input' | 'payload' }) {
  const e = useWhole(run, event);
  if (!event) return null;
  const value = e?.[of];
  if (!event.dropped && !has(value)) return null;
  return (
    <section class="wf-value">
      <h3>{title}</h3>
      {e ? <Value of={value} /> : <span class="dim">Loading</span>}
    </section>
  );
}

function Trouble({ run, event, code, title }: { run: string; event: Event; code?: string; title: string }) {
  const e = useWhole(run, event);
  return (
    <section class="wf-value">
      <h3>{title}</h3>
      {e ? <Failure of={e.payload} code={code} /> : <span class="dim">Loading</span>}
    </section>
  );
}

function Head({ kind, name, whole, status, closable }: { kind: string; name: string; whole?: string; status: string; closable: boolean }) {
  return (
    <div class="panel-head">
      <h2>
        <Name whole={whole}>{name}</Name>
        <span class="dim">{kind}</span>
        <RunBadge status={status} />
      </h2>
      {closable && (
        <button title="Close (Esc)" onClick={() => setQuery({ view: '' })}>
          Close
        </button>
      )}
    </div>
  );
}

/** wake ends sleeps of a run early. */
export const wake = (run: string, waits?: string[]): void => {
  post<{ count: number }>(path('workflows', 'runs', run, 'wake'), { waits }).then(({ count }) => toast(count ? `Woken: ${count}` : 'Nothing was asleep any more', count ? 'good' : 'bad'), complain);
};

export function SpanPanel({ timeline: t, span: s, events, now }: { timeline: Timeline; span: Span; events: readonly Event[]; now: number }) {
  const run = t.run;
  const of = told(events, s.id);
  const begins = Date.parse(s.begins_at);
  const ends = s.ends_at ? Date.parse(s.ends_at) : undefined;
  const tries = s.attempts ?? [];
  const errors = of.events.filter((e) => e.type === 'step_retrying' || e.type === 'step_failed');
  const facts: [string, ComponentChildren][] = [
    ['For', visible(purposeOf(s, t.spans))],
    ['Function', s.name && s.name !== functionOf(s.name) && <Name>{s.name}</Name>],
    ['Id', <Code>{s.id}</Code>],
    ['Run', s.kind === 'child' && s.run ? <a class="wf-link" href={`/workflows/${encodeURIComponent(s.run)}`}><Name>{s.run}</Name></a> : undefined],
    ['Began', <><Time at={s.begins_at} /> <span class="dim num">after <Duration ms={Math.max(0, begins - Date.parse(run.created_at))} /></span></>],
    ['Took', ends !== undefined ? <Duration ms={Math.max(0, ends - begins)} /> : <><Duration ms={Math.max(0, now - begins)} /> <span class="dim">so far</span></>],
    ['Attempts', s.kind === 'step' && tries.length ? String(tries.at(-1)!.number) : undefined],
    [s.kind === 'wait' ? 'Until' : 'Tried again', s.until && <><Time at={s.until} /> <span class="dim num">{moment(s.until, now)}</span></>],
    ['Version', s.kind === 'version' ? String(s.version ?? 0) : undefined],
  ];
  return (
    <>
      <Head kind={s.kind} name={s.kind === 'wait' ? labelOf(s, t.spans) : functionOf(s.name ?? '') || s.id} whole={s.name} status={s.status} closable />
      {s.kind === 'wait' && s.status === 'open' && !ended(run.status) && (
        <div class="buttons wf-do">
          <button class="primary" onClick={() => wake(run.id, [s.id])}>
            Wake it now
          </button>
        </div>
      )}
      {s.kind === 'hook' ? <HookFacts span={s} events={of.events} /> : <Facts of={facts} />}
      {of.error && <Trouble run={run.id} event={of.error} code={s.code} title={s.status === 'failed' || s.kind === 'child' ? 'Error' : 'Last error'} />}
      <Part title="Input" run={run.id} event={of.input} of="input" />
      <Part title="Output" run={run.id} event={of.output} of="payload" />
      {s.kind === 'step' && ofSDK(run) && <Used run={run} step={s.id} />}
      {tries.length > 1 && (
        <section class="wf-value">
          <h3>Attempts</h3>
          <ol class="wf-tries">
            {tries.slice(-100).map((a) => {
              const failure = errors.find((e) => (e.attempt ?? 1) === a.number);
              return (
                <li key={a.number}>
                  <div class="wf-try">
                    <span class="num dim">{a.number}</span>
                    <RunBadge status={a.status} />
                    <span class="grow" />
                    <span class="num dim">
                      after <Duration ms={Math.max(0, Date.parse(a.started_at) - begins)} />
                    </span>
                    <span class="num">
                      <Duration ms={Math.max(0, (a.ended_at ? Date.parse(a.ended_at) : now) - Date.parse(a.started_at))} />
                    </span>
                  </div>
                  {failure && <p class="dim wf-brief">{messageOf(failure.payload) || brief(failure)}</p>}
                </li>
              );
            })}
          </ol>
        </section>
      )}
      <section class="wf-value">
        <h3>Events</h3>
        <ul class="wf-events">
          {of.events.slice(-200).map((e) => (
            <li key={e.slot}>
              <a href={`?tab=events&view=${e.slot}`}>
                <span class="num dim">{e.slot}</span>
                <span class="wf-type">{visible(e.type)}</span>
                <span class="dim wf-brief">{brief(e)}</span>
              </a>
            </li>
          ))}
        </ul>
      </section>
    </>
  );
}

/** ofSDK reports whether a run is of the Workflow SDK. */
const ofSDK = (r: { workflow: string }): boolean => r.workflow !== functionOf(r.workflow);

/** RunPanel shows the run itself. */
export function RunPanel({ timeline: t, events, closable }: { timeline: Timeline; events: readonly Event[]; closable: boolean }) {
  const r = t.run;
  const created = events[0]?.type === 'run_created' ? events[0] : undefined;
  const end = events.findLast((e) => e.type === 'run_completed' || e.type === 'run_failed');
  const link = (id: string | undefined) =>
    id && (
      <a class="wf-link" href={`/workflows/${encodeURIComponent(id)}`}>
        <Name>{id}</Name>
      </a>
    );
  const own = Object.entries(r.attributes ?? {}).sort(([a], [b]) => (a < b ? -1 : 1));
  return (
    <>
      <Head kind="run" name={functionOf(r.workflow)} whole={r.workflow} status={r.status} closable={closable} />
      {end?.type === 'run_failed' && <Trouble run={r.id} event={end} code={r.error_code} title="Error" />}
      <Part title="Input" run={r.id} event={created} of="payload" />
      {end?.type === 'run_completed' && <Part title="Output" run={r.id} event={end} of="payload" />}
      {ofSDK(r) && <Used run={r} />}
      {own.length > 0 && (
        <section class="wf-value">
          <h3>Attributes</h3>
          <Facts of={own.map(([k, v]) => [visible(k), <Name>{v}</Name>])} />
        </section>
      )}
      <section class="wf-value">
        <h3>Run</h3>
        <Facts
          of={[
            ['Function', r.workflow !== functionOf(r.workflow) && <Name>{r.workflow}</Name>],
            ['Id', <Code>{r.id}</Code>],
            ['Key', r.key && <Code>{r.key}</Code>],
            ['Group', r.group && <Name>{r.group}</Name>],
            ['Priority', r.priority ? String(r.priority) : undefined],
            ['Build', r.build && <Name>{r.build}</Name>],
            ['Parent', link(r.parent)],
            ['First', r.root !== r.id && r.root !== r.parent ? link(r.root) : undefined],
            ['Continues', link(r.previous)],
            ['Goes on in', link(r.next)],
            ['Created', <Time at={r.created_at} />],
            ['Not before', r.not_before && <Time at={r.not_before} />],
            ['Started', r.started_at && <Time at={r.started_at} />],
            ['Ended', r.completed_at && <Time at={r.completed_at} />],
            ['Kept until', r.expires_at && <Time at={r.expires_at} />],
            ['Events', r.events.toLocaleString()],
            ['Recoveries', r.recoveries ? `${r.recoveries}: workers that had it died` : undefined],
          ]}
        />
      </section>
    </>
  );
}
