// Where the page is: the path says which page, the query what of it (a tab, filters).
import { signal } from '@preact/signals';

interface Place {
  path: string;
  query: URLSearchParams;
}

const read = (): Place => ({ path: location.pathname, query: new URLSearchParams(location.search) });

/** place is the address, as pages read it. */
export const place = signal<Place>(read());

window.addEventListener('popstate', () => (place.value = read()));

/** go opens an address of this app. */
export function go(to: string, replace = false): void {
  if (replace) history.replaceState(null, '', to);
  else history.pushState(null, '', to);
  place.value = read();
  if (!replace) document.querySelector('main')?.scrollTo(0, 0);
}

/** setQuery changes the query of the address in place; '' takes a parameter away. */
export function setQuery(change: Record<string, string>, push = false): void {
  const q = new URLSearchParams(location.search);
  for (const [k, v] of Object.entries(change)) {
    if (v) q.set(k, v);
    else q.delete(k);
  }
  const text = q.toString();
  go(location.pathname + (text ? '?' + text : ''), !push);
}

/** followLinks opens links of this app without loading the page again. */
export function followLinks(e: MouseEvent): void {
  if (e.defaultPrevented || e.button !== 0 || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return;
  const a = (e.target as Element).closest('a');
  if (!a || a.target || a.hasAttribute('download') || a.origin !== location.origin) return;
  e.preventDefault();
  go(a.pathname + a.search);
}
