// What changes by itself: a clock, streams that are taken up again, and the list of sandboxes.
import { computed, signal } from '@preact/signals';
import { useEffect, useState } from 'preact/hooks';
import { ApiError, get, lines, path, type Options, type Page, type Query } from './api';
import { whileSeen } from './seen';
import type { Change, Sandbox } from './types';

/** now is the time, in ms, every second. */
export const now = signal(Date.now());
window.setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);

const broken = signal<ReadonlySet<object>>(new Set());

/** connected is false while what is shown may be old. */
export const connected = computed(() => broken.value.size === 0);

/** setBroken says whether one of the streams that pages follow is. */
function setBroken(stream: object, is: boolean): void {
  if (broken.peek().has(stream) === is) return;
  const next = new Set(broken.peek());
  if (is) next.add(stream);
  else next.delete(stream);
  broken.value = next;
}

/** pause waits for so many ms, or until signal. */
export const pause = (ms: number, signal: AbortSignal) =>
  new Promise<void>((done) => {
    const end = () => {
      window.clearTimeout(timer);
      signal.removeEventListener('abort', end);
      done();
    };
    const timer = window.setTimeout(end, ms);
    signal.addEventListener('abort', end);
  });

/** patience is how long to wait before the nth try in a row, in ms, not the same for everybody. */
export const patience = (n: number) => Math.min(15_000, 400 * 2 ** n) * (0.7 + Math.random() * 0.6);

/** final are errors that trying again does not mend. */
const final = new Set(['unauthenticated', 'permission_denied', 'not_found', 'invalid', 'sandbox_stopped', 'not_supported']);

/**
 * keepReading reads a stream of lines until stop, and takes it up again when it breaks: options is asked
 * each time, for where to go on. It rests while nobody looks at the page, returns when the stream ends by itself, and throws what
 * cannot be mended.
 */
export async function keepReading<T>(
  to: string,
  stop: AbortSignal,
  options: () => Options & { onLine: (line: T) => void },
  onBreak?: (e: ApiError) => void,
): Promise<void> {
  let failed = 0;
  while (!stop.aborted) {
    try {
      await whileSeen(stop, (signal) => {
        const o = options();
        return lines<T>(to, {
          ...o,
          signal,
          onLine: (line) => {
            failed = 0;
            o.onLine(line);
          },
        });
      });
      return;
    } catch (e) {
      if (stop.aborted) return;
      if (!(e instanceof ApiError) || final.has(e.code)) throw e;
      onBreak?.(e);
      await pause(patience(failed++), stop);
    }
  }
}

/** Watcher is told how a list changes. */
export interface Watcher<T> {
  /** The list has to be read: nothing is known of it, or something was missed. What changes from now on comes by onChanges. */
  onReady: () => void;
  onChanges: (changes: T[]) => void;
  /** the changes come, or not for now */
  onLive?: (live: boolean) => void;
}

/**
 * watch follows how a list changes until stop, as docs/api.md has it: a line "ready", changes, and "missed" where some were left
 * out. It takes that up again whenever it breaks or ends, and throws what cannot be mended.
 */
export async function watch<T extends { type: string }>(to: string, query: Query, stop: AbortSignal, on: Watcher<T>): Promise<void> {
  const me = {};
  let pending: T[] = [];
  let timer = 0;
  const live = (is: boolean) => {
    setBroken(me, !is);
    on.onLive?.(is);
  };
  const flush = () => {
    window.clearTimeout(timer);
    timer = 0;
    const all = pending;
    pending = [];
    if (all.length && !stop.aborted) on.onChanges(all);
  };
  try {
    while (!stop.aborted) {
      await keepReading<T>(
        to,
        stop,
        () => ({
          query,
          onLine: (line) => {
            if (line.type === 'ready' || line.type === 'missed') {
              flush(); // what came before is older than what will be read
              live(true);
              on.onReady();
              return;
            }
            pending.push(line);
            timer ||= window.setTimeout(flush, 50);
          },
        }),
        () => live(false),
      );
      if (stop.aborted) return;
      live(false); // the daemon has ended it
      await pause(1000, stop);
    }
  } finally {
    window.clearTimeout(timer);
    setBroken(me, false);
  }
}

/** Loaded is the state of what was asked for. */
export interface Loaded<T> {
  value?: T;
  error?: unknown;
  reload: () => void;
}

/** useGet asks for something when to or query changes, again every `every` ms while the page is seen, and on reload. */
export function useGet<T>(to: string, query?: Query, every = 0): Loaded<T> {
  const [state, set] = useState<{ value?: T; error?: unknown; of?: string }>({});
  const [round, setRound] = useState(0);
  const key = to + JSON.stringify(query ?? {});
  useEffect(() => {
    if (!to) return;
    const stop = new AbortController();
    let timer = 0;
    const load = async () => {
      if (!document.hidden || !every) {
        try {
          const value = await get<T>(to, query, stop.signal);
          if (!stop.signal.aborted) set({ value, of: key });
        } catch (error) {
          if (!stop.signal.aborted) set((s) => ({ value: s.of === key ? s.value : undefined, error, of: key }));
        }
      }
      if (every && !stop.signal.aborted) timer = window.setTimeout(load, every);
    };
    void load();
    return () => {
      stop.abort();
      window.clearTimeout(timer);
    };
  }, [key, every, round]);
  return { value: state.of === key ? state.value : undefined, error: state.error, reload: () => setRound((n) => n + 1) };
}

const all = signal<ReadonlyMap<string, Sandbox>>(new Map());

/** sandboxes are those of the team, or of the token's project, newest first. */
export const sandboxes = computed(() => [...all.value.values()].sort((a, b) => (a.created_at < b.created_at ? 1 : a.created_at > b.created_at ? -1 : a.id < b.id ? 1 : -1)));

/** listed is true once sandboxes are all; listError says why they are not. */
export const listed = signal(false);
export const listError = signal<unknown>(undefined);

let readers = 0;
let stopping: AbortController | undefined;

/** useSandboxes keeps sandboxes up to date while a page shows them. */
export function useSandboxes(): void {
  useEffect(() => {
    if (readers++ === 0) follow((stopping = new AbortController()).signal);
    return () => {
      if (--readers === 0) stopping?.abort();
    };
  }, []);
}

/**
 * follow reads the changes of the list. Each time they begin anew, or something was missed, it reads the list: what has
 * changed meanwhile is newer than what the list says.
 */
async function follow(stop: AbortSignal): Promise<void> {
  let fresh = new Set<string>(); // changed since the list is being read
  let reading: AbortController | undefined;

  const readList = async () => {
    reading?.abort();
    const mine = (reading = new AbortController());
    stop.addEventListener('abort', () => mine.abort());
    fresh = new Set();
    const seen = new Set<string>();
    let cursor: string | undefined;
    for (;;) {
      const page = await get<Page<Sandbox>>(path('sandboxes'), { project: '*', limit: 200, cursor }, mine.signal);
      if (mine.signal.aborted) return;
      const next = new Map(all.value);
      for (const s of page.items) {
        seen.add(s.id);
        if (!fresh.has(s.id)) next.set(s.id, s);
      }
      all.value = next;
      if (!page.next) break;
      cursor = page.next;
    }
    const next = new Map(all.value);
    for (const id of next.keys()) {
      if (!seen.has(id) && !fresh.has(id)) next.delete(id);
    }
    all.value = next;
    listed.value = true;
    listError.value = undefined;
  };

  const read = () => {
    readList().catch(async (e: unknown) => {
      if (stop.aborted || reading?.signal.aborted) return;
      listError.value = e;
      await pause(3000, stop);
      if (!stop.aborted) read();
    });
  };

  try {
    await watch<Change>(path('sandboxes'), { follow: true, project: '*' }, stop, {
      onReady: read,
      onChanges: (changes) => {
        const next = new Map(all.value);
        for (const c of changes) {
          if (c.id) fresh.add(c.id);
          if (c.type === 'changed' && c.sandbox) next.set(c.sandbox.id, c.sandbox);
          else if (c.type === 'deleted' && c.id) next.delete(c.id);
        }
        all.value = next;
      },
    });
  } catch (e) {
    if (!stop.aborted) listError.value = e;
  }
}

/** useSandbox is one sandbox, by id or name: from the list if that has it, else asked for. */
export function useSandbox(ref: string): { sandbox?: Sandbox; error?: unknown } {
  useSandboxes();
  const known = all.value.get(ref) ?? sandboxes.value.find((s) => s.name === ref);
  const asked = useGet<Sandbox>(known || listed.value ? '' : path('sandboxes', ref));
  if (known) return { sandbox: known };
  if (listed.value) return { error: new ApiError('not_found', `There is no sandbox "${ref}"`, 'It may have been deleted.') };
  return { sandbox: asked.value, error: asked.error ?? listError.value };
}
