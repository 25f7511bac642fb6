// What of the gateway's requests is looked at: a part of the address, the same on all its pages.
import { place, setQuery } from '../../router';

/** filters are the parameters of the API that select requests, with what people call them. */
export const filters = [
  { id: 'model', name: 'model' },
  { id: 'provider', name: 'provider' },
  { id: 'key_id', name: 'key' },
  { id: 'user', name: 'user' },
  { id: 'tag', name: 'tag' },
  { id: 'session', name: 'session' },
  { id: 'project_id', name: 'project' },
] as const;

/** chosen are the filters that the address has. */
export function chosen(without: string[] = []): Record<string, string> {
  const all: Record<string, string> = {};
  for (const f of filters) {
    const v = place.value.query.get(f.id);
    if (v && !without.includes(f.id)) all[f.id] = v;
  }
  return all;
}

/** withFilters is an address with the filters that are chosen, and more. */
export function withFilters(path: string, more: Record<string, string> = {}): string {
  const q = new URLSearchParams({ ...chosen(), ...more }).toString();
  return q ? `${path}?${q}` : path;
}

/** typed takes a text such as "user:ada" as a filter. */
export function typed(text: string): boolean {
  const [, name, value] = /^\s*(\w+):(.+?)\s*$/.exec(text) ?? [];
  const f = filters.find((f) => f.name === name);
  if (!f || !value) return false;
  setQuery({ [f.id]: value, q: '' });
  return true;
}
