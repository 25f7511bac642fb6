// All sandboxes, as they change.
import { Icon } from '../components/icons';
import { Badge, Duration, Name, Time } from '../components/show';
import { Empty, ErrorView, Loading } from '../components/state';
import { Table, type Column } from '../components/table';
import { listed, listError, sandboxes, useSandboxes } from '../live';
import { place, setQuery } from '../router';
import { mebibytes } from '../text';
import type { Sandbox } from '../types';

const groups: { id: string; name: string; has: (s: Sandbox) => boolean }[] = [
  { id: '', name: 'All', has: () => true },
  { id: 'running', name: 'Running', has: (s) => s.status === 'running' },
  { id: 'busy', name: 'Changing', has: (s) => s.status === 'pending' || s.status === 'resuming' || s.status === 'stopping' },
  { id: 'asleep', name: 'Asleep', has: (s) => s.status === 'paused' || s.status === 'hibernated' || (s.status === 'stopped' && s.persistent) },
  { id: 'ended', name: 'Ended', has: (s) => s.status === 'stopped' && !s.persistent },
  { id: 'failed', name: 'Failed', has: (s) => s.status === 'failed' },
];

const columns: Column<Sandbox>[] = [
  { name: 'Status', width: '112px', show: (s) => <Badge status={s.status} /> },
  {
    name: 'Name',
    width: 'minmax(140px, 2fr)',
    main: true,
    show: (s) => (
      <span class="name-cell">
        <Name class="strong">{s.name}</Name>
        {s.tags && (
          <span class="wide tags">
            {Object.entries(s.tags)
              .slice(0, 3)
              .map(([k, v]) => (
                <span class="tag" key={k}>
                  <Name>{`${k}=${v}`}</Name>
                </span>
              ))}
          </span>
        )}
      </span>
    ),
  },
  { name: 'Image', width: 'minmax(80px, 1fr)', class: 'wide', show: (s) => <Name class="dim">{s.runtime || s.image}</Name> },
  { name: 'Size', width: '136px', class: 'wide num', show: (s) => `${s.vcpus} vCPU, ${mebibytes(s.memory_mb)}` },
  { name: 'CPU time', width: '96px', class: 'wide num', show: (s) => <Duration ms={s.total.active_cpu_ms} /> },
  {
    name: 'Ends',
    width: '128px',
    class: 'wide',
    show: (s) => (s.expires_at ? <Time at={s.expires_at} /> : <span class="dim">{s.reason?.replace(/_/g, ' ') ?? '–'}</span>),
  },
  { name: 'Created', width: '92px', class: 'num', show: (s) => <Time at={s.created_at} /> },
];

export function Sandboxes() {
  useSandboxes();
  const { query } = place.value;
  const text = query.get('q') ?? '';
  const status = query.get('status') ?? '';
  const group = groups.find((g) => g.id === status) ?? groups[0]!;
  const asked = text.trim().toLowerCase();
  const found = sandboxes.value.filter(
    (s) =>
      !asked ||
      s.name.toLowerCase().includes(asked) ||
      s.id.includes(asked) ||
      Object.entries(s.tags ?? {}).some(([k, v]) => `${k}=${v}`.toLowerCase().includes(asked)),
  );
  const rows = found.filter(group.has);
  return (
    <div class="page full">
      <header class="page-head">
        <h1>Sandboxes</h1>
        <label class="filter">
          <Icon name="search" size={14} />
          <input
            data-filter
            type="search"
            aria-label="Filter by name, id or tag"
            placeholder="Name, id or tag"
            value={text}
            spellcheck={false}
            onInput={(e) => setQuery({ q: e.currentTarget.value })}
          />
          <kbd>/</kbd>
        </label>
      </header>
      <div class="chips" role="group" aria-label="Status">
        {groups.map((g) => (
          <button key={g.id} class="chip" aria-pressed={g === group} onClick={() => setQuery({ status: g.id })}>
            {g.name} <span class="num dim">{found.filter(g.has).length.toLocaleString()}</span>
          </button>
        ))}
      </div>
      {listError.value && !listed.value ? (
        <ErrorView error={listError.value} />
      ) : !listed.value && rows.length === 0 ? (
        <Loading />
      ) : rows.length === 0 && sandboxes.value.length === 0 ? (
        <Empty title="No sandbox yet" command="cay sandbox create first">
          This list shows it the moment it is there.
        </Empty>
      ) : rows.length === 0 ? (
        <Empty title="Nothing matches">
          <button onClick={() => setQuery({ q: '', status: '' })}>Show all</button>
        </Empty>
      ) : (
        <Table fill label="Sandboxes" columns={columns} rows={rows} id={(s) => s.id} href={(s) => `/sandboxes/${s.id}`} />
      )}
    </div>
  );
}
