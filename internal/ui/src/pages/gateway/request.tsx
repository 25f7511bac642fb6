// One request of the gateway: what was asked of whom, what came of it, and what it cost.
import { useState } from 'preact/hooks';
import { call, get, path } from '../../api';
import { ask } from '../../components/dialog';
import { Icon } from '../../components/icons';
import { Badge, Bytes, Code, Facts, JSONView, Name, Time } from '../../components/show';
import { ErrorView, Loading } from '../../components/state';
import { complain, toast } from '../../components/toast';
import { parse } from '../../json';
import { useGet } from '../../live';
import { visible, visibleLines } from '../../text';
import { dollars, millis } from './money';
import { CallBadge, Cost, Tags } from './requests';
import type { Attempt, Bodies, Body, ModelCall, Tokens } from './types';

const only = (name: string, value: string) => `/gateway/requests?${new URLSearchParams({ [name]: value })}`;

export function RequestPage({ id }: { id: string }) {
  const { value: r, error, reload } = useGet<ModelCall>(path('gateway', 'requests', id));
  if (!r) return <div class="page">{error ? <ErrorView error={error} retry={reload} /> : <Loading />}</div>;
  return (
    <div class="page gateway">
      <header class="page-head">
        <div class="title">
          <a class="ghost back" href="/gateway/requests" aria-label="All requests">
            <Icon name="back" />
          </a>
          <h1>
            <Name>{r.model || r.kind}</Name>
          </h1>
          <CallBadge call={r} />
          <span class="dim">
            <Time at={r.created_at} />
          </span>
          <span class="wide">
            <Code>{r.id}</Code>
          </span>
        </div>
      </header>
      {r.error && (
        <div class="wrong" role="alert">
          {visibleLines(r.error)}
          {r.error_kind && <span>{visible(r.error_kind)}</span>}
        </div>
      )}
      <section class="cards" aria-label="In figures">
        <Figure name="Took" value={millis(r.latency_ms)} note={r.first_token_ms ? `first token after ${millis(r.first_token_ms)}` : r.streamed ? 'streamed' : 'whole answer'} />
        <Figure name="Tokens in" value={r.tokens.input.toLocaleString()} note={r.tokens.cache_read ? `${r.tokens.cache_read.toLocaleString()} from the cache` : ''} />
        <Figure name="Tokens out" value={r.tokens.output.toLocaleString()} note={rate(r)} />
        <Figure name="Cost" value={dollars(r.cost)} note={r.cached ? 'from our own cache' : r.byok ? 'paid with their own key' : r.cost === null ? 'its price is not known' : ''} />
      </section>
      <Attempts call={r} />
      <div class="columns even">
        <section class="panel">
          <h2>Request</h2>
          <Facts
            of={[
              ['Id', <Code>{r.id}</Code>],
              ['Model', <Name>{r.model}</Name>],
              ['Served by', r.served && <Name>{r.provider ? `${r.served} of ${r.provider}` : r.served}</Name>],
              ['Spoke', `${visible(r.surface)}, ${visible(r.kind)}${r.streamed ? ', streamed' : ''}`],
              ['Answer', `${r.http_status || 'none'}${r.finish_reason ? `, ${visible(r.finish_reason)}` : ''}`],
              ['Key', <Related name="key_id" value={r.key_id} />],
              ['User', r.user && <Related name="user" value={r.user} />],
              ['Tags', r.tags?.length ? <Tags of={r.tags} most={20} /> : undefined],
              ['Session', r.session && <Related name="session" value={r.session} />],
              ['Agent', r.session?.startsWith('wrun_') && <a class="link" href={`/agents/${encodeURIComponent(r.session)}?project=${encodeURIComponent(r.project_id)}`}>the run that asked</a>],
              ['Workflow', r.session?.startsWith('wrun_') && <a class="link" href={`/workflows/${encodeURIComponent(r.session)}`}>its steps</a>],
              ['App', r.app && <Name>{r.app}</Name>],
              ['Deployment', r.deployment && <Name>{r.deployment}</Name>],
              ['Project', <Related name="project_id" value={r.project_id} />],
              ['Began', new Date(r.created_at).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' })],
              ['Received', <Bytes of={r.bytes_in} />],
              ['Sent', <Bytes of={r.bytes_out} />],
            ]}
          />
        </section>
        <section class="panel">
          <h2>Tokens and cost</h2>
          <TokenBars of={r.tokens} />
          <Facts
            of={[
              ['Cost', <Cost of={r} />],
              ['Of the input', r.input_cost && <Amount of={r.input_cost} />],
              ['Of the output', r.output_cost && <Amount of={r.output_cost} />],
              ['By the list', r.market_cost && <Amount of={r.market_cost} />],
              ['Searches', r.searches ? String(r.searches) : undefined],
              ['No price for', r.unpriced?.length ? <Tags of={r.unpriced} most={20} /> : undefined],
              ['Price list', r.price_version && <Name>{r.price_version}</Name>],
            ]}
          />
        </section>
      </div>
      <BodyPanel call={r} onDelete={reload} />
    </div>
  );
}

const rate = (r: ModelCall): string => {
  const s = (r.latency_ms - (r.first_token_ms ?? 0)) / 1000;
  return r.tokens.output > 0 && s > 0.05 ? `${Math.round(r.tokens.output / s).toLocaleString()} a second` : '';
};

const Amount = ({ of }: { of: string }) => <span title={`$${of}`}>{dollars(of)}</span>;

function Figure({ name, value, note }: { name: string; value: string; note: string }) {
  return (
    <div class="card">
      <span class="dim">{name}</span>
      <span class="card-n num">{value}</span>
      <span class="dim card-note num">{note}</span>
    </div>
  );
}

function Related({ name, value }: { name: string; value: string }) {
  return (
    <a class="link" href={only(name, value)} title="All of its requests">
      <Name>{value}</Name>
    </a>
  );
}

function TokenBars({ of: t }: { of: Tokens }) {
  const write = (t.cache_write ?? 0);
  const read = t.cache_read ?? 0;
  const rows: [string, number, string][] = [
    ['Input', Math.max(0, t.input - read - write), '--chart-1'],
    ['Read from cache', read, '--chart-3'],
    ['Written to cache', write, '--chart-4'],
    ['Output', Math.max(0, t.output - (t.reasoning ?? 0)), '--chart-2'],
    ['Reasoning', t.reasoning ?? 0, '--chart-5'],
  ];
  const all = rows.reduce((n, [, v]) => n + v, 0);
  return (
    <div class="token-bars">
      <div class="stack-bar" role="img" aria-label={`${all} tokens`}>
        {rows.map(([name, n, colour]) => n > 0 && <span key={name} style={{ flexGrow: n, background: `var(${colour})` }} />)}
      </div>
      <ul>
        {rows.map(
          ([name, n, colour]) =>
            (n > 0 || name === 'Input' || name === 'Output') && (
              <li key={name}>
                <i style={{ background: `var(${colour})` }} />
                <span class="dim">{name}</span> <b class="num">{n.toLocaleString()}</b>
              </li>
            ),
        )}
      </ul>
      {t.estimated && <p class="dim">Estimated: the provider did not count.</p>}
    </div>
  );
}

/** Attempts shows when each provider was called, one below the other. */
function Attempts({ call: r }: { call: ModelCall }) {
  const all = r.attempts ?? [];
  const began = Date.parse(r.created_at);
  const end = Math.max(r.latency_ms, ...all.map((a) => Date.parse(a.started_at) - began + a.latency_ms), 1);
  return (
    <section class="panel">
      <div class="panel-head">
        <h2>
          Attempts <span class="dim num">{all.length}</span>
        </h2>
        <span class="dim num">0 to {millis(end)}</span>
      </div>
      {all.length === 0 ? (
        <p class="dim">No provider was called{r.cached ? ': the answer was in the cache' : ''}.</p>
      ) : (
        <ol class="waterfall">
          {all.map((a, i) => (
            <AttemptRow key={i} attempt={a} n={i + 1} offset={Math.max(0, Date.parse(a.started_at) - began)} end={end} first={i === all.length - 1 && a.ok ? r.first_token_ms : undefined} />
          ))}
        </ol>
      )}
    </section>
  );
}

function AttemptRow({ attempt: a, n, offset, end, first }: { attempt: Attempt; n: number; offset: number; end: number; first?: number }) {
  const left = Math.min(99.5, (offset / end) * 100);
  const width = Math.max(0.5, Math.min(100 - left, (a.latency_ms / end) * 100));
  return (
    <li class={a.ok ? 'good' : 'bad'}>
      <div class="attempt-head">
        <span class="dim num">{n}</span>
        <Name class="strong">{a.provider}</Name>
        <Name class="dim">{a.provider_model || a.model}</Name>
        {a.byok && <span class="tag">own key</span>}
        <span class="attempt-end">
          <Badge status={a.ok ? 'completed' : 'failed'}>{a.status ? String(a.status) : a.ok ? 'ok' : 'no answer'}</Badge>
          {a.cost && <Amount of={a.cost} />}
          <span class="num">{millis(a.latency_ms)}</span>
        </span>
      </div>
      <div class="lane" title={`from ${millis(offset)} to ${millis(offset + a.latency_ms)}`}>
        <span class="lane-bar" style={{ left: `${left}%`, width: `${width}%` }} />
        {first !== undefined && first > offset && first < end && <span class="lane-mark" style={{ left: `${Math.min(99.7, (first / end) * 100)}%` }} title={`first token after ${millis(first)}`} />}
      </div>
      {a.error && <p class="attempt-error">{visibleLines(a.error)}</p>}
      {a.response_id && (
        <p class="dim attempt-id">
          <Code short>{a.response_id}</Code>
        </p>
      )}
    </li>
  );
}

/** BodyPanel shows bodies if somebody asks to see them: they may be private. */
function BodyPanel({ call: r, onDelete }: { call: ModelCall; onDelete: () => void }) {
  const [bodies, set] = useState<Bodies>();
  const [gone, setGone] = useState(false);
  const [busy, setBusy] = useState(false);
  const at = path('gateway', 'requests', r.id, 'body');
  if (r.capture !== 'kept' || gone)
    return (
      <section class="panel">
        <h2>Bodies</h2>
        <p class="dim">{gone ? 'They were deleted.' : r.capture === 'gone' ? 'They are there no more.' : r.capture === 'dropped' ? 'They were to be kept, but there was no room.' : 'Not kept. The gateway keeps bodies only if its settings say so (capture).'}</p>
      </section>
    );
  const show = async () => {
    setBusy(true);
    try {
      set(await get<Bodies>(at));
    } catch (e) {
      complain(e);
    }
    setBusy(false);
  };
  const remove = () =>
    ask({
      title: 'Delete the bodies?',
      text: 'What was sent and answered is forgotten. The record of the request stays.',
      action: 'Delete',
      danger: true,
      run: async () => {
        await call('DELETE', at);
        set(undefined);
        setGone(true);
        toast('Deleted');
        onDelete();
      },
    });
  return (
    <section class="panel">
      <div class="panel-head">
        <h2>Bodies</h2>
        <span class="actions">
          {!bodies && (
            <button onClick={show} disabled={busy}>
              Show
            </button>
          )}
          <button class="danger" onClick={remove}>
            Delete
          </button>
        </span>
      </div>
      {bodies ? (
        <div class="bodies">
          <BodyView name="Request" body={bodies.request} />
          <BodyView name="Answer" body={bodies.answer} />
        </div>
      ) : (
        <p class="dim">They are kept, and may hold what people wrote.</p>
      )}
    </section>
  );
}

/** shown is how much of a body is put into the page, in characters. */
const shown = 200_000;

function BodyView({ name, body: b }: { name: string; body?: Body }) {
  if (!b) return null;
  let value: unknown;
  if (/json/.test(b.content_type) && !b.cut) {
    try {
      value = parse(b.text);
    } catch {
      value = undefined;
    }
  }
  return (
    <div class="body-view">
      <p class="dim">
        <b>{name}</b>, {visible(b.content_type)}, <Bytes of={b.size} />
        {b.cut && ', its beginning'}
        {b.assembled && ', the texts of its events put together'}
      </p>
      {b.omitted ? (
        <p class="dim">Not kept: {visible(b.omitted)}</p>
      ) : value !== undefined && typeof value === 'object' ? (
        <div class="body-text" tabIndex={0}>
          <JSONView value={value} />
        </div>
      ) : (
        <pre class="body-text" tabIndex={0}>
          {visibleLines(b.text.slice(0, shown))}
          {b.text.length > shown && '…'}
        </pre>
      )}
    </div>
  );
}
