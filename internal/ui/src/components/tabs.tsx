// Tabs whose choice is part of the address.
import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { place, setQuery } from '../router';

export interface Tab {
  id: string;
  name: string;
  note?: ComponentChildren;
}

/** chosenTab is the tab the address names, else the first. */
export function chosenTab(tabs: Tab[]): string {
  const asked = place.value.query.get('tab');
  return tabs.some((t) => t.id === asked) ? asked! : tabs[0]!.id;
}

export function Tabs({ tabs, label }: { tabs: Tab[]; label: string }) {
  const chosen = chosenTab(tabs);
  const bar = useRef<HTMLDivElement>(null);
  useEffect(() => bar.current?.querySelector('[aria-selected=true]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' }), [chosen]);
  const choose = (id: string) => setQuery({ tab: id === tabs[0]!.id ? '' : id, path: '', view: '', cmd: '' }, true);
  const onKeyDown = (e: KeyboardEvent) => {
    const at = tabs.findIndex((t) => t.id === chosen);
    const to = e.key === 'ArrowRight' ? at + 1 : e.key === 'ArrowLeft' ? at - 1 : -1;
    const tab = tabs[to];
    if (!tab) return;
    e.preventDefault();
    choose(tab.id);
    document.getElementById(`tab-${tab.id}`)?.focus();
  };
  return (
    <div class="tabs" ref={bar} role="tablist" aria-label={label} onKeyDown={onKeyDown}>
      {tabs.map((t) => (
        <button
          key={t.id}
          id={`tab-${t.id}`}
          role="tab"
          aria-selected={t.id === chosen}
          tabIndex={t.id === chosen ? 0 : -1}
          onClick={() => choose(t.id)}
        >
          {t.name}
          {t.note}
        </button>
      ))}
    </div>
  );
}
