// What was asked of the gateway in a time, added up: by the daemon, or here, where its hours are too long.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { get, path, type Page } from '../../api';
import { now } from '../../live';
import { useFeed } from './feed';
import type { ModelCall, Spend } from './types';

export const ranges = [
  { id: '1h', name: '1 hour', step: 60, parts: 60, by: '' },
  { id: '24h', name: '24 hours', step: 3600, parts: 24, by: 'hour' },
  { id: '7d', name: '7 days', step: 3600, parts: 168, by: 'hour' },
  { id: '30d', name: '30 days', step: 86_400, parts: 30, by: 'day' },
] as const;

export type Range = (typeof ranges)[number];

/** dimensions are what a report can be by, with the parameter that selects one of them. */
export const dimensions = [
  { id: 'model', name: 'Model', filter: 'model' },
  { id: 'provider', name: 'Provider', filter: 'provider' },
  { id: 'key', name: 'Key', filter: 'key_id' },
  { id: 'tag', name: 'Tag', filter: 'tag' },
  { id: 'user', name: 'User', filter: 'user' },
  { id: 'project', name: 'Project', filter: 'project_id' },
] as const;

export type Dimension = (typeof dimensions)[number];

export interface Sum {
  name: string;
  requests: number;
  failed: number;
  refused: number;
  cancelled: number;
  unpriced: number;
  input: number;
  output: number;
  cost: number;
  p50?: number;
  p95?: number;
}

export interface Report {
  times: number[];
  step: number;
  /** one for each of times */
  parts: Sum[];
  total: Sum;
  /** by the dimension, the most expensive first */
  groups: Sum[];
  /** by the name of a group, one for each of times */
  byGroup: Map<string, Sum[]>;
}

export interface Reported {
  report?: Report;
  error?: unknown;
  /** there were more requests than are counted */
  cut: boolean;
  live: boolean;
}

const none = (name = ''): Sum => ({ name, requests: 0, failed: 0, refused: 0, cancelled: 0, unpriced: 0, input: 0, output: 0, cost: 0 });

/** times are when the parts of a range begin, in seconds; the last is the one that now is in. */
function timesOf(r: Range, at: number): number[] {
  const last = Math.floor(at / 1000 / r.step) * r.step;
  return Array.from({ length: r.parts }, (_, i) => last - (r.parts - 1 - i) * r.step);
}

const most = (groups: Iterable<Sum>) => [...groups].sort((a, b) => b.cost - a.cost || b.requests - a.requests || (a.name < b.name ? -1 : 1));

/** calm is how long after one report the next one is asked for, at least, in ms. */
const calm = 4000;

export function useReport(range: Range, by: Dimension, filter: Record<string, string>): Reported {
  const minutes = range.by === '';
  const step = range.step * 1000;
  const at = Math.floor(now.value / step) * step; // changes with each part
  const [began] = useState(() => Date.now());
  const feed = useFeed(filter, { since: new Date(minutes ? timesOf(range, began)[0]! * 1000 : began).toISOString(), pages: minutes ? 5 : 1 });
  const server = useServer(range, by, filter, at, feed.items?.[0]?.id ?? '', minutes);
  const local = useMemo(() => (minutes && feed.items ? addUp(range, by, feed.items, at) : undefined), [minutes, feed.items, range, by, at]);
  if (minutes) return { report: local, error: feed.error, cut: feed.more, live: feed.live };
  return { ...server, cut: false, live: feed.live };
}

/** useServer asks the daemon for a report, and again when newest, the newest request that is known of, is another one. */
function useServer(range: Range, by: Dimension, filter: Record<string, string>, at: number, newest: string, off: boolean): { report?: Report; error?: unknown } {
  const about = JSON.stringify([range.id, by.id, filter]);
  const [state, set] = useState<{ of: string; report?: Report; error?: unknown }>({ of: '' });
  const last = useRef({ about: '', time: 0 });
  useEffect(() => {
    if (off) return;
    const stop = new AbortController();
    const wait = last.current.about === about ? Math.max(0, last.current.time + calm - Date.now()) : 0;
    const timer = window.setTimeout(() => {
      last.current = { about, time: Date.now() };
      ask(range, by, filter, at, stop.signal).then(
        (report) => set({ of: about, report }),
        (error: unknown) => {
          if (!stop.signal.aborted) set((s) => ({ of: about, report: s.of === about ? s.report : undefined, error }));
        },
      );
    }, wait);
    return () => {
      stop.abort();
      window.clearTimeout(timer);
    };
  }, [about, at, newest, off]);
  return state.of === about ? { report: state.report, error: state.error } : {};
}

async function ask(range: Range, by: Dimension, filter: Record<string, string>, at: number, signal: AbortSignal): Promise<Report> {
  const times = timesOf(range, at);
  const query = { ...filter, since: new Date(times[0]! * 1000).toISOString() };
  const spend = (groups: string[], latency: boolean) => get<Page<Spend>>(path('gateway', 'spend'), { ...query, by: groups, latency }, signal);
  const [parts, statuses, groups, both] = await Promise.all([
    spend([range.by], true),
    spend(['status'], true), // the latency of all that succeeded
    spend([by.id], true),
    spend([range.by, by.id], false),
  ]);
  const index = new Map(times.map((t, i) => [t, i]));
  const when = (s: Spend) => index.get(Date.parse(s.group[range.by]!) / 1000);
  const report: Report = { times, step: range.step, parts: times.map(() => none()), total: none(), groups: [], byGroup: new Map() };
  for (const s of parts.items) {
    const i = when(s);
    if (i !== undefined) report.parts[i] = sumOf('', s);
  }
  for (const s of statuses.items) add(report.total, sumOf('', s));
  const good = statuses.items.find((s) => s.latency)?.latency;
  report.total.p50 = good?.p50_ms;
  report.total.p95 = good?.p95_ms;
  report.groups = most(groups.items.map((s) => sumOf(s.group[by.id] ?? '', s)));
  for (const s of both.items) {
    const i = when(s);
    if (i !== undefined) partsOf(report, s.group[by.id] ?? '')[i] = sumOf('', s);
  }
  return report;
}

function partsOf(r: Report, group: string): Sum[] {
  let all = r.byGroup.get(group);
  if (!all) r.byGroup.set(group, (all = r.times.map(() => none())));
  return all;
}

const sumOf = (name: string, s: Spend): Sum => ({
  name,
  requests: s.requests,
  failed: s.failed,
  refused: s.refused,
  cancelled: s.cancelled,
  unpriced: s.unpriced,
  input: s.tokens.input,
  output: s.tokens.output,
  cost: Number(s.cost),
  p50: s.latency?.p50_ms,
  p95: s.latency?.p95_ms,
});

function add(to: Sum, s: Sum): void {
  to.requests += s.requests;
  to.failed += s.failed;
  to.refused += s.refused;
  to.cancelled += s.cancelled;
  to.unpriced += s.unpriced;
  to.input += s.input;
  to.output += s.output;
  to.cost += s.cost;
}

/** groupsOf are those that a request belongs to. */
function groupsOf(r: ModelCall, by: Dimension): string[] {
  switch (by.id) {
    case 'model':
      return [r.served || r.model];
    case 'provider':
      return [r.provider ?? ''];
    case 'key':
      return [r.key_id];
    case 'user':
      return [r.user ?? ''];
    case 'project':
      return [r.project_id];
    case 'tag':
      return r.tags?.length ? r.tags : [''];
  }
}

/** addUp makes a report of requests. */
function addUp(range: Range, by: Dimension, items: ModelCall[], at: number): Report {
  const times = timesOf(range, at);
  const report: Report = { times, step: range.step, parts: times.map(() => none()), total: none(), groups: [], byGroup: new Map() };
  const groups = new Map<string, { sum: Sum; took: number[] }>();
  const took: number[][] = times.map(() => []);
  const all: number[] = [];
  for (const r of items) {
    const i = Math.floor((Date.parse(r.created_at) / 1000 - times[0]!) / range.step);
    if (i < 0) continue;
    const n = Math.min(i, times.length - 1); // the daemon's clock may be ahead
    const one: Sum = {
      ...none(),
      requests: 1,
      failed: r.status === 'failed' ? 1 : 0,
      refused: r.status === 'refused' ? 1 : 0,
      cancelled: r.status === 'cancelled' ? 1 : 0,
      unpriced: r.cost === null ? 1 : 0,
      input: r.tokens.input,
      output: r.tokens.output,
      cost: Number(r.cost ?? 0),
    };
    add(report.parts[n]!, one);
    add(report.total, one);
    const good = r.status === 'succeeded';
    if (good) {
      took[n]!.push(r.latency_ms);
      all.push(r.latency_ms);
    }
    for (const name of groupsOf(r, by)) {
      let g = groups.get(name);
      if (!g) groups.set(name, (g = { sum: none(name), took: [] }));
      add(g.sum, one);
      if (good) g.took.push(r.latency_ms);
      add(partsOf(report, name)[n]!, one);
    }
  }
  report.parts.forEach((p, i) => Object.assign(p, quantiles(took[i]!)));
  Object.assign(report.total, quantiles(all));
  for (const g of groups.values()) Object.assign(g.sum, quantiles(g.took));
  report.groups = most([...groups.values()].map((g) => g.sum));
  return report;
}

function quantiles(ms: number[]): { p50?: number; p95?: number } {
  if (ms.length === 0) return {};
  ms.sort((a, b) => a - b);
  const at = (q: number) => ms[Math.max(0, Math.ceil(q * ms.length) - 1)];
  return { p50: at(0.5), p95: at(0.95) };
}
