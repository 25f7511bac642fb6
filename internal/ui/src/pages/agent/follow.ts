// A run of an agent as it goes on: its stream and its log.
import { useEffect, useState } from 'preact/hooks';
import { path } from '../../api';
import { keepReading } from '../../live';
import { Conversation, fromAnswer } from './conversation';
import { newLog, note, type Log } from './log';
import type { Chunk, Event, Payload } from './types';

export interface Followed {
  talk: Conversation;
  log: Log;
  /** there is a first impression of both */
  ready: boolean;
  error?: unknown;
  /** the connection is there */
  live: boolean;
  /** the stream has nothing, so what is shown is from the log */
  quiet: boolean;
  /** is another one each time something has come */
  version: number;
}

/** streamName is agent.StreamName. */
const streamName = 'ui';

/** useRunOf follows a run's stream and its log, from their beginnings. */
export function useRunOf(id: string, project: string): Followed {
  const [state, set] = useState<{ of: string; f?: Followed }>({ of: '' });
  const key = `${id} ${project}`;
  useEffect(() => {
    const stop = new AbortController();
    const talk = new Conversation();
    const log = newLog();
    const hooks = new Map<string, string>();
    let error: unknown;
    let live = true;
    let waiting = 0;
    let version = 0;
    let streamed = false; // the stream has something
    let recorded = false; // the log has
    const began = Date.now();
    const draw = () => {
      waiting = 0;
      if (stop.signal.aborted) return;
      const quiet = !streamed && [...log.calls.values()].some((c) => c.answer) && (!!log.status || Date.now() - began > 1500);
      const shown = quiet ? fromLog(log) : talk;
      set({ of: key, f: { talk: shown, log, ready: recorded, error, live, quiet, version: ++version } });
    };
    // In a page that is not seen there are no frames.
    const soon = () => void (waiting ||= document.hidden ? window.setTimeout(draw, 300) : window.requestAnimationFrame(draw));
    const broke = () => {
      live = false;
      soon();
    };
    const fail = (e: unknown) => {
      error = e;
      draw();
    };
    let next = 0;
    keepReading<{ index: number; data: Payload | null }>(
      path('workflows', 'runs', id, 'stream'),
      stop.signal,
      () => ({
        query: { name: streamName, follow: true, from: next, project },
        onOpen: () => (live = true),
        onLine: (line) => {
          next = line.index + 1;
          streamed = true;
          talk.take(line.data?.json as Chunk | undefined);
          soon();
        },
      }),
      broke,
    ).then(soon, fail);
    let slot = 1;
    keepReading<Event>(
      path('workflows', 'runs', id, 'events'),
      stop.signal,
      () => ({
        query: { follow: true, from: slot, project },
        onLine: (e) => {
          slot = e.slot + 1;
          recorded = true;
          note(log, e, hooks);
          soon();
        },
      }),
      broke,
    ).then(soon, fail);
    return () => {
      stop.abort();
      window.cancelAnimationFrame(waiting);
      window.clearTimeout(waiting);
    };
  }, [key]);
  return state.of === key && state.f ? state.f : { talk: empty, log: nothing, ready: false, live: true, quiet: false, version: 0 };
}

const empty = new Conversation();
const nothing = newLog();

function fromLog(log: Log): Conversation {
  const c = new Conversation();
  c.messages = [{ id: '', steps: [...log.calls.values()].filter((s) => s.answer).map((s) => fromAnswer(s.id, s.answer!)) }];
  return c;
}
