// What the overview follows beside sandboxes: runs, hooks and calls of models, each by the changes the API tells of.
import { useCallback, useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, get, path, type Page, type Query } from '../../api';
import { follow } from '../../events';
import { asked } from '../agent/log';
import type { Payload } from '../agent/types';
import type { Budget, ModelCall, Spend } from '../gateway/types';
import { useRuns, type Change, type Filter } from '../workflow/list';
import type { Run, RunStatus } from '../workflow/types';

/** shown is how many of the latest are shown. */
const shown = 6;
/** calm is the least time between two questions for the same sums, in ms; they are asked when something has changed. */
const calm = 4000;

const everything: Filter = { status: '', workflow: '', attributes: [], time: 0 };
/** aDay is from when on things are of today, as an address and as the API take it. */
const aDay = () => new Date(Date.now() - 86_400_000).toISOString();

/**
 * useAgain asks for something, and again when it is told to, not more often than every calm. An answer stays until there is
 * another. Nothing is asked while ask is undefined.
 */
function useAgain<T>(ask: ((signal: AbortSignal) => Promise<T>) | undefined): { value?: T; error?: unknown; again: () => void } {
  const [state, set] = useState<{ value?: T; error?: unknown }>({});
  const work = useRef(() => {});
  const on = !!ask;
  const latest = useRef(ask);
  latest.current = ask;
  useEffect(() => {
    if (!on) return;
    const stop = new AbortController();
    let timer = 0;
    let last = 0;
    let asking = false;
    let more = false;
    const run = async () => {
      timer = 0;
      if (asking) {
        more = true;
        return;
      }
      asking = true;
      last = Date.now();
      try {
        const value = await latest.current!(stop.signal);
        if (!stop.signal.aborted) set({ value });
      } catch (error) {
        if (!stop.signal.aborted) set((s) => ({ value: s.value, error }));
      }
      asking = false;
      if (more && !stop.signal.aborted) {
        more = false;
        work.current();
      }
    };
    work.current = () => (timer ||= window.setTimeout(run, Math.max(100, last + calm - Date.now())));
    void run();
    return () => {
      stop.abort();
      window.clearTimeout(timer);
      work.current = () => {};
    };
  }, [on]);
  return { ...state, again: useCallback(() => work.current(), []) };
}

type Counts = Partial<Record<RunStatus, { count: number; more?: boolean }>>;

export interface Workflows {
  latest: readonly Run[];
  loaded: boolean;
  error?: unknown;
  /** those that go on, and those that were created within a day */
  open?: Counts;
  today?: Counts;
  /** runs of agents that wait for an approval, the longest first */
  approvals: string[];
}

/** useWorkflows are runs as they change, how many there are, and which wait for somebody. */
export function useWorkflows(): Workflows {
  const open = useAgain((signal) => get<{ counts: Counts }>(path('workflows', 'runs', 'counts'), { status: ['pending', 'running'] }, signal));
  const today = useAgain((signal) => get<{ counts: Counts }>(path('workflows', 'runs', 'counts'), { since: aDay() }, signal));
  const hooks = useAgain((signal) => get<Page<{ run: string; metadata?: Payload | null }>>(path('workflows', 'hooks'), { limit: 1000 }, signal));
  const onChange = (all: Change[]) => {
    if (all.some((c) => c.type === 'hooks' || c.type === 'missed')) hooks.again();
    if (!all.some((c) => c.type !== 'hooks' && c.type !== 'schedules')) return;
    open.again();
    today.again();
  };
  const runs = useRuns(everything, shown, onChange);
  return {
    latest: runs.runs,
    loaded: runs.loaded,
    error: runs.error,
    open: open.value?.counts,
    today: today.value?.counts,
    approvals: [...new Set(hooks.value?.items.filter((h) => asked(h.metadata)).map((h) => h.run))],
  };
}

export interface Calls {
  /** undefined until they are there */
  latest?: ModelCall[];
  /** there is no gateway, or it is not for this login */
  none: boolean;
  /** of a day: requests, those that failed, dollars */
  today?: { requests: number; failed: number; cost: number; unpriced: number };
  /** budgets of which little is left, the fullest first */
  full: Budget[];
}

/** nearly is from which part of a budget on it is near its end. */
const nearly = 0.8;
const used = (b: Budget): number => (Number(b.limit) > 0 ? (Number(b.spent) + Number(b.held)) / Number(b.limit) : Number(b.spent) > 0 ? 1 : 0);

/** useCalls are calls of models as they end, what they cost, and the budgets. */
export function useCalls(): Calls {
  const [latest, set] = useState<ModelCall[]>();
  const [none, setNone] = useState(false);
  const requests = path('gateway', 'requests');
  const spend = useAgain((signal) => get<Page<Spend>>(path('gateway', 'spend'), { by: ['status'], since: aDay() }, signal));
  const budgets = useAgain((signal) => get<Page<Budget>>(path('gateway', 'budgets'), { limit: 200 }, signal));
  useEffect(() => {
    const stop = new AbortController();
    const all = new Map<string, ModelCall>();
    let timer = 0;
    let read = false;
    const draw = () => {
      timer = 0;
      const items = [...all.values()].sort((a, b) => (a.id < b.id ? 1 : -1));
      for (const old of items.splice(shown)) all.delete(old.id);
      if (!stop.signal.aborted && read) set(items);
    };
    const list = async () => {
      try {
        const query: Query = { limit: shown };
        for (const r of (await get<Page<ModelCall>>(requests, query, stop.signal)).items) all.set(r.id, r);
        read = true;
        draw();
      } catch (e) {
        if (e instanceof ApiError && (e.code === 'not_found' || e.code === 'permission_denied')) setNone(true);
      }
    };
    void list();
    follow<ModelCall>(`${requests}/events`, {
      signal: stop.signal,
      // After the first connection: what has ended since it was asked for.
      onOpen: (last) => void (last || list()),
      onEvent: (r) => {
        all.set(r.id, r);
        timer ||= window.setTimeout(draw, 150);
        spend.again();
        budgets.again();
      },
    }).catch(() => {}); // the list says why
    return () => {
      stop.abort();
      window.clearTimeout(timer);
    };
  }, []);
  const total = spend.value?.items.reduce((n, s) => ({ requests: n.requests + s.requests, failed: n.failed + s.failed, cost: n.cost + Number(s.cost), unpriced: n.unpriced + s.unpriced }), { requests: 0, failed: 0, cost: 0, unpriced: 0 });
  const full = (budgets.value?.items ?? []).filter((b) => used(b) >= nearly).sort((a, b) => used(b) - used(a));
  return { latest, none, today: total, full };
}
