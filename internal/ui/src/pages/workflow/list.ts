// A list of runs: pages of it, as far as somebody has looked, and how they change.
import { useEffect, useRef, useState } from 'preact/hooks';
import { get, path, type Page, type Query } from '../../api';
import { now, watch } from '../../live';
import { ended, type Run } from './types';

/** What is asked of the list. Time is how far back, in ms, 0 for all. */
export interface Filter {
  status: string;
  workflow: string;
  attributes: string[]; // name=value, or a name alone, as the API takes them
  time: number;
  project?: string;
}

/** Change is a line of the changes of runs. */
export interface Change {
  type: 'ready' | 'changed' | 'deleted' | 'missed' | 'hooks' | 'schedules';
  id?: string;
  run?: Run;
}

/** changes is where they are followed. */
export const changes = path('workflows', 'runs', 'changes');

/** size is how many runs are asked for at a time, many how many where all are gone through, most how many are kept. */
const size = 200;
const many = 1000;
const most = 20_000;
/** patience is how long the list waits for its changes to begin, in ms: where they do not, there is the list at least. */
const patience = 2500;
/** retry is how long after a failure it is read again, in ms. */
const retry = 5000;

export interface Runs {
  runs: readonly Run[];
  error?: unknown;
  /** the first page is there */
  loaded: boolean;
  /** what changes comes by itself */
  live: boolean;
  /** there are more that were not asked for yet */
  more: boolean;
  /** the list has ended because it is too long to keep more */
  full: boolean;
  /** asks for the next page, unless it is being asked for: a large one if all are gone through */
  loadMore: (all?: boolean) => void;
  /** says which rows are seen */
  look: (first: number, last: number) => void;
  /** puts a run as it is now into the list */
  put: (r: Run) => void;
  /** reads the list again */
  refresh: () => void;
}

const order = (a: Run, b: Run): number => (a.created_at < b.created_at ? 1 : a.created_at > b.created_at ? -1 : a.id < b.id ? 1 : -1);

/** The API's times have milliseconds, or none: both sort as text once they are alike. */
const alike = (r: Run): Run => (r.created_at.includes('.') ? { ...r, created_at: new Date(r.created_at).toISOString() } : { ...r, created_at: r.created_at.replace('Z', '.000Z') });

/** merge puts runs into those that are known, in order, and takes away those that are gone. */
export function merge(known: readonly Run[], put: ReadonlyMap<string, Run>, gone?: ReadonlySet<string>): Run[] {
  const left = new Map(put);
  const out: Run[] = [];
  for (const r of known) {
    const now = left.get(r.id);
    if (now) left.delete(r.id);
    if (!gone?.has(r.id)) out.push(now ?? r);
  }
  return left.size ? [...out, ...left.values()].sort(order) : out;
}

const byId = (runs: Run[]): Map<string, Run> => new Map(runs.map((r) => [r.id, r]));

/** useRuns is the list for a filter; at most keep runs of it. onChange is told all that changes, whether it is listed or not. */
export function useRuns(f: Filter, keep = most, onChange?: (changes: Change[]) => void): Runs {
  const told = useRef(onChange);
  told.current = onChange;
  const key = JSON.stringify([f, keep]);
  const [state, set] = useState<{ of: string; runs: readonly Run[]; loaded: boolean; live: boolean; more: boolean; error?: unknown }>({ of: '', runs: [], loaded: false, live: false, more: false });
  const work = useRef<Pick<Runs, 'loadMore' | 'look' | 'refresh' | 'put'>>({ loadMore: () => {}, look: () => {}, refresh: () => {}, put: () => {} });

  useEffect(() => {
    const stop = new AbortController();
    let runs: readonly Run[] = [];
    let cursor: string | undefined;
    let loaded = false;
    let live = false;
    let error: unknown;
    let reading: AbortController | undefined;
    let again = 0;
    let fresh = new Set<string>(); // has changed, or gone, since the list is being read
    const since = () => (f.time ? new Date(Date.now() - f.time).toISOString() : undefined);
    const query = (): Query => ({ project: f.project, workflow: f.workflow, status: f.status ? [f.status] : undefined, attribute: f.attributes, since: since() });
    const show = () => {
      if (stop.signal.aborted) return;
      const from = since();
      if (from && runs.length && runs.at(-1)!.created_at < from) runs = runs.filter((r) => r.created_at >= from);
      if (runs.length > keep) runs = runs.slice(0, keep);
      set({ of: key, runs, loaded, live, more: cursor !== undefined && runs.length < keep, error });
    };

    // A part of the list replaces what was known of it. Reads follow each other; a later one that begins anew ends those before.
    const page = async (from: string | undefined, limit: number, signal: AbortSignal) => {
      const p = await get<Page<Run>>(path('workflows', 'runs'), { ...query(), cursor: from, limit: Math.min(limit, keep) }, signal);
      return { items: p.items.map(alike), next: p.next };
    };
    const begin = () => {
      reading?.abort();
      reading = new AbortController();
      return AbortSignal.any([reading.signal, stop.signal]);
    };
    const read = async () => {
      const signal = begin();
      fresh = new Set();
      try {
        const wanted = Math.max(size, runs.length);
        const found: Run[] = [];
        let next: string | undefined;
        do {
          const p = await page(next, wanted > size ? many : size, signal);
          found.push(...p.items);
          next = p.next;
        } while (next !== undefined && found.length < Math.min(wanted, keep));
        const current = new Map(runs.map((r) => [r.id, r]));
        const put = byId(found.filter((r) => !fresh.has(r.id)));
        // What has come meanwhile is newer than what was read.
        const kept = [...current.values()].filter((r) => fresh.has(r.id));
        runs = merge(kept, put);
        cursor = next;
        loaded = true;
        error = undefined;
        reading = undefined;
      } catch (e) {
        if (signal.aborted) return;
        error = e;
        reading = undefined;
        window.clearTimeout(again);
        again = window.setTimeout(() => reading || void read(), retry);
      }
      show();
    };
    const loadMore = async (all = false) => {
      if (reading || !loaded || cursor === undefined || runs.length >= keep) return;
      const signal = begin();
      fresh = new Set();
      try {
        const p = await page(cursor, all ? many : size, signal);
        runs = merge(runs, byId(p.items.filter((r) => !fresh.has(r.id))));
        cursor = p.next;
        error = undefined;
        reading = undefined;
      } catch (e) {
        if (signal.aborted) return;
        error = e;
        reading = undefined;
      }
      show();
    };
    const apply = (all: Change[]) => {
      const put = new Map<string, Run>();
      const gone = new Set<string>();
      for (const c of all) {
        if (c.type === 'changed' && c.run) {
          const r = alike(c.run);
          fresh.add(r.id);
          gone.delete(r.id);
          // Those older than what was read come with their page.
          if (cursor === undefined || r.created_at >= (runs.at(-1)?.created_at ?? '')) put.set(r.id, r);
        } else if (c.type === 'deleted' && c.id) {
          fresh.add(c.id);
          put.delete(c.id);
          gone.add(c.id);
        }
      }
      if (put.size === 0 && gone.size === 0) return;
      runs = merge(runs, put, gone);
      if (loaded) show();
    };

    set((s) => ({ ...s, of: key, runs: [], loaded: false, live: false, more: false, error: undefined }));
    const late = window.setTimeout(() => loaded || reading || void read(), patience);
    const slide = f.time ? window.setInterval(() => loaded && show(), 15_000) : 0; // what is too old by now goes
    watch<Change>(changes, query(), stop.signal, {
      onReady: () => {
        void read();
        told.current?.([{ type: 'missed' }]);
      },
      onChanges: (all) => {
        apply(all);
        told.current?.(all);
      },
      onLive: (is) => {
        if (live === is) return;
        live = is;
        if (loaded) show();
      },
    }).catch((e: unknown) => {
      if (stop.signal.aborted) return;
      live = false;
      if (!loaded && !reading) void read();
      error = e;
      show();
    });
    work.current = {
      loadMore: (all) => void loadMore(all),
      look: (_, last) => {
        if (last > runs.length - size / 2) void loadMore();
      },
      refresh: () => void read(),
      put: (r) => apply([{ type: 'changed', id: r.id, run: r }]),
    };
    return () => {
      stop.abort();
      window.clearTimeout(late);
      window.clearTimeout(again);
      window.clearInterval(slide);
    };
  }, [key]);

  const mine = state.of === key;
  return {
    runs: mine ? state.runs : none,
    loaded: mine && state.loaded,
    live: mine && state.live,
    more: mine && state.more,
    full: mine && state.runs.length >= keep,
    error: mine ? state.error : undefined,
    loadMore: (all) => work.current.loadMore(all),
    look: (first, last) => work.current.look(first, last),
    refresh: () => work.current.refresh(),
    put: (r) => work.current.put(r),
  };
}

const none: readonly Run[] = [];

/** tookOf is how long a run has taken, or takes, in ms. */
export function tookOf(r: Pick<Run, 'started_at' | 'completed_at' | 'status'>): number | undefined {
  if (!r.started_at) return undefined;
  return Math.max(0, (r.completed_at ? Date.parse(r.completed_at) : ended(r.status) ? 0 : now.value) - Date.parse(r.started_at));
}
