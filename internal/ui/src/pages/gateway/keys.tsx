// Keys of the gateway: what programs send in place of a provider's.
import { useState } from 'preact/hooks';
import { call, path, post } from '../../api';
import { ask, Dialog } from '../../components/dialog';
import { Icon } from '../../components/icons';
import { Badge, Code, Facts, Name, Time } from '../../components/show';
import { Empty, ErrorView, Loading } from '../../components/state';
import { Table, type Column } from '../../components/table';
import { complain, toast } from '../../components/toast';
import { place, setQuery } from '../../router';
import { useAfterCalls } from './calls';
import { Check, Choice, Field, FormDialog, list, periods, whole } from './form';
import { useAll } from './list';
import { dollars } from './money';
import { Frame } from './page';
import { Tags } from './requests';
import type { Budget, Key } from './types';

/** Spending shows a budget as a bar: what is spent, and what calls under way may yet cost. */
export function Spending({ of: b, label }: { of: Budget; label?: string }) {
  const limit = Number(b.limit);
  const spent = Number(b.spent);
  const held = Number(b.held);
  const part = (n: number) => `${limit > 0 ? Math.min(100, (n / limit) * 100) : n > 0 ? 100 : 0}%`;
  const used = limit > 0 ? (spent + held) / limit : spent > 0 ? 1 : 0;
  const text = `${dollars(spent)} of ${dollars(limit)}${held > 0 ? `, ${dollars(held)} held` : ''}`;
  return (
    <div class="spending" role="meter" aria-label={label ?? 'Spent'} aria-valuenow={spent} aria-valuemin={0} aria-valuemax={limit} aria-valuetext={text} title={`spent $${b.spent}, held $${b.held}, limit $${b.limit}`}>
      <div class="meter-bar">
        {spent > 0 && <span class={used >= 1 ? 'bad' : used > 0.8 ? 'warn' : ''} style={{ width: part(spent) }} />}
        {held > 0 && <span class="held" style={{ width: part(held) }} />}
      </div>
      <span class="num dim">{text}</span>
    </div>
  );
}

const state = (k: Key): [string, string] =>
  k.disabled ? ['stopped', 'disabled'] : k.expires_at && Date.parse(k.expires_at) < Date.now() ? ['stopped', 'expired'] : ['running', 'active'];

const columns: Column<Key>[] = [
  {
    name: 'Status',
    width: '92px',
    show: (k) => {
      const [tone, word] = state(k);
      return <Badge status={tone}>{word}</Badge>;
    },
  },
  {
    name: 'Name',
    width: 'minmax(100px, 1.4fr)',
    main: true,
    show: (k) => (
      <span class="name-cell">
        <Name class="strong">{k.name || 'no name'}</Name>
        <span class="wide">
          <Tags of={k.tags} most={2} />
        </span>
      </span>
    ),
  },
  { name: 'Key', width: '120px', class: 'wide', show: (k) => <code class="dim">{k.prefix}…</code> },
  { name: 'May call', width: 'minmax(80px, 1fr)', class: 'wide', show: (k) => <Name class="dim">{k.models?.join(', ') || 'everything'}</Name> },
  { name: 'Budget', width: 'minmax(120px, 1.3fr)', class: 'wide', show: (k) => (k.budget ? <Spending of={k.budget} /> : <span class="dim">none</span>) },
  { name: 'Used', width: '84px', class: 'num', show: (k) => <Time at={k.last_used_at} /> },
];

export function Keys() {
  const { items, cut, error, reload } = useAll<Key>(path('gateway', 'keys'));
  useAfterCalls(reload);
  const [creating, create] = useState(false);
  const [made, setMade] = useState<Key>(); // with its secret, which is nowhere else
  const { query } = place.value;
  const text = query.get('q') ?? '';
  const asked = text.trim().toLowerCase();
  const rows = (items ?? []).filter((k) => !asked || [k.name, k.id, k.prefix, k.project_id, ...(k.tags ?? []), ...(k.models ?? [])].some((v) => v.toLowerCase().includes(asked)));
  const view = query.get('view');
  const chosen = items?.find((k) => k.id === view);
  return (
    <Frame
      view="keys"
      full
      actions={
        <>
          <label class="filter">
            <Icon name="search" size={14} />
            <input data-filter type="search" aria-label="Filter" placeholder="Name, id, tag or model" value={text} spellcheck={false} onInput={(e) => setQuery({ q: e.currentTarget.value })} />
            <kbd>/</kbd>
          </label>
          <button class="primary" onClick={() => create(true)}>
            New key
          </button>
        </>
      }
    >
      {!items ? (
        error ? (
          <ErrorView error={error} retry={reload} />
        ) : (
          <Loading />
        )
      ) : items.length === 0 ? (
        <Empty title="No key yet" command="cay gateway keys create first">
          A key lets a program call models, within limits that you set.
        </Empty>
      ) : rows.length === 0 ? (
        <Empty title="Nothing matches">
          <button onClick={() => setQuery({ q: '' })}>Show all</button>
        </Empty>
      ) : (
        <div class={`split${chosen ? '' : ' alone'}`}>
          <div class="split-list">
            <Table fill label="Keys" columns={chosen ? columns.filter((c) => ['Status', 'Name', 'Used'].includes(c.name)) : columns} rows={rows} id={(k) => k.id} onOpen={(k) => setQuery({ view: k.id === view ? '' : k.id })} selected={view ?? ''} />
            {cut && <p class="list-foot dim">The newest {items.length.toLocaleString()} are shown.</p>}
          </div>
          {chosen && (
            <KeyView
              key={chosen.id}
              of={chosen}
              onChange={reload}
              onMade={(k) => {
                setMade(k);
                reload();
              }}
            />
          )}
        </div>
      )}
      {creating && (
        <CreateKey
          onClose={() => create(false)}
          onMade={(k) => {
            setMade(k);
            reload();
          }}
        />
      )}
      {made && <Secret of={made} onClose={() => setMade(undefined)} />}
    </Frame>
  );
}

function KeyView({ of: k, onChange, onMade }: { of: Key; onChange: () => void; onMade: (k: Key) => void }) {
  const [editing, edit] = useState(false);
  const at = path('gateway', 'keys', k.id);
  const name = <Name class="strong">{k.name || k.id}</Name>;
  const change = (disabled: boolean) =>
    call('PATCH', at, { json: { disabled } }).then(() => {
      toast(disabled ? 'Disabled' : 'Enabled');
      onChange();
    });
  const disable = () =>
    ask({ title: 'Disable the key?', text: <>Requests with {name} are refused from now on. Those under way go on.</>, action: 'Disable', danger: true, run: () => change(true) });
  const remove = () =>
    ask({
      title: 'Delete the key?',
      text: <>Requests with {name} are refused from now on, and it cannot be brought back. The records of its requests stay.</>,
      action: 'Delete',
      danger: true,
      run: async () => {
        await call('DELETE', at);
        toast('Deleted');
        setQuery({ view: '' });
        onChange();
      },
    });
  // The API makes no second secret for a key, so that of two keys it is always known which was used.
  const replace = () =>
    ask({
      title: 'Replace the key?',
      text: <>A new key is made that may do what {name} may, with a budget of its own if this one has one. This one goes on working until it is disabled.</>,
      action: 'Make the new key',
      run: async () => {
        onMade(
          await post<Key>(path('gateway', 'keys'), {
            name: k.name || undefined,
            project_id: k.project_id,
            ...scopeOf(k),
            tags: k.tags,
            expires_at: k.expires_at,
            budget: k.budget && { limit: k.budget.limit, period: k.budget.period, alert_at: k.budget.alert_at, include_byok: k.budget.include_byok, allow_unpriced: k.budget.allow_unpriced },
          }),
        );
      },
    });
  const n = (v?: number) => (v ? v.toLocaleString() : undefined);
  return (
    <div class="split-view padded">
      <div class="panel-head">
        <h2>
          {name} <Badge status={state(k)[0]}>{state(k)[1]}</Badge>
        </h2>
        <span class="actions">
          <button onClick={() => edit(true)}>Edit</button>
          <button onClick={replace} title="Make another that may do the same">
            Replace
          </button>
          {k.disabled ? <button onClick={() => change(false).catch(complain)}>Enable</button> : <button onClick={disable}>Disable</button>}
          <button class="danger" onClick={remove}>
            Delete
          </button>
          <button onClick={() => setQuery({ view: '' })}>Close</button>
        </span>
      </div>
      <Facts
        of={[
          ['Id', <Code>{k.id}</Code>],
          ['Key', <code>{k.prefix}…</code>],
          ['Project', <Code>{k.project_id}</Code>],
          ['Models', k.models?.length ? <Tags of={k.models} most={50} /> : 'all'],
          ['Providers', k.providers?.length ? <Tags of={k.providers} most={50} /> : 'all'],
          ['Tags', k.tags?.length ? <Tags of={k.tags} most={50} /> : undefined],
          ['A minute', [n(k.requests_per_minute) && `${n(k.requests_per_minute)} requests`, n(k.tokens_per_minute) && `${n(k.tokens_per_minute)} tokens`].filter(Boolean).join(', ') || 'no limit'],
          ['At once', n(k.concurrency) ?? 'no limit'],
          ['Output', k.max_output_tokens ? `at most ${n(k.max_output_tokens)} tokens` : undefined],
          ['Cache', k.cache && k.cache !== '0s' ? `answers for ${k.cache.replace(/m0s$/, 'm').replace(/h0m$/, 'h')}` : undefined],
          ['Budget', k.budget ? <Spending of={k.budget} label="Budget" /> : 'none'],
          ['Begins anew', k.budget?.reset_at && <Time at={k.budget.reset_at} />],
          ['Created', <Time at={k.created_at} />],
          ['Expires', k.expires_at ? <Time at={k.expires_at} /> : 'never'],
          ['Last used', <Time at={k.last_used_at} />],
        ]}
      />
      <p class="note">
        <a class="link" href={`/gateway/requests?key_id=${encodeURIComponent(k.id)}`}>
          Its requests
        </a>
        {' · '}
        <a class="link" href={`/gateway?key_id=${encodeURIComponent(k.id)}`}>
          Its spending
        </a>
        {' · '}
        <a class="link" href={`/gateway/budgets?set=key&ref=${encodeURIComponent(k.id)}`}>
          {k.budget ? 'Change its budget' : 'Set a budget'}
        </a>
      </p>
      {editing && <EditKey of={k} onClose={() => edit(false)} onChange={onChange} />}
    </div>
  );
}

/** scopeOf is what a key may do, as the API takes it. */
const scopeOf = (k: Key) => ({
  models: k.models,
  providers: k.providers,
  requests_per_minute: k.requests_per_minute,
  tokens_per_minute: k.tokens_per_minute,
  concurrency: k.concurrency,
  max_output_tokens: k.max_output_tokens,
  cache: k.cache && k.cache !== '0s' ? k.cache : undefined,
});

/** local is a time as its input has it, in the browser's zone; '' for none. */
const local = (at?: string) => {
  if (!at) return '';
  const t = new Date(at);
  return new Date(t.getTime() - t.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
};

/** never is the zero time, by which the API takes an expiry away. */
const never = '0001-01-01T00:00:00Z';

/** EditKey changes a key. Its secret and its project stay what they are. */
function EditKey({ of: k, onClose, onChange }: { of: Key; onClose: () => void; onChange: () => void }) {
  const [v, set] = useState({
    name: k.name,
    models: k.models?.join(', ') ?? '',
    providers: k.providers?.join(', ') ?? '',
    tags: k.tags?.join(', ') ?? '',
    rpm: String(k.requests_per_minute || ''),
    tpm: String(k.tokens_per_minute || ''),
    concurrency: String(k.concurrency || ''),
    output: String(k.max_output_tokens || ''),
    cache: k.cache && k.cache !== '0s' ? k.cache : '',
    expires: local(k.expires_at),
  });
  const to = (name: keyof typeof v) => (x: string) => set((o) => ({ ...o, [name]: x }));
  const send = async () => {
    await call('PATCH', path('gateway', 'keys', k.id), {
      json: {
        name: v.name.trim(),
        tags: list(v.tags) ?? [],
        scope: {
          models: list(v.models),
          providers: list(v.providers),
          requests_per_minute: whole(v.rpm),
          tokens_per_minute: whole(v.tpm),
          concurrency: whole(v.concurrency),
          max_output_tokens: whole(v.output),
          cache: v.cache.trim() || undefined,
        },
        ...(v.expires !== local(k.expires_at) && { expires_at: v.expires ? new Date(v.expires).toISOString() : never }),
      },
    });
    toast('Changed, for requests that begin now');
    onChange();
  };
  return (
    <FormDialog title="Edit the key" action="Save" onClose={onClose} send={send}>
      <Field label="Name" value={v.name} set={to('name')} placeholder="what it is for" autoFocus />
      <div class="pair">
        <Field label="Models" value={v.models} set={to('models')} placeholder="all, or openai/*" />
        <Field label="Providers" value={v.providers} set={to('providers')} placeholder="all" />
        <Field label="Requests a minute" value={v.rpm} set={to('rpm')} placeholder="no limit" number />
        <Field label="Tokens a minute" value={v.tpm} set={to('tpm')} placeholder="no limit" number />
        <Field label="Requests at once" value={v.concurrency} set={to('concurrency')} placeholder="no limit" number />
        <Field label="Tokens of output" value={v.output} set={to('output')} placeholder="no limit" number />
        <Field label="Answers are kept for" value={v.cache} set={to('cache')} placeholder="not at all, or 10m" />
        <Field label="Tags" value={v.tags} set={to('tags')} placeholder="none" />
        <label class="field">
          Expires
          <input type="datetime-local" value={v.expires} onInput={(e) => to('expires')(e.currentTarget.value)} />
        </label>
      </div>
      <p class="dim">Empty is no limit. Its budget is a page of its own.</p>
    </FormDialog>
  );
}

function CreateKey({ onClose, onMade }: { onClose: () => void; onMade: (k: Key) => void }) {
  const [v, set] = useState({ name: '', models: '', providers: '', tags: '', rpm: '', tpm: '', concurrency: '', output: '', days: '', limit: '', period: 'monthly', unpriced: false });
  const to = (k: keyof typeof v) => (x: string | boolean) => set((o) => ({ ...o, [k]: x }));
  const send = async () => {
    const days = whole(v.days);
    onMade(
      await post<Key>(path('gateway', 'keys'), {
        name: v.name.trim() || undefined,
        models: list(v.models),
        providers: list(v.providers),
        tags: list(v.tags),
        requests_per_minute: whole(v.rpm),
        tokens_per_minute: whole(v.tpm),
        concurrency: whole(v.concurrency),
        max_output_tokens: whole(v.output),
        expires_at: days ? new Date(Date.now() + days * 86_400_000).toISOString() : undefined,
        budget: v.limit.trim() ? { limit: v.limit.trim(), period: v.period, allow_unpriced: v.unpriced || undefined } : undefined,
      }),
    );
  };
  return (
    <FormDialog title="New key" action="Create" onClose={onClose} send={send}>
      <Field label="Name" value={v.name} set={to('name')} placeholder="what it is for" autoFocus />
      <div class="pair">
        <Field label="Models" value={v.models} set={to('models')} placeholder="all, or openai/*" />
        <Field label="Providers" value={v.providers} set={to('providers')} placeholder="all" />
      </div>
      <div class="pair">
        <Field label="Budget in dollars" value={v.limit} set={to('limit')} placeholder="none" amount />
        <Choice label="for" value={v.period} set={to('period')} options={periods} disabled={!v.limit.trim()} />
      </div>
      <details>
        <summary>Limits, tags, expiry</summary>
        <div class="pair">
          <Field label="Requests a minute" value={v.rpm} set={to('rpm')} placeholder="no limit" number />
          <Field label="Tokens a minute" value={v.tpm} set={to('tpm')} placeholder="no limit" number />
          <Field label="Requests at once" value={v.concurrency} set={to('concurrency')} placeholder="no limit" number />
          <Field label="Tokens of output" value={v.output} set={to('output')} placeholder="no limit" number />
          <Field label="Expires after days" value={v.days} set={to('days')} placeholder="never" number />
          <Field label="Tags" value={v.tags} set={to('tags')} placeholder="none" />
        </div>
        <Check label="Let calls pass whose price is not known" value={v.unpriced} set={to('unpriced')} />
      </details>
    </FormDialog>
  );
}

/** Secret shows a new key's secret, this once. */
function Secret({ of: k, onClose }: { of: Key; onClose: () => void }) {
  return (
    <Dialog title="The key" onClose={onClose}>
      <div class="form">
        <p>
          This is <Name class="strong">{k.name || k.id}</Name>. It is shown this once: keep it where the program finds it.
        </p>
        <div class="secret">
          <Code>{k.secret ?? ''}</Code>
        </div>
        <div class="buttons">
          <button class="primary" onClick={onClose}>
            I have it
          </button>
        </div>
      </div>
    </Dialog>
  );
}
