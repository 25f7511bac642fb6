// Providers that models can be asked of: how they are, and where they are configured.
import { useState } from 'preact/hooks';
import { ask } from '../../components/dialog';
import { call, path, type Page } from '../../api';
import { Badge, Code, Name } from '../../components/show';
import { Empty, ErrorView, Loading } from '../../components/state';
import { Table, type Column } from '../../components/table';
import { complain } from '../../components/toast';
import { useGet } from '../../live';
import { place, setQuery } from '../../router';
import { visibleLines } from '../../text';
import { useAfterCalls } from './calls';
import { millis } from './money';
import { Frame } from './page';
import { ProviderForm } from './provider';
import { Tags } from './requests';
import type { Check, Provider } from './types';

const tones: Record<string, string> = { ok: 'completed', degraded: 'paused', open: 'failed', unknown: 'stopped' };
const words: Record<string, string> = { ok: 'ok', degraded: 'degraded', open: 'not used', unknown: 'not called lately' };

/** HealthBadge is how an endpoint has done lately. */
export function HealthBadge({ state }: { state: string }) {
  return <Badge status={tones[state] ?? 'stopped'}>{words[state] ?? state}</Badge>;
}

const sources: Record<string, string> = { file: 'the file', api: 'the API', environment: 'the environment', known: 'nowhere' };

const sourceOf = (p: Provider) => (p.source === 'known' && p.configured ? 'itself' : (sources[p.source] ?? p.source));

export function Providers() {
  const { value, error, reload } = useGet<Page<Provider>>(path('gateway', 'providers'));
  useAfterCalls(reload);
  const [checks, setChecks] = useState<ReadonlyMap<string, Check>>(new Map());
  const [checking, setChecking] = useState('');
  const [editing, edit] = useState<string>(); // a name, '' for a new one
  const all = place.value.query.get('show') === 'all';
  const check = async (provider: string) => {
    setChecking(provider || 'all');
    try {
      const found = await call<Page<Check>>('POST', path('gateway', 'check'), { query: { provider } });
      setChecks((old) => {
        const next = new Map(old);
        const seen = new Set<string>();
        for (const c of found.items) {
          // With several credentials, what fails counts.
          if (!seen.has(c.provider) || !c.ok) next.set(c.provider, c);
          seen.add(c.provider);
        }
        return next;
      });
      reload();
    } catch (e) {
      complain(e);
    }
    setChecking('');
  };
  const takeBack = (name: string) =>
    ask({
      title: 'Delete what was set?',
      text: (
        <>
          <Name class="strong">{name}</Name> is then as the environment has it, if that does. Requests under way go on.
        </>
      ),
      action: 'Delete',
      danger: true,
      run: async () => {
        await call('DELETE', path('gateway', 'providers', name));
        reload();
      },
    });
  const items = value?.items;
  const rows = (items ?? []).filter((p) => all || p.configured || p.disabled || p.source !== 'known');
  const columns: Column<Provider>[] = [
    { name: 'Health', width: '120px', show: (p) => (p.disabled ? <Badge status="stopped">disabled</Badge> : p.configured ? <HealthBadge state={p.health} /> : <Badge status="stopped">no credential</Badge>) },
    {
      name: 'Provider',
      width: 'minmax(90px, 1fr)',
      main: true,
      show: (p) => (
        <>
          <Name class="strong">{p.name}</Name>
          {p.kind && p.kind !== p.name && <span class="dim"> {p.kind}</span>}
        </>
      ),
    },
    { name: 'Formats', width: 'minmax(90px, 1.2fr)', class: 'wide', show: (p) => <Name class="dim">{p.formats.join(', ')}</Name> },
    { name: 'Configured in', width: '124px', class: 'wide', show: (p) => <span class="dim">{sourceOf(p)}</span> },
    { name: 'Credentials', width: 'minmax(70px, 0.8fr)', class: 'wide', show: (p) => <Tags of={p.credentials} /> },
    {
      name: 'Checked',
      width: '96px',
      class: 'num',
      show: (p) => {
        const c = checks.get(p.name);
        if (c) return <Badge status={c.ok ? 'completed' : 'failed'}>{c.ok ? millis(c.latency_ms) : 'failed'}</Badge>;
        if (!p.configured || p.disabled) return <span class="dim">–</span>;
        return (
          <button
            class="ghost tiny over"
            disabled={checking !== ''}
            aria-label={`Check ${p.name}`}
            onClick={(e) => {
              e.stopPropagation();
              void check(p.name);
            }}
          >
            {checking === p.name ? 'Checking…' : 'Check'}
          </button>
        );
      },
    },
  ];
  const view = place.value.query.get('view');
  const chosen = rows.find((p) => p.name === view);
  const found = chosen && checks.get(chosen.name);
  return (
    <Frame
      view="providers"
      full
      actions={
        <>
          <button onClick={() => void check('')} disabled={checking !== ''} title="Calls each provider with each of its credentials">
            {checking === 'all' ? 'Checking…' : 'Check all'}
          </button>
          <button class="primary" onClick={() => edit('')}>
            Set a provider
          </button>
        </>
      }
    >
      <div class="chips" role="group" aria-label="Show">
        <button class="chip" aria-pressed={!all} onClick={() => setQuery({ show: '' })}>
          Configured
        </button>
        <button class="chip" aria-pressed={all} onClick={() => setQuery({ show: 'all' })}>
          All that are known <span class="num dim">{items?.length ?? ''}</span>
        </button>
      </div>
      {!items ? (
        error ? (
          <ErrorView error={error} retry={reload} />
        ) : (
          <Loading />
        )
      ) : rows.length === 0 ? (
        <Empty title="No provider is configured" command="OPENAI_API_KEY=... cay serve">
          A key in the environment is enough; gateway.yaml can say more.
        </Empty>
      ) : (
        <div class={`split${chosen ? '' : ' alone'}`}>
          <div class="split-list">
            <Table fill label="Providers" columns={chosen ? [columns[0]!, columns[1]!, columns[5]!] : columns} rows={rows} id={(p) => p.name} onOpen={(p) => setQuery({ view: p.name === view ? '' : p.name })} selected={view ?? ''} />
          </div>
          {chosen && (
            <div class="split-view padded">
              <div class="panel-head">
                <h2>
                  <Name>{chosen.name}</Name> {chosen.configured && !chosen.disabled && <HealthBadge state={chosen.health} />}
                </h2>
                <span class="actions">
                  {chosen.source !== 'file' && <button onClick={() => edit(chosen.name)}>{chosen.source === 'api' ? 'Edit' : 'Set it up'}</button>}
                  {chosen.source === 'api' && (
                    <button class="danger" onClick={() => takeBack(chosen.name)}>
                      Delete
                    </button>
                  )}
                  <button onClick={() => setQuery({ view: '' })}>Close</button>
                </span>
              </div>
              <dl class="facts">
                <Fact name="Kind">{chosen.kind ? <Name>{chosen.kind}</Name> : 'its own'}</Fact>
                <Fact name="Configured in">{sourceOf(chosen)}</Fact>
                <Fact name="Formats">
                  <Tags of={chosen.formats} most={20} />
                </Fact>
                {chosen.base_url && (
                  <Fact name="Address">
                    <Code>{chosen.base_url}</Code>
                  </Fact>
                )}
                {chosen.credentials?.length ? (
                  <Fact name="Credentials">
                    <Tags of={chosen.credentials} most={20} />
                  </Fact>
                ) : null}
                {found && (
                  <Fact name="Checked">
                    {found.ok ? `answered in ${millis(found.latency_ms)}${found.models ? `, lists ${found.models} models` : ''}` : <span class="bad-text">{visibleLines([found.error, found.hint].filter(Boolean).join('. '))}</span>}
                  </Fact>
                )}
              </dl>
              <p class="note">
                <a class="link" href={`/gateway/requests?provider=${encodeURIComponent(chosen.name)}`}>
                  Its requests
                </a>
                {' · '}
                <a class="link" href={`/gateway?provider=${encodeURIComponent(chosen.name)}`}>
                  Its spending
                </a>
                {' · '}
                <a class="link" href={`/gateway/models?q=${encodeURIComponent(chosen.name)}`}>
                  Its models
                </a>
              </p>
            </div>
          )}
        </div>
      )}
      {editing !== undefined && <ProviderForm name={editing} known={items?.filter((p) => p.source !== 'file').map((p) => p.name) ?? []} onClose={() => edit(undefined)} onSet={reload} />}
    </Frame>
  );
}

function Fact({ name, children }: { name: string; children: preact.ComponentChildren }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
