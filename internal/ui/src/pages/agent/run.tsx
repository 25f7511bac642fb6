// The conversation of one run, as it goes on.
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { path, post } from '../../api';
import { ask } from '../../components/dialog';
import { Icon } from '../../components/icons';
import { Code, Facts, JSONView, Name, Time } from '../../components/show';
import { ErrorView, Loading } from '../../components/state';
import { toast } from '../../components/toast';
import { now, useGet } from '../../live';
import { place } from '../../router';
import { visible, visibleLines } from '../../text';
import { count, dollars, millis } from '../gateway/money';
import { useRunOf, type Followed } from './follow';
import { RunBadge } from '../workflow/views';
import { callsIn, text } from './conversation';
import { Say } from './say';
import { Approve, StepView } from './step';
import { attribute, type Run } from './types';

export function AgentRun({ id }: { id: string }) {
  const project = place.value.query.get('project') ?? '';
  const at = path('workflows', 'runs', id);
  const asked = useGet<Run>(at, { project });
  const f = useRunOf(id, project);
  const run = asked.value;
  const agent = f.log.attributes[attribute.agent] ?? run?.attributes?.[attribute.agent] ?? run?.workflow ?? '';
  useEffect(() => {
    document.title = agent ? `${visible(agent)} · cay` : 'cay';
    return () => {
      document.title = 'cay';
    };
  }, [agent]);
  if (!run || (!f.ready && !f.error)) return <div class="page">{(asked.error ?? f.error) ? <ErrorView error={asked.error ?? f.error} retry={asked.reload} /> : <Loading />}</div>;
  const status = f.log.status ?? (f.ready ? 'running' : run.status);
  const waits = f.log.waiting.size;
  const more = project ? `?project=${encodeURIComponent(project)}` : '';
  const cancel = () =>
    ask({
      title: 'Cancel the run?',
      text: 'The agent stops, and what the program has for this case is done. Calls of models that are under way are given up.',
      action: 'Cancel the run',
      danger: true,
      run: () => post(`${at}/cancel${more}`, {}).then(() => toast('It is being cancelled')),
    });
  return (
    <div class="page full agents">
      <header class="page-head">
        <div class="title">
          <a class="ghost back" href={`/agents${more}`} aria-label="All agents">
            <Icon name="back" />
          </a>
          <h1>
            <Name>{agent}</Name>
          </h1>
          <Status of={status} waits={waits > 0} />
          <span class="wide">
            <Code>{id}</Code>
          </span>
        </div>
        <div class="actions">
          <a class="button" href={`/workflows/${encodeURIComponent(id)}${more}`}>
            Workflow run
          </a>
          <a class="button" href={`/gateway/requests?session=${encodeURIComponent(id)}`}>
            Model calls
          </a>
          {status === 'running' && <button onClick={cancel}>Cancel</button>}
        </div>
      </header>
      <div class="talk-page">
        <Talk followed={f} run={run} project={project} />
        <Side followed={f} run={run} status={status} />
      </div>
    </div>
  );
}

function Status({ of, waits }: { of: string; waits: boolean }) {
  return of === 'running' && waits ? <RunBadge status="paused">waits for approval</RunBadge> : <RunBadge status={of} />;
}

function Talk({ followed: f, run, project }: { followed: Followed; run: Run; project: string }) {
  const box = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  const [away, setAway] = useState(false);
  useLayoutEffect(() => {
    const b = box.current!;
    if (atEnd.current) b.scrollTop = b.scrollHeight;
  }, [f.version]);
  const { messages, unreadable } = f.talk;
  const over = f.log.status !== undefined;
  // Questions of agents whose work is not on the stream have no place of their own.
  const placed = new Set(f.log.waiting.size ? messages.flatMap((m) => m.steps.flatMap((s) => [...callsIn(s.parts)])) : []);
  const others = [...f.log.waiting.values()].filter((q) => !placed.has(q.call_id));
  let n = 0;
  return (
    <div class="talk-box">
      <div
        class="talk"
        ref={box}
        tabIndex={0}
        role="log"
        aria-label="Conversation"
        onScroll={(e) => {
          const b = e.currentTarget;
          atEnd.current = b.scrollTop + b.clientHeight >= b.scrollHeight - 40;
          setAway(!atEnd.current);
        }}
      >
        <div class="talk-inner">
          <Asked input={f.log.input} />
          {f.quiet && <p class="dim note-line">This agent writes nothing to its stream: this is what the run has recorded.</p>}
          {messages.map((m, i) => (
            <section key={i} class="answer" aria-label="Answer">
              {m.steps.map((s) => {
                const no = ++n;
                return <StepView key={`${s.id}/${no}`} step={s} n={no} followed={f} version={s.version} project={project} over={over} />;
              })}
              {m.error && (
                <div class="wrong" role="alert">
                  {visibleLines(m.error)}
                </div>
              )}
              {m.aborted && <p class="dim note-line">{visibleLines(m.aborted)}</p>}
            </section>
          ))}
          {others.map((q) => (
            <div class="tool warn" key={q.token}>
              <Approve of={q} project={project} />
            </div>
          ))}
          {unreadable > 0 && <p class="dim note-line">{unreadable.toLocaleString()} pieces are sealed or have another form, and cannot be shown.</p>}
          {f.log.error && f.log.status === 'failed' && (
            <div class="wrong" role="alert">
              {visibleLines(f.log.error)}
              {f.log.code && <span>{visible(f.log.code)}</span>}
            </div>
          )}
          {f.error ? <ErrorView error={f.error} /> : null}
          {!over && <p class="dim note-line">{f.log.waiting.size ? 'The agent waits for an answer.' : <span class={f.live ? 'live' : ''}>{f.live ? (run.started_at || n > 0 ? 'The agent works.' : 'Nothing has begun yet.') : 'Reconnecting.'}</span>}</p>}
        </div>
      </div>
      {away && (
        <button
          class="to-end"
          onClick={() => {
            atEnd.current = true;
            box.current!.scrollTop = box.current!.scrollHeight;
          }}
        >
          To the end
        </button>
      )}
    </div>
  );
}

/** Asked is what the run was started with: what an agent's own workflow takes, a text, or something else. */
function Asked({ input }: { input?: { json?: unknown; base64?: string } | null }) {
  if (!input) return null;
  if (input.base64 !== undefined) return <p class="dim note-line">What it was asked is sealed.</p>;
  const v = input.json;
  if (typeof v === 'string') return <Said role="user" text={v} />;
  if (!v || typeof v !== 'object') return null;
  const call = v as { prompt?: unknown; messages?: unknown; instructions?: unknown };
  const messages = Array.isArray(call.messages) ? (call.messages as { role?: unknown; content?: unknown }[]).slice(-200) : [];
  if (typeof call.prompt !== 'string' && messages.length === 0)
    return (
      <details class="fold">
        <summary>Input</summary>
        <JSONView value={v} />
      </details>
    );
  return (
    <>
      {typeof call.instructions === 'string' && call.instructions && (
        <details class="fold">
          <summary>Instructions</summary>
          <div class="say">{visibleLines(call.instructions)}</div>
        </details>
      )}
      {messages.map((m, i) => (
        <History key={i} role={text(m?.role)} content={m?.content} />
      ))}
      {typeof call.prompt === 'string' && call.prompt && <Said role="user" text={call.prompt} />}
    </>
  );
}

/** History is a message that was there before. */
function History({ role, content }: { role: string; content: unknown }) {
  if (typeof content === 'string') return role === 'system' ? <Folded name="System message" text={content} /> : <Said role={role} text={content} />;
  const parts = Array.isArray(content) ? (content as Record<string, unknown>[]) : [];
  return (
    <>
      {parts.map((p, i) =>
        p?.type === 'text' ? (
          <Said key={i} role={role} text={text(p.text)} />
        ) : p?.type === 'reasoning' ? (
          <Folded key={i} name="Reasoning" text={text(p.text)} />
        ) : (
          <details key={i} class="fold">
            <summary>
              {visible(text(p?.type).replace(/-/g, ' ') || 'part')} {p?.toolName ? <Name class="strong">{text(p.toolName)}</Name> : null}
            </summary>
            <JSONView value={p} />
          </details>
        ),
      )}
    </>
  );
}

function Folded({ name, text: said }: { name: string; text: string }) {
  return (
    <details class="fold">
      <summary>{name}</summary>
      <div class="say">{visibleLines(said)}</div>
    </details>
  );
}

function Said({ role, text: said }: { role: string; text: string }) {
  return (
    <div class={role === 'user' ? 'bubble' : 'said'}>
      <Say text={said} />
    </div>
  );
}

/** Side is what the run has cost so far, and how long each call of a model took. */
function Side({ followed: f, run, status }: { followed: Followed; run: Run; status: string }) {
  const models = [...f.log.calls.values()].filter((c) => c.name === 'agent.model');
  const sum = models.reduce(
    (s, c) => {
      const u = c.answer?.usage;
      if (!u) return s;
      return { input: s.input + u.input, output: s.output + u.output, reasoning: s.reasoning + (u.reasoning ?? 0), cache: s.cache + (u.cache_read ?? 0), cost: s.cost + Number(u.cost), known: s.known && u.cost_known };
    },
    { input: 0, output: 0, reasoning: 0, cache: 0, cost: 0, known: true },
  );
  const told = models.some((m) => m.answer);
  const began = f.log.startedAt ?? Date.parse(run.created_at);
  const a = f.log.attributes;
  return (
    <aside class="panel side">
      <Facts
        of={[
          ['Status', <Status of={status} waits={f.log.waiting.size > 0} />],
          ['Model', <Name>{a[attribute.model] ?? run.attributes?.[attribute.model] ?? '–'}</Name>],
          ['Workflow', <Name>{run.workflow}</Name>],
          ['Steps', String(models.length)],
          ['Tokens in', told ? `${sum.input.toLocaleString()}${sum.cache ? `, ${count(sum.cache)} cached` : ''}` : '–'],
          ['Tokens out', told ? `${sum.output.toLocaleString()}${sum.reasoning ? `, ${count(sum.reasoning)} reasoning` : ''}` : '–'],
          ['Cost', told ? `${sum.known ? '' : 'at least '}${dollars(sum.cost)}` : '–'],
          ['Began', <Time at={run.created_at} />],
          ['Took', millis(Math.max(0, (f.log.endedAt ?? now.value) - began))],
          ['Project', run.project && <Name>{run.project}</Name>],
        ]}
      />
    </aside>
  );
}
