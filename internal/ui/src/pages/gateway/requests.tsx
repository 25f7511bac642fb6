// All requests of the gateway, as they end.
import { useMemo } from 'preact/hooks';
import { Icon } from '../../components/icons';
import { Badge, Name, Time } from '../../components/show';
import { Empty, ErrorView, Loading } from '../../components/state';
import { Table, type Column } from '../../components/table';
import { place, setQuery } from '../../router';
import { useFeed } from './feed';
import { chosen, typed } from './filter';
import { count, dollars, millis } from './money';
import { Chosen, Frame } from './page';
import type { ModelCall, Status } from './types';

const statuses: { id: '' | Status; name: string }[] = [
  { id: '', name: 'All' },
  { id: 'succeeded', name: 'Succeeded' },
  { id: 'failed', name: 'Failed' },
  { id: 'refused', name: 'Refused' },
  { id: 'cancelled', name: 'Cancelled' },
];

const tones: Record<Status, string> = { succeeded: 'completed', failed: 'failed', refused: 'paused', cancelled: 'stopped' };

/** CallBadge is how a request ended; in lists, the word is only where there is room. */
export function CallBadge({ call: r, listed }: { call: ModelCall; listed?: boolean }) {
  return (
    <Badge status={tones[r.status] ?? r.status}>
      <span class={listed ? 'wide' : undefined} title={r.status}>
        {r.status}
      </span>
    </Badge>
  );
}

/** statusWidth is that of a column with a status: on a phone there is its dot alone. */
export const statusWidth = 'clamp(12px, (100vw - 720px) * 100, 100px)';

/** Tags are tags of a request or a key. */
export function Tags({ of, most = 3 }: { of?: string[]; most?: number }) {
  if (!of?.length) return null;
  return (
    <span class="tags">
      {of.slice(0, most).map((t) => (
        <span class="tag" key={t}>
          <Name>{t}</Name>
        </span>
      ))}
      {of.length > most && <span class="tag">+{of.length - most}</span>}
    </span>
  );
}

/** Cost is what a request cost; ~ says that a part of it is not known. */
export function Cost({ of: r }: { of: Pick<ModelCall, 'cost' | 'unpriced'> }) {
  if (r.cost === null) return <span class="dim">unknown</span>;
  return (
    <span title={`$${r.cost}${r.unpriced?.length ? ', and what has no price' : ''}`}>
      {r.unpriced?.length ? '≥ ' : ''}
      {dollars(r.cost)}
    </span>
  );
}

const columns: Column<ModelCall>[] = [
  { name: 'Status', width: statusWidth, class: 'dot', show: (r) => <CallBadge call={r} listed /> },
  {
    name: 'Model',
    width: 'minmax(120px, 2fr)',
    main: true,
    show: (r) => (
      <span class="name-cell">
        <Name class="strong">{r.model || '–'}</Name>
        <span class="wide">
          <Tags of={r.tags} most={2} />
        </span>
      </span>
    ),
  },
  {
    name: 'Provider',
    width: 'minmax(70px, 0.8fr)',
    class: 'wide',
    show: (r) => (
      <>
        <Name class="dim">{r.cached ? 'cache' : r.provider || '–'}</Name>
        {(r.attempts?.length ?? 0) > 1 && (
          <span class="tag attempts" title={`${r.attempts!.length} attempts`}>
            {r.attempts!.length}
          </span>
        )}
      </>
    ),
  },
  { name: 'For', width: 'minmax(70px, 0.8fr)', class: 'wide', show: (r) => <Name class="dim">{r.user || r.app || r.key_id}</Name> },
  { name: 'Tokens in', width: '76px', class: 'wide num', show: (r) => (r.tokens.estimated ? '~' : '') + count(r.tokens.input) },
  { name: 'Out', width: '60px', class: 'wide num', show: (r) => count(r.tokens.output) },
  { name: 'Cost', width: '76px', class: 'num', show: (r) => <Cost of={r} /> },
  { name: 'Took', width: '72px', class: 'wide num', show: (r) => millis(r.latency_ms) },
  { name: 'When', width: '78px', class: 'num', show: (r) => <Time at={r.created_at} /> },
];

export function Requests() {
  const { query } = place.value;
  const status = query.get('status') ?? '';
  const text = query.get('q') ?? '';
  const filter = chosen();
  const feed = useFeed({ ...filter, status });
  const asked = text.trim().toLowerCase();
  const rows = useMemo(
    () =>
      (feed.items ?? []).filter(
        (r) =>
          !asked ||
          [r.id, r.model, r.served, r.provider, r.user, r.key_id, r.session, r.app, r.error, r.error_kind, ...(r.tags ?? [])].some((v) => v?.toLowerCase().includes(asked)),
      ),
    [feed.items, asked],
  );
  const filtered = asked || status || Object.keys(filter).length > 0;
  return (
    <Frame
      view="requests"
      full
      actions={
        <label class="filter">
          <Icon name="search" size={14} />
          <input
            data-filter
            type="search"
            aria-label="Filter"
            placeholder="Text, or user:ada, tag:ci"
            title="model:, provider:, key:, user:, tag:, session: or project: and a value, then Enter, looks in all requests"
            value={text}
            spellcheck={false}
            autocomplete="off"
            autocapitalize="off"
            onInput={(e) => setQuery({ q: e.currentTarget.value })}
            onKeyDown={(e) => e.key === 'Enter' && typed(e.currentTarget.value)}
          />
          <kbd>/</kbd>
        </label>
      }
    >
      <div class="chips" role="group" aria-label="Status">
        {statuses.map((s) => (
          <button key={s.id} class="chip" aria-pressed={s.id === status} onClick={() => setQuery({ status: s.id })}>
            {s.name}
          </button>
        ))}
      </div>
      <Chosen />
      {feed.error && !feed.items ? (
        <ErrorView error={feed.error} />
      ) : !feed.items ? (
        <Loading />
      ) : rows.length === 0 && !filtered ? (
        <Begin />
      ) : rows.length === 0 ? (
        <Empty title="Nothing matches">
          {feed.more && asked ? <>Of the {feed.items.length.toLocaleString()} newest. </> : null}
          <a href="/gateway/requests">Show all</a>
        </Empty>
      ) : (
        <Table
          fill
          label="Requests"
          rowHeight={36}
          columns={columns}
          rows={rows}
          id={(r) => r.id}
          href={(r) => `/gateway/requests/${r.id}`}
          onView={(_, last) => feed.more && !feed.loading && last > rows.length - 100 && feed.load()}
        />
      )}
      {feed.items && (
        <p class="list-foot dim">
          <span class={feed.live ? 'live' : ''}>{feed.live ? 'live' : 'not connected'}</span>
          <span class="num">
            {rows.length.toLocaleString()} {rows.length === 1 ? 'request' : 'requests'}
            {feed.more && ', and older ones'}
          </span>
          {feed.more && (
            <button class="ghost" disabled={feed.loading} onClick={feed.load}>
              {feed.loading ? 'Loading…' : 'Load older'}
            </button>
          )}
        </p>
      )}
    </Frame>
  );
}

/** Begin says how there come to be requests. */
export function Begin() {
  return (
    <Empty title="No model call yet" command="cay gateway keys create first">
      Give a client that key and the gateway's address: its calls appear here as they end.
    </Empty>
  );
}
