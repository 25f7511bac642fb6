// Streams of a sandbox that end with its session.
import { ApiError, type Query } from '../../api';
import { keepReading, pause } from '../../live';

interface Reader<T> {
  /** what is asked for; without, the stream that follows */
  query?: Query;
  onLine: (line: T) => void;
  onError?: (e: ApiError) => void;
}

/** follow reads a stream, anew whenever it breaks or ends, until the function is called that it returns. */
export function follow<T>(to: string, { query = { follow: true }, onLine, onError }: Reader<T>): () => void {
  const stop = new AbortController();
  const read = async () => {
    while (!stop.signal.aborted) {
      let rest = 1000; // the daemon has ended it
      try {
        await keepReading<T>(to, stop.signal, () => ({ query, onLine: (l) => !stop.signal.aborted && onLine(l) }));
      } catch (e) {
        if (e instanceof ApiError && !stop.signal.aborted) onError?.(e);
        rest = 5000;
      }
      await pause(rest, stop.signal);
    }
  };
  void read();
  return () => stop.abort();
}
