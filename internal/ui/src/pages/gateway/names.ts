// Names of what records have ids of.
import { useCallback, useMemo } from 'preact/hooks';
import { path, type Page } from '../../api';
import { useGet } from '../../live';
import type { Key } from './types';

/** useNames returns what an id of a dimension is called: that of a key by its name, if it is among the 200 newest. */
export function useNames(dimension: string): (id: string) => string {
  const keys = useGet<Page<Key>>(dimension === 'key' ? path('gateway', 'keys') : '', { limit: 200 });
  const names = useMemo(() => new Map(keys.value?.items.map((k) => [k.id, k.name])), [keys.value]);
  return useCallback((id: string) => names.get(id) || id || 'none', [names]);
}
