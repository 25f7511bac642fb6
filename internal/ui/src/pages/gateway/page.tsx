// The pages of the AI gateway, and what is above them.
import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { Empty } from '../../components/state';
import { visible } from '../../text';
import { setQuery } from '../../router';
import { Budgets } from './budgets';
import { Credentials } from './credentials';
import { Dashboard } from './dashboard';
import { chosen, filters, withFilters } from './filter';
import './gateway.css';
import { Keys } from './keys';
import { Models } from './models';
import { Providers } from './providers';
import { RequestPage } from './request';
import { Requests } from './requests';

const views: { id: string; name: string; filtered?: boolean }[] = [
  { id: '', name: 'Dashboard', filtered: true },
  { id: 'requests', name: 'Requests', filtered: true },
  { id: 'keys', name: 'Keys' },
  { id: 'budgets', name: 'Budgets' },
  { id: 'providers', name: 'Providers' },
  { id: 'credentials', name: 'Credentials' },
  { id: 'models', name: 'Models' },
];

export function Gateway({ view = '', item }: { view?: string; item?: string }) {
  if (view === 'requests' && item) return <RequestPage key={item} id={item} />;
  if (!views.some((v) => v.id === view) || item)
    return (
      <Empty title="There is no such page">
        <a href="/gateway">Go to the gateway</a>
      </Empty>
    );
  if (view === 'requests') return <Requests />;
  if (view === 'keys') return <Keys />;
  if (view === 'budgets') return <Budgets />;
  if (view === 'providers') return <Providers />;
  if (view === 'credentials') return <Credentials />;
  if (view === 'models') return <Models />;
  return <Dashboard />;
}

/** Frame is what all pages of the gateway have: a heading, what can be done, and the way to the others. */
export function Frame({ view, full, actions, children }: { view: string; full?: boolean; actions?: ComponentChildren; children: ComponentChildren }) {
  const bar = useRef<HTMLElement>(null);
  useEffect(() => bar.current?.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'center' }), [view]);
  return (
    <div class={`page gateway${full ? ' full' : ''}`}>
      <header class="page-head">
        <h1>AI gateway</h1>
        <div class="actions">{actions}</div>
      </header>
      <nav class="views" aria-label="Gateway" ref={bar}>
        {views.map((v) => (
          <a key={v.id} href={v.filtered ? withFilters(v.id ? `/gateway/${v.id}` : '/gateway') : `/gateway/${v.id}`} aria-current={v.id === view ? 'page' : undefined}>
            {v.name}
          </a>
        ))}
      </nav>
      {children}
    </div>
  );
}

/** Chosen shows the filters of the address, each with a way to take it away. */
export function Chosen() {
  const all = chosen();
  if (Object.keys(all).length === 0) return null;
  return (
    <div class="chips" role="group" aria-label="Only">
      {filters
        .filter((f) => all[f.id])
        .map((f) => (
          <button key={f.id} class="chip" aria-pressed="true" title="Take this filter away" onClick={() => setQuery({ [f.id]: '' })}>
            <span class="dim">{f.name}</span> <bdi>{visible(all[f.id]!)}</bdi> <span aria-hidden="true">×</span>
          </button>
        ))}
    </div>
  );
}
