// One answer of a model: what it says, what it thinks, and the tools it calls.
import { useMemo, useState } from 'preact/hooks';
import { path, post } from '../../api';
import { JSONView, Name } from '../../components/show';
import { complain, toast } from '../../components/toast';
import { Exact, written } from '../../json';
import { useGet } from '../../live';
import type { Identity } from '../../types';
import { visible, visibleLines } from '../../text';
import { count, dollars, millis } from '../gateway/money';
import { callsIn, type Part, type Step, type ToolPart } from './conversation';
import type { Followed } from './follow';
import type { Call, Log, Waiting } from './log';
import { Say } from './say';
import { attribute } from './types';

interface Props {
  step: Step;
  n: number;
  followed: Followed;
  version: number;
  project: string;
  /** the run has ended */
  over: boolean;
}

export function StepView({ step, n, followed: f, version, project, over }: Props) {
  const call = f.log.calls.get(step.id);
  // What does not change is not drawn again, however fast words come elsewhere.
  const waiting = [...callsIn(step.parts)].map((call) => (f.log.waiting.get(call)?.token ?? '') + (f.log.answered.has(call) ? 'a' : '')).join();
  return useMemo(
    () => (
      <div class="step">
        {step.again > 0 && <p class="dim note-line">The answer broke off{step.again > 1 ? ` ${step.again} times` : ''}, and was begun again.</p>}
        {step.parts.map((p, i) => (
          <PartView key={i} part={p} log={f.log} project={project} over={over} />
        ))}
        {step.open && !over && step.parts.length === 0 && (
          <p class="dim note-line">
            <span class="live">The model is asked.</span>
          </p>
        )}
        {call?.error && call.status !== 'completed' && (
          <p class="bad-text note-line">
            {call.status === 'failed' ? 'It failed' : 'It failed, and is tried again'}: {visibleLines(call.error)}
          </p>
        )}
        <StepFoot n={n} call={call} main={f.log.attributes[attribute.agent]} />
      </div>
    ),
    [step, version, n, call?.status, call?.answer, call?.error, waiting, project, over],
  );
}

/** StepFoot is what a step was, and cost; of an agent that is not the one the run is named after, who it was. */
function StepFoot({ n, call, main }: { n: number; call?: Call; main?: string }) {
  const a = call?.answer;
  const u = a?.usage;
  return (
    <p class="step-foot dim num">
      <span>Step {n}</span>
      {a?.agent && main && a.agent !== main && <Name class="strong">{a.agent}</Name>}
      {a?.model && <Name>{a.model}</Name>}
      {u && (
        <span>
          {count(u.input)} in, {count(u.output)} out
        </span>
      )}
      {u && <span title={`$${u.cost}`}>{u.cost_known ? dollars(u.cost) : Number(u.cost) > 0 ? `at least ${dollars(u.cost)}` : 'cost unknown'}</span>}
      {call?.startedAt !== undefined && call.endedAt !== undefined && <span>{millis(call.endedAt - call.startedAt)}</span>}
      {call && call.attempt > 1 && <span>{call.attempt} attempts</span>}
      {a?.generation_id && (
        <a class="link" href={`/gateway/requests/${encodeURIComponent(a.generation_id)}`}>
          model call
        </a>
      )}
    </p>
  );
}

interface PartProps {
  part: Part;
  log: Log;
  project: string;
  over: boolean;
}

function PartView({ part: p, log, project, over }: PartProps) {
  switch (p.kind) {
    case 'text':
      return (
        <div class="said">
          <Say text={p.text} open={p.open && !over} />
        </div>
      );
    case 'reasoning':
      return (
        <details class="fold reasoning">
          <summary>{p.open && !over ? <span class="live">Reasoning</span> : 'Reasoning'}</summary>
          <div class="say">{visibleLines(p.text)}</div>
        </details>
      );
    case 'tool':
      return <ToolView tool={p} log={log} project={project} over={over} />;
    case 'file':
    case 'source':
      return (
        <p class="attached">
          <span class="dim">{p.kind}</span> <Name>{p.name}</Name> {p.detail && p.detail !== p.name && <Name class="dim">{p.detail}</Name>}
        </p>
      );
    case 'data':
      return (
        <details class="fold">
          <summary>
            <Name>{p.name}</Name>
          </summary>
          <JSONView value={p.value} />
        </details>
      );
  }
}

const words: Record<ToolPart['state'], [string, string]> = {
  writing: ['busy', 'is being called'],
  running: ['busy', 'runs'],
  asked: ['warn', 'needs approval'],
  done: ['good', 'done'],
  failed: ['bad', 'failed'],
  denied: ['bad', 'denied'],
};

function ToolView({ tool: t, log, project, over }: { tool: ToolPart; log: Log; project: string; over: boolean }) {
  const waiting = log.waiting.get(t.call);
  const answered = log.answered.get(t.call);
  const asked = t.state === 'asked' || (t.state === 'running' && !!waiting && !t.work);
  const state = t.state === 'running' && asked ? 'asked' : t.state === 'asked' && answered ? (answered.approved ? 'running' : 'denied') : t.state;
  const [tone, word] = over && (state === 'writing' || state === 'running') ? ['idle', 'did not end'] : words[state];
  const hint = t.hasInput ? brief(t.input) : t.inputText;
  return (
    <div class={`tool ${tone}`}>
      <details>
        <summary>
          <span class={`badge ${tone}`}>
            <i aria-hidden="true" />
            <Name class="tool-name">{t.name || 'tool'}</Name>
          </span>
          <span class="tool-hint dim">{visible(hint.slice(0, 300))}</span>
          <span class="tool-state dim">{word}</span>
        </summary>
        <div class="tool-body">
          <Value name="Input" value={t.hasInput ? t.input : t.inputText || undefined} />
          {t.error !== undefined && <Value name="Error" value={t.error} />}
          {t.output !== undefined && <Value name={t.preliminary ? 'Output so far' : 'Output'} value={t.output} />}
          {t.byProvider && <p class="dim">The provider runs this tool.</p>}
        </div>
      </details>
      {t.work && t.work.length > 0 && (
        <details class="work" open={!over && t.preliminary}>
          <summary>{over || !t.preliminary ? 'What it did' : <span class="live">What it does</span>}</summary>
          <div class="work-parts">
            {t.work.map((p, i) => (
              <PartView key={i} part={p} log={log} project={project} over={over || !t.preliminary} />
            ))}
          </div>
        </details>
      )}
      {asked && waiting && <Approve of={waiting} project={project} />}
      {t.state === 'asked' && !waiting && !answered && <p class="dim tool-note">{over ? 'Nobody has answered here: the answer comes with the next message of its chat.' : 'Whether it may be called is asked elsewhere.'}</p>}
      {answered && (
        <p class="dim tool-note">
          {answered.approved ? 'Approved' : 'Denied'}
          {answered.by && (
            <>
              {' by '}
              <Name>{answered.by}</Name>
            </>
          )}
          {answered.reason && <>: {visibleLines(answered.reason)}</>}
        </p>
      )}
    </div>
  );
}

/** brief is a value on one line. */
function brief(v: unknown): string {
  if (typeof v === 'string') return v;
  if (v && typeof v === 'object' && !Array.isArray(v) && !(v instanceof Exact)) {
    return Object.entries(v)
      .slice(0, 6)
      .map(([k, x]) => `${k}: ${typeof x === 'string' ? x : written(x)}`)
      .join(', ')
      .slice(0, 400);
  }
  return (written(v) ?? '').slice(0, 400);
}

/** shown is how much of a text is put into the page, in characters. */
const shown = 100_000;

function Value({ name, value }: { name: string; value: unknown }) {
  if (value === undefined) return null;
  return (
    <div class="tool-value">
      <p class="dim">{name}</p>
      {typeof value === 'string' ? (
        <pre tabIndex={0}>
          {visibleLines(value.slice(0, shown))}
          {value.length > shown && '…'}
        </pre>
      ) : (
        <JSONView value={value} />
      )}
    </div>
  );
}

/** Approve answers whether a tool may be called. */
export function Approve({ of: q, project }: { of: Waiting; project: string }) {
  const who = useGet<Identity>('/v1/whoami');
  const [reason, setReason] = useState('');
  const [busy, set] = useState(false);
  const answer = async (approved: boolean) => {
    set(true);
    try {
      await post(path('workflows', 'hooks', 'resume') + (project ? `?project=${encodeURIComponent(project)}` : ''), {
        token: q.token,
        payload: { json: { approved, reason: reason.trim() || undefined, by: who.value?.token.name || undefined } },
      });
      toast(approved ? 'Approved' : 'Denied');
    } catch (e) {
      complain(e);
      set(false);
    }
  };
  return (
    <form
      class="approve"
      onSubmit={(e) => {
        e.preventDefault();
      }}
    >
      <p>
        May <Name class="strong">{q.agent}</Name> call <Name class="strong">{q.tool}</Name> with this?
      </p>
      <div class="approve-input" tabIndex={0} role="group" aria-label="What the tool is called with">
        <JSONView value={q.input} />
      </div>
      {q.signed ? (
        <p class="dim note-line">Only an answer counts that is signed with the secret of the agent: programs that have it give one, by agent.ApprovalQuestion.Sign.</p>
      ) : (
        <div class="approve-answer">
          <input aria-label="Reason" placeholder="Reason, told to the model if it is denied" value={reason} autocomplete="off" onInput={(e) => setReason(e.currentTarget.value)} />
          <button type="button" class="danger" disabled={busy} onClick={() => answer(false)}>
            Deny
          </button>
          <button type="button" class="primary" disabled={busy} onClick={() => answer(true)}>
            Approve
          </button>
        </div>
      )}
    </form>
  );
}
