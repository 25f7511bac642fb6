// What calls change: budgets, the last use of a key, the health of a provider.
import { useEffect } from 'preact/hooks';
import { path } from '../../api';
import { follow } from '../../events';

/** pace is how often something is read again at most, seldom how often at least while the page is seen: in ms. */
const pace = 1500;
const seldom = 60_000;

/** unseen is how long a page is not looked at until it follows nothing, in ms. */
const unseen = 20_000;

/** useAfterCalls reads something again after calls of models have ended, as they do. */
export function useAfterCalls(reload: () => void): void {
  useEffect(() => {
    let stop: AbortController | undefined;
    let timer = 0;
    let hiding = 0;
    const soon = () => {
      timer ||= window.setTimeout(() => {
        timer = 0;
        if (!document.hidden) reload();
      }, pace);
    };
    const begin = () => {
      if (stop || document.hidden) return;
      const mine = (stop = new AbortController());
      // Where nothing can be followed there is the clock.
      follow<unknown>(path('gateway', 'requests', 'events'), { signal: mine.signal, onOpen: (last) => last && soon(), onEvent: soon }).catch(() => {});
    };
    const onSeen = () => {
      window.clearTimeout(hiding);
      if (!document.hidden) {
        begin();
        return soon();
      }
      hiding = window.setTimeout(() => {
        stop?.abort();
        stop = undefined;
      }, unseen);
    };
    const clock = window.setInterval(soon, seldom); // somebody else changes something
    document.addEventListener('visibilitychange', onSeen);
    begin();
    return () => {
      stop?.abort();
      window.clearTimeout(timer);
      window.clearTimeout(hiding);
      window.clearInterval(clock);
      document.removeEventListener('visibilitychange', onSeen);
    };
  }, []);
}
