// Files on their way, with how far they are.
import { useRef, useState } from 'preact/hooks';
import { ApiError } from '../../api';
import { Name } from '../../components/show';
import { complain } from '../../components/toast';
import { bytes } from '../../text';

export interface Transfer {
  id: number;
  name: string;
  verb: 'Uploading' | 'Downloading';
  done: number;
  /** undefined if nobody knows */
  whole?: number;
  stop: AbortController;
}

export type Run = (onProgress: (done: number, whole?: number) => void, signal: AbortSignal) => Promise<unknown>;

/** useTransfers is what is under way. add begins something and returns whether it came to its end; of failures it tells. */
export function useTransfers(): { all: Transfer[]; add: (verb: Transfer['verb'], name: string, whole: number | undefined, run: Run) => Promise<boolean> } {
  const [all, set] = useState<Transfer[]>([]);
  const next = useRef(0);
  const add = async (verb: Transfer['verb'], name: string, whole: number | undefined, run: Run) => {
    const t: Transfer = { id: next.current++, name, verb, done: 0, whole, stop: new AbortController() };
    let drawn = 0;
    set((old) => [...old, t]);
    try {
      await run((done, whole = t.whole) => {
        if (Date.now() - drawn < 100) return;
        drawn = Date.now();
        set((old) => old.map((o) => (o.id === t.id ? { ...o, done, whole } : o)));
      }, t.stop.signal);
      return true;
    } catch (e) {
      if (!(e instanceof ApiError && e.code === 'canceled') && !t.stop.signal.aborted) complain(e);
      return false;
    } finally {
      set((old) => old.filter((o) => o.id !== t.id));
    }
  };
  return { all, add };
}

export function Transfers({ of: all }: { of: Transfer[] }) {
  if (all.length === 0) return null;
  return (
    <ul class="transfers" aria-label="Transfers">
      {all.map((t) => (
        <li key={t.id}>
          <span class="dim">{t.verb}</span>
          <Name class="grow strong">{t.name}</Name>
          <span class="num dim">
            {bytes(t.done)}
            {t.whole !== undefined && ` of ${bytes(t.whole)}`}
          </span>
          <progress aria-label={`${t.verb} ${t.name}`} value={t.whole ? t.done : undefined} max={t.whole || undefined} />
          <button class="ghost tiny" onClick={() => t.stop.abort()}>
            Give up
          </button>
        </li>
      ))}
    </ul>
  );
}
