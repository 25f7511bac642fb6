// Hooks: what runs wait for to be told, and a form to tell them.
import { useState } from 'preact/hooks';
import { call, path } from '../../api';
import { Badge, Code, Facts, Name, Time } from '../../components/show';
import { Empty } from '../../components/state';
import { complain, toast } from '../../components/toast';
import { asked } from '../agent/log';
import { Approve } from '../agent/step';
import { has } from './follow';
import { ListPage, useListed } from './listed';
import type { Event, Hook, Span } from './types';
import { textOf, Value } from './value';

/** Resume gives a hook a value. */
export function Resume({ token, onDone }: { token: string; onDone?: () => void }) {
  const [text, setText] = useState('');
  const [wrong, setWrong] = useState('');
  const [busy, setBusy] = useState(false);
  const send = async (e: Submit) => {
    e.preventDefault();
    const value = text.trim() || 'null';
    try {
      JSON.parse(value);
    } catch (err) {
      setWrong(`This is not JSON: ${(err as Error).message}`);
      return;
    }
    setWrong('');
    setBusy(true);
    try {
      // The text itself, not what JSON.parse makes of it: large numbers stay what they are.
      await call('POST', path('workflows', 'hooks', 'resume'), { body: `{"token":${JSON.stringify(token)},"payload":{"json":${value}}}`, headers: { 'Content-Type': 'application/json' } });
      toast('Resumed');
      setText('');
      onDone?.();
    } catch (err) {
      complain(err);
    }
    setBusy(false);
  };
  return (
    <form class="wf-resume" onSubmit={send}>
      <label class="field">
        Value, as JSON
        <textarea
          rows={3}
          value={text}
          placeholder='{"approved": true}'
          spellcheck={false}
          autocomplete="off"
          onInput={(e) => setText(e.currentTarget.value)}
          onKeyDown={(e) => {
            if (e.key === 'Enter' && (e.metaKey || e.ctrlKey)) e.currentTarget.form?.requestSubmit();
          }}
        />
      </label>
      {wrong && (
        <p class="wrong" role="alert">
          {wrong}
        </p>
      )}
      <div class="buttons">
        <button class="primary" disabled={busy}>
          {busy ? 'Working…' : 'Resume'}
        </button>
      </div>
    </form>
  );
}

/** The browser's, not one of a log. */
type Submit = globalThis.Event;

/** address is where a webhook is called. */
export const address = (token: string): string => `${location.origin}/.well-known/workflow/v1/webhook/${encodeURIComponent(token)}`;

/** HookFacts shows one hook of a run: what it waits for, and what it has got. */
export function HookFacts({ span: s, events }: { span: Span; events: readonly Event[] }) {
  const created = events.find((e) => e.id === s.id && e.type === 'hook_created');
  const got = events.filter((e) => e.id === s.id && e.type === 'hook_received');
  const question = s.status === 'open' && s.token && !s.webhook ? asked(created?.payload) : undefined;
  return (
    <>
      <Facts
        of={[
          ['Token', s.token && <Code>{s.token}</Code>],
          ['Webhook', s.webhook && s.token ? <Code>{address(s.token)}</Code> : undefined],
          ['Held by', s.status === 'conflict' && s.run ? <a class="wf-link" href={`/workflows/${encodeURIComponent(s.run)}`}><Name>{s.run}</Name></a> : undefined],
          ['Created', <Time at={s.begins_at} />],
          ['Ended', s.ends_at && <Time at={s.ends_at} />],
        ]}
      />
      {has(created?.payload) && !question && (
        <section class="wf-value">
          <h3>Metadata</h3>
          <Value of={created!.payload} />
        </section>
      )}
      {got.map((e) => (
        <section class="wf-value" key={e.slot}>
          <h3>
            Received <span class="dim"><Time at={e.at} /></span>
          </h3>
          <Value of={e.payload} />
        </section>
      ))}
      {s.status === 'open' && s.token && !s.webhook && (question ? <Approve key={s.token} of={{ ...question, hook: s.id, token: s.token }} project="" /> : <Resume key={s.token} token={s.token} />)}
      {s.status === 'open' && s.webhook && <p class="dim note">It is resumed by a request to its address. Who knows that may send one.</p>}
    </>
  );
}

/** Hooks are those of a run. */
export function Hooks({ spans, events }: { spans: readonly Span[]; events: readonly Event[] }) {
  const hooks = spans.filter((s) => s.kind === 'hook');
  if (hooks.length === 0) return <Empty title="No hook">A hook is where a run waits to be told something: by a person, or by another program.</Empty>;
  const order = [...hooks].sort((a, b) => Number(b.status === 'open') - Number(a.status === 'open') || a.slot - b.slot);
  return (
    <div class="stack">
      {order.slice(0, 200).map((s) => (
        <section class="panel" key={s.id}>
          <div class="panel-head">
            <h2>
              <Name>{(!s.webhook && s.token) || s.id}</Name> <Badge status={s.status === 'open' ? 'pending' : s.status === 'conflict' ? 'failed' : 'stopped'}>{s.status === 'open' ? 'waits' : s.status}</Badge>
            </h2>
          </div>
          <HookFacts span={s} events={events} />
        </section>
      ))}
      {order.length > 200 && <p class="dim">and {order.length - 200} more: the events have them all</p>}
    </div>
  );
}

/** HooksPage lists all hooks that wait. */
export function HooksPage() {
  const [cursors, setCursors] = useState<string[]>([]);
  const list = useListed<Hook>('hooks', { limit: 100, cursor: cursors.at(-1) });
  return (
    <ListPage
      of={list}
      at="/workflows/hooks"
      empty={cursors.length ? undefined : { title: 'No run waits to be told something', command: 'cay workflow hooks', text: 'Hooks that wait are listed here, with a form to resume them.' }}
    >
      {(items) => (
        <>
          <ul class="wf-list">
            {items.map((h) => (
              <Waiting key={h.run + h.id} hook={h} onDone={list.reload} />
            ))}
          </ul>
          {(list.value?.next || cursors.length > 0) && (
            <div class="buttons">
              <button disabled={cursors.length === 0} onClick={() => setCursors(cursors.slice(0, -1))}>
                Newer
              </button>
              <button disabled={!list.value?.next} onClick={() => setCursors([...cursors, list.value!.next!])}>
                Older
              </button>
            </div>
          )}
        </>
      )}
    </ListPage>
  );
}

/** Waiting is one hook of the list: a question of an agent with its answers, or a value and a form to give one. */
function Waiting({ hook: h, onDone }: { hook: Hook; onDone: () => void }) {
  const [open, setOpen] = useState(false);
  const question = h.webhook ? undefined : asked(h.metadata);
  return (
    <li class="panel">
      <div class="wf-list-head">
        <Badge status="pending">waits</Badge>
        <Code>{h.token}</Code>
        <span class="grow" />
        <span class="dim num">
          <Time at={h.created_at} />
        </span>
        <span class="actions">
          <a class="button" href={question ? `/agents/${encodeURIComponent(h.run)}` : `/workflows/${encodeURIComponent(h.run)}?tab=hooks`}>
            {question ? 'Agent' : 'Run'}
          </a>
          {!h.webhook && !question && (
            <button aria-expanded={open} onClick={() => setOpen(!open)}>
              Resume…
            </button>
          )}
        </span>
      </div>
      {question ? (
        <Approve of={{ ...question, hook: h.id, token: h.token }} project="" />
      ) : open && has(h.metadata) ? null : (
        <p class="dim wf-one-line">{h.webhook ? <Code>{address(h.token)}</Code> : has(h.metadata) ? textOf(h.metadata) : <Name>{h.run}</Name>}</p>
      )}
      {open && (
        <>
          {has(h.metadata) && <Value of={h.metadata} />}
          <Resume token={h.token} onDone={onDone} />
        </>
      )}
    </li>
  );
}
