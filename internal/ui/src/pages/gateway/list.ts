// Lists that are short enough to be whole.
import { useEffect, useState } from 'preact/hooks';
import { get, type Page } from '../../api';

/** longest is how many items of a list are asked for. */
const longest = 5000;

/** useAll is a whole list, asked for again every `every` ms while the page is seen, and on reload; cut says that it is longer. */
export function useAll<T>(to: string, every = 0): { items?: T[]; cut: boolean; error?: unknown; reload: () => void } {
  const [state, set] = useState<{ of: string; items?: T[]; cut: boolean; error?: unknown }>({ of: '', cut: false });
  const [round, again] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const read = async () => {
      if (!document.hidden || !state.items) {
        try {
          const items: T[] = [];
          let cursor = '';
          do {
            const page = await get<Page<T>>(to, { limit: 200, cursor }, stop.signal);
            items.push(...page.items);
            cursor = page.next ?? '';
          } while (cursor && items.length < longest);
          set({ of: to, items, cut: cursor !== '' });
        } catch (error) {
          if (!stop.signal.aborted) set((s) => ({ of: to, items: s.of === to ? s.items : undefined, cut: s.cut, error }));
        }
      }
      if (every && !stop.signal.aborted) timer = window.setTimeout(read, every);
    };
    void read();
    return () => {
      stop.abort();
      window.clearTimeout(timer);
    };
  }, [to, every, round]);
  const mine = state.of === to;
  return { items: mine ? state.items : undefined, cut: mine && state.cut, error: mine ? state.error : undefined, reload: () => again((n) => n + 1) };
}
