// Streams rest while nobody looks at the page: browsers have six connections to one origin, for all its pages.

/** unseen is how long a page is not looked at until it follows nothing any more, in ms. */
const unseen = 2_000;

/** seen waits until somebody looks at the page, or until stop. */
function seen(stop: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const check = () => {
      if (document.hidden && !stop.aborted) return;
      document.removeEventListener('visibilitychange', check);
      stop.removeEventListener('abort', check);
      done();
    };
    document.addEventListener('visibilitychange', check);
    stop.addEventListener('abort', check);
    check();
  });
}

/**
 * whileSeen has a stream read while somebody looks at the page, until stop. The signal that read gets aborts when nobody does any
 * more; it is called again when somebody does.
 */
export async function whileSeen(stop: AbortSignal, read: (signal: AbortSignal) => Promise<void>): Promise<void> {
  for (;;) {
    await seen(stop);
    if (stop.aborted) return;
    const round = new AbortController();
    const end = () => round.abort();
    let timer = 0;
    const look = () => {
      window.clearTimeout(timer);
      if (document.hidden) timer = window.setTimeout(end, unseen);
    };
    document.addEventListener('visibilitychange', look);
    stop.addEventListener('abort', end);
    look();
    try {
      return await read(round.signal);
    } catch (e) {
      if (stop.aborted || !round.signal.aborted) throw e;
    } finally {
      window.clearTimeout(timer);
      document.removeEventListener('visibilitychange', look);
      stop.removeEventListener('abort', end);
    }
  }
}
