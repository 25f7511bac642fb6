// Requests of the gateway, as they end.
import { useEffect, useRef, useState } from 'preact/hooks';
import { get, path, type Page, type Query } from '../../api';
import { follow } from '../../events';
import type { ModelCall } from './types';

export const requests = path('gateway', 'requests');

/** kept is how many requests a page keeps; the oldest go first. */
const kept = 20_000;
/** drawn is how often new requests are shown, in ms. */
const drawn = 150;
/** patience is how long the list waits for the events to begin, in ms. */
const patience = 2500;

export interface Feed {
  /** newest first; undefined until they are there */
  items?: ModelCall[];
  error?: unknown;
  live: boolean;
  /** there are older ones */
  more: boolean;
  /** loads older ones; while that is under way it does nothing */
  load: () => void;
  loading: boolean;
}

/**
 * useFeed follows the requests that filter selects, and has those from since on (of any time, if that is ''): at first as
 * many pages of 1,000 as it is told, at most. Nothing is followed where off is true.
 */
export function useFeed(filter: Query, { since = '', pages = 1, off = false }: { since?: string; pages?: number; off?: boolean } = {}): Feed {
  const key = JSON.stringify([filter, since, off]);
  const [state, set] = useState<{ of: string; items?: ModelCall[]; error?: unknown; live: boolean; next: string; loading: boolean }>({ of: '', live: false, next: '', loading: false });
  const loader = useRef<() => void>(() => {});
  useEffect(() => {
    if (off) return;
    const stop = new AbortController();
    const all = new Map<string, ModelCall>();
    let next = '';
    let ready = false;
    let live = false;
    let error: unknown;
    let loading = false;
    let timer = 0;
    const draw = () => {
      window.clearTimeout(timer);
      timer = 0;
      if (stop.signal.aborted) return;
      const items = [...all.values()].sort((a, b) => (a.id < b.id ? 1 : a.id > b.id ? -1 : 0));
      for (const gone of items.splice(kept)) all.delete(gone.id);
      set({ of: key, items: ready ? items : undefined, error, live, next: all.size < kept ? next : '', loading });
    };
    const soon = () => void (timer ||= window.setTimeout(draw, drawn));
    const read = async (n: number, cursor: string) => {
      if (loading) return;
      loading = true;
      if (ready) draw();
      try {
        do {
          const page = await get<Page<ModelCall>>(requests, { ...filter, since, limit: 1000, cursor }, stop.signal);
          for (const r of page.items) all.set(r.id, r);
          cursor = page.next ?? '';
        } while (--n > 0 && cursor);
        next = cursor;
        ready = true;
        error = undefined;
      } catch (e) {
        error = e;
      }
      loading = false;
      draw();
    };
    loader.current = () => next && void read(1, next);
    set({ of: key, live: false, next: '', loading: true });
    // The list is read once events come, so that nothing is between them; again, where they could not go on after the last.
    // Where none come, there is the list at least.
    const late = window.setTimeout(() => !ready && void read(pages, ''), patience);
    follow<ModelCall>(`${requests}/events`, {
      query: filter,
      signal: stop.signal,
      onOpen: (last) => {
        live = true;
        if (!last || !ready) void read(pages, '');
        else soon();
      },
      onEvent: (r) => {
        all.set(r.id, r);
        soon();
      },
      onBreak: (e) => {
        live = false;
        if (ready) soon();
        else void read(pages, '').then(() => ready || ((error = e), draw()));
      },
    }).catch((e: unknown) => {
      live = false;
      error = e;
      draw();
    });
    return () => {
      stop.abort();
      window.clearTimeout(timer);
      window.clearTimeout(late);
    };
  }, [key]);
  const mine = state.of === key;
  return {
    items: mine ? state.items : undefined,
    error: mine ? state.error : undefined,
    live: mine && state.live,
    more: mine && state.next !== '',
    loading: mine && state.loading,
    load: () => loader.current(),
  };
}
