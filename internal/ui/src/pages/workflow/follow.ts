// One run as it goes: its log, which comes by itself, and the timeline made of it.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, get, path } from '../../api';
import { keepReading, watch } from '../../live';
import { changes, type Change } from './list';
import { ended, type Event, type Payload, type Run, type Timeline } from './types';

/** mostPayload bounds what is kept of the values of a log, in characters about. Others are asked for when they are looked at. */
const mostPayload = 48 << 20;
/** mostEvents is how many events are kept. */
const mostEvents = 100_000;
/** calm is the least time between two questions for the timeline, in ms. */
const calm = 300;

export interface Followed {
  timeline?: Timeline;
  events: readonly Event[];
  /** why nothing is shown, or why it may be old */
  error?: unknown;
  /** the log is longer than what is kept of it */
  cut: boolean;
  /** what changes of the run comes by itself */
  live: boolean;
  reload: () => void;
}

/** weight is about how many characters a value has; it stops counting at most. */
export function weight(v: unknown, most: number): number {
  if (typeof v === 'string') return v.length + 8;
  if (v === null || typeof v !== 'object') return 8;
  let n = 16;
  for (const k in v as Record<string, unknown>) {
    n += k.length + weight((v as Record<string, unknown>)[k], most - n);
    if (n > most) return n;
  }
  return n;
}

interface State {
  timeline?: Timeline;
  events: Event[];
  error?: unknown;
  cut: boolean;
  live: boolean;
}

/** useFollow follows a run until it has ended. */
export function useFollow(id: string): Followed {
  const [, draw] = useState(0);
  const state = useRef<State>({ events: [], cut: false, live: true });
  const ask = useRef(() => {});

  useEffect(() => {
    const stop = new AbortController();
    const s: State = (state.current = { events: [], cut: false, live: true });
    let frame = 0;
    let timer = 0;
    let asking = false;
    let again = false;
    let changing: AbortController | undefined; // of what follows the run's changes
    let room = mostPayload;
    const redraw = () => {
      frame ||= window.setTimeout(() => {
        frame = 0;
        // A new array, so that what depends on it is computed anew.
        s.events = s.events.slice();
        draw((n) => n + 1);
      }, 50);
    };
    // The timeline is asked for when there is something new, the less often the longer that takes.
    const load = async () => {
      if (asking) {
        again = true;
        return;
      }
      asking = true;
      again = false;
      window.clearTimeout(timer);
      timer = 0;
      const began = performance.now();
      try {
        s.timeline = await get<Timeline>(path('workflows', 'runs', id, 'timeline'), undefined, stop.signal);
        s.error = undefined;
      } catch (e) {
        if (e instanceof ApiError) s.error = e;
      }
      asking = false;
      if (stop.signal.aborted) return;
      redraw();
      const rest = Math.max(calm, 3 * (performance.now() - began));
      if (again) timer = window.setTimeout(load, rest);
      if (s.timeline && ended(s.timeline.run.status)) changing?.abort();
      else if (s.timeline && !changing) followRun(s.timeline.run);
    };
    // Not all that changes of a run is in its log. Its changes are those of the runs that were created when it was.
    const followRun = (r: Run) => {
      changing = new AbortController();
      const at = Date.parse(r.created_at);
      watch<Change>(changes, { since: new Date(at).toISOString(), until: new Date(at + 1).toISOString() }, changing.signal, {
        onReady: () => soon(),
        onChanges: (all) => all.some((c) => c.id === id) && soon(),
        onLive: (is) => {
          s.live = is;
          redraw();
        },
      }).catch(() => (s.live = false)); // the log says why
    };
    const soon = () => {
      again = true;
      if (!asking) timer ||= window.setTimeout(load, calm); // not later and later, however fast events come
    };
    ask.current = () => void load();

    void load();
    keepReading<Event>(path('workflows', 'runs', id, 'events'), stop.signal, () => ({
      query: { follow: true, from: (s.events.at(-1)?.slot ?? 0) + 1 },
      onLine: (e) => {
        if (s.events.length >= mostEvents) {
          s.cut = true;
          return;
        }
        const size = weight(e.payload, room) + weight(e.input, room);
        if (size > room) {
          e.dropped = !!(e.payload || e.input);
          delete e.payload;
          delete e.input;
        } else room -= size;
        s.events.push(e);
        if (!s.timeline || e.slot > s.timeline.run.events) soon();
        redraw();
      },
    })).then(
      () => void load(),
      (e: unknown) => {
        if (stop.signal.aborted) return;
        s.error = e;
        redraw();
      },
    );
    return () => {
      stop.abort();
      changing?.abort();
      window.clearTimeout(timer);
      window.clearTimeout(frame);
    };
  }, [id]);
  return { ...state.current, reload: () => ask.current() };
}

/** whole is an event with its values, if those were not kept. */
export async function whole(run: string, e: Event): Promise<Event> {
  if (!e.dropped) return e;
  let found: Event = e;
  const stop = new AbortController();
  await keepReading<Event>(path('workflows', 'runs', run, 'events'), stop.signal, () => ({ query: { from: e.slot, limit: 1 }, onLine: (line) => (found = line) }));
  return found;
}

/** useWhole is an event with its values, once they are there. */
export function useWhole(run: string, e: Event | undefined): Event | undefined {
  const [full, set] = useState<Event>();
  useEffect(() => {
    set(undefined);
    if (!e?.dropped) return;
    let over = false;
    whole(run, e).then(
      (f) => !over && set(f),
      () => {},
    );
    return () => {
      over = true;
    };
  }, [run, e?.slot, e?.dropped]);
  return e?.dropped ? full : e;
}

/** What the log says of one step, hook, wait or child. */
export interface Told {
  events: Event[];
  input?: Event;
  output?: Event;
  error?: Event;
}

/** told picks what is about id from a log. */
export function told(events: readonly Event[], id: string): Told {
  const of = events.filter((e) => e.id === id && e.type !== 'run_created');
  const last = (...types: string[]) => of.findLast((e) => types.includes(e.type));
  const done = last('step_completed');
  const childEnd = last('child_ended');
  return {
    events: of,
    input: of.find((e) => e.input || (e.dropped && e.type.startsWith('step_'))),
    output: done ?? (childEnd?.code === 'completed' ? childEnd : undefined),
    error: done ? undefined : (last('step_failed', 'step_retrying') ?? (childEnd && childEnd.code !== 'completed' ? childEnd : undefined)),
  };
}

/** has reports whether there is a value. */
export const has = (p: Payload): boolean => p !== null && p !== undefined;
