// The catalogue: which models there are, who serves them, and what they cost.
import { useMemo } from 'preact/hooks';
import { path, type Page } from '../../api';
import { Icon } from '../../components/icons';
import { Code, Facts, Name } from '../../components/show';
import { Empty, ErrorView, Loading } from '../../components/state';
import { Table, type Column } from '../../components/table';
import { useGet } from '../../live';
import { place, setQuery } from '../../router';
import { count, dollars, perMillion } from './money';
import { Frame } from './page';
import { HealthBadge } from './providers';
import { Tags } from './requests';
import type { Endpoint, Model, Price } from './types';

/** cheapest is the price of the endpoint that costs least, of those that can be called if there are any. */
function cheapest(m: Model): Price | undefined {
  const ready = m.endpoints.filter((e) => e.configured);
  let best: Price | undefined;
  for (const { price } of ready.length ? ready : m.endpoints) {
    if (price && (!best || Number(price.input) + Number(price.output) < Number(best.input) + Number(best.output))) best = price;
  }
  return best;
}

const ready = (m: Model) => m.endpoints.some((e) => e.configured);

const columns: Column<Model>[] = [
  {
    name: 'Model',
    width: 'minmax(130px, 2fr)',
    main: true,
    show: (m) => (
      <span class="name-cell">
        <Name class="strong">{m.id}</Name>
      </span>
    ),
  },
  { name: 'Can', width: 'minmax(80px, 1.2fr)', class: 'wide', show: (m) => (m.kind === 'language' ? <Name class="dim">{m.capabilities?.join(', ') || '–'}</Name> : <Name class="dim">{m.kind}</Name>) },
  { name: 'Context', width: '72px', class: 'wide num', show: (m) => (m.context ? count(m.context) : '–') },
  {
    name: 'Providers',
    width: 'minmax(80px, 1fr)',
    class: 'wide',
    show: (m) => <Name class="dim">{m.endpoints.map((e) => e.provider).join(', ')}</Name>,
  },
  { name: 'In', width: '76px', class: 'num', show: (m) => <PerMillion of={cheapest(m)} part="input" /> },
  { name: 'Out', width: '76px', class: 'num', show: (m) => <PerMillion of={cheapest(m)} part="output" /> },
];

function PerMillion({ of: p, part }: { of?: Price | null; part: 'input' | 'output' }) {
  if (!p) return <span class="dim">unknown</span>;
  return <span title={`${perMillion(p[part])} for a million tokens`}>{perMillion(p[part])}</span>;
}

export function Models() {
  const { value, error, reload } = useGet<Page<Model>>(path('gateway', 'models'), undefined, 60_000);
  const { query } = place.value;
  const text = query.get('q') ?? '';
  const only = query.get('show') !== 'all';
  const view = query.get('view');
  const items = value?.items;
  const words = text.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const found = useMemo(
    () =>
      (items ?? []).filter((m) => {
        const all = [m.id, m.name, m.kind, ...(m.aliases ?? []), ...(m.capabilities ?? []), ...m.endpoints.map((e) => e.provider)].join(' ').toLowerCase();
        return words.every((w) => all.includes(w));
      }),
    [items, text],
  );
  const rows = only ? found.filter(ready) : found;
  const chosen = items?.find((m) => m.id === view);
  return (
    <Frame
      view="models"
      full
      actions={
        <label class="filter">
          <Icon name="search" size={14} />
          <input data-filter type="search" aria-label="Filter" placeholder="Name, provider or ability" value={text} spellcheck={false} onInput={(e) => setQuery({ q: e.currentTarget.value })} />
          <kbd>/</kbd>
        </label>
      }
    >
      <div class="chips" role="group" aria-label="Show">
        <button class="chip" aria-pressed={only} onClick={() => setQuery({ show: '' })}>
          Can be called <span class="num dim">{found.filter(ready).length.toLocaleString()}</span>
        </button>
        <button class="chip" aria-pressed={!only} onClick={() => setQuery({ show: 'all' })}>
          All that are known <span class="num dim">{found.length.toLocaleString()}</span>
        </button>
        <span class="dim chip-note">Prices are for a million tokens</span>
      </div>
      {!items ? (
        error ? (
          <ErrorView error={error} retry={reload} />
        ) : (
          <Loading />
        )
      ) : rows.length === 0 ? (
        <Empty title={text ? 'Nothing matches' : 'No model can be called yet'} command={text ? undefined : 'OPENAI_API_KEY=... cay serve'}>
          {only && found.length > 0 ? <button onClick={() => setQuery({ show: 'all' })}>Show those that could be</button> : text ? <button onClick={() => setQuery({ q: '' })}>Show all</button> : null}
        </Empty>
      ) : (
        <div class={`split${chosen ? '' : ' alone'}`}>
          <div class="split-list">
            <Table fill label="Models" rowHeight={36} columns={chosen ? [columns[0]!, columns[4]!, columns[5]!] : columns} rows={rows} id={(m) => m.id} onOpen={(m) => setQuery({ view: m.id === view ? '' : m.id })} selected={view ?? ''} />
          </div>
          {chosen && <ModelView of={chosen} />}
        </div>
      )}
    </Frame>
  );
}

function ModelView({ of: m }: { of: Model }) {
  return (
    <div class="split-view padded">
      <div class="panel-head">
        <h2>
          <Name>{m.name || m.id}</Name>
        </h2>
        <button onClick={() => setQuery({ view: '' })}>Close</button>
      </div>
      {m.description && (
        <p class="dim">
          <Name>{m.description}</Name>
        </p>
      )}
      <Facts
        of={[
          ['Id', <Code>{m.id}</Code>],
          ['Kind', <Name>{m.kind}</Name>],
          ['Context', m.context ? `${m.context.toLocaleString()} tokens` : undefined],
          ['Output', m.max_output ? `at most ${m.max_output.toLocaleString()} tokens` : undefined],
          ['Reads', m.input?.join(', ')],
          ['Can', m.capabilities?.length ? <Tags of={m.capabilities} most={20} /> : undefined],
          ['Also called', m.aliases?.length ? <Tags of={m.aliases} most={20} /> : undefined],
          ['Released', m.released && <Name>{m.released}</Name>],
        ]}
      />
      <ul class="endpoints">
        {m.endpoints.map((e) => (
          <EndpointView key={`${e.provider}/${e.model}/${e.region ?? ''}`} of={e} />
        ))}
      </ul>
      <p class="note">
        <a class="link" href={`/gateway/requests?model=${encodeURIComponent(m.id)}`}>
          Its requests
        </a>
        {' · '}
        <a class="link" href={`/gateway?model=${encodeURIComponent(m.id)}`}>
          Its spending
        </a>
      </p>
    </div>
  );
}

function EndpointView({ of: e }: { of: Endpoint }) {
  const p = e.price;
  return (
    <li class={e.configured ? '' : 'off'}>
      <div class="attempt-head">
        <Name class="strong">{e.provider}</Name>
        <Name class="dim">{e.model}</Name>
        {e.region && <span class="tag">{e.region}</span>}
        <span class="attempt-end">{e.configured ? <HealthBadge state={e.health.state} /> : <span class="dim">no credential</span>}</span>
      </div>
      <Facts
        of={[
          ['Price', p ? `${perMillion(p.input)} in, ${perMillion(p.output)} out` : 'not known'],
          ['Cache', p?.cache_read !== undefined ? `${perMillion(p.cache_read)} to read${p.cache_write !== undefined ? `, ${perMillion(p.cache_write)} to write` : ''}` : undefined],
          ['A call', Number(p?.request ?? 0) > 0 ? dollars(p!.request) : undefined],
          ['An image', Number(p?.image ?? 0) > 0 ? dollars(p!.image) : undefined],
          ['Long prompts', p?.tiers?.length ? p.tiers.map((t) => `above ${count(t.above)}: ${perMillion(t.input)} in, ${perMillion(t.output)} out`).join('; ') : undefined],
          ['Tiers', p?.service_tiers ? Object.entries(p.service_tiers).map(([k, v]) => `${k} ${v}%`).join(', ') : undefined],
          ['First token', e.health.first_token_p50_ms ? `${Math.round(e.health.first_token_p50_ms)} ms` : undefined],
          ['List of', p?.version],
        ]}
      />
    </li>
  );
}
