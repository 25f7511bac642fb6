// Output of programs, as it comes, as text.
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Ansi, type Run } from '../ansi';
import { ApiError } from '../api';
import { keepReading } from '../live';
import { visibleLines } from '../text';
import type { Exit, OutputLine } from '../types';
import { Badge } from './show';

interface Line {
  runs: Run[];
  stream: string;
}

/** kept is how many lines are kept of what was written. */
const kept = 20_000;
const height = 18;

function decode(l: OutputLine, decoder: TextDecoder): string {
  if (l.encoding !== 'base64') return l.data ?? '';
  return decoder.decode(Uint8Array.from(atob(l.data ?? ''), (c) => c.charCodeAt(0)), { stream: true });
}

/** Log follows the output at an address of the API. */
export function Log({ from }: { from: string }) {
  const [, draw] = useState(0);
  const [exit, setExit] = useState<Exit>();
  const [error, setError] = useState<ApiError>();
  const lines = useRef<Line[]>([]);
  const tail = useRef<Line[]>([]);
  const lost = useRef(false);
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 400 });
  const [follow, setFollow] = useState(true);

  useEffect(() => {
    const stop = new AbortController();
    const pens: Record<string, Ansi> = {};
    const decoders: Record<string, TextDecoder> = {};
    let cursor = 0;
    let waiting = 0;
    lines.current = [];
    tail.current = [];
    lost.current = false;
    setExit(undefined);
    setError(undefined);
    const redraw = () => {
      waiting ||= window.requestAnimationFrame(() => {
        waiting = 0;
        draw((n) => n + 1);
      });
    };
    const take = (l: OutputLine) => {
      if (l.type === 'truncated') {
        lost.current = true;
        cursor = l.cursor ?? cursor;
      } else if (l.type === 'exit') {
        setExit(l.exit);
      } else if (l.type === 'stdout' || l.type === 'stderr') {
        const size = l.encoding === 'base64' ? atob(l.data ?? '').length : new TextEncoder().encode(l.data).length;
        cursor = (l.cursor ?? 0) + size;
        const pen = (pens[l.type] ??= new Ansi());
        const stream = l.type;
        for (const runs of pen.feed(decode(l, (decoders[l.type] ??= new TextDecoder())))) lines.current.push({ runs, stream });
        tail.current = Object.entries(pens)
          .map(([stream, p]) => ({ runs: [...p.rest()], stream }))
          .filter((t) => t.runs.length > 0);
        if (lines.current.length > kept) {
          lines.current = lines.current.slice(-kept * 0.9);
          lost.current = true;
        }
      }
      redraw();
    };
    keepReading<OutputLine>(from, stop.signal, () => ({ query: { follow: true, cursor }, onLine: take })).catch((e: unknown) => {
      if (e instanceof ApiError) setError(e);
    });
    return () => {
      stop.abort();
      if (waiting) window.cancelAnimationFrame(waiting);
    };
  }, [from]);

  const all = tail.current.length ? [...lines.current, ...tail.current] : lines.current;
  useLayoutEffect(() => {
    const b = box.current!;
    if (follow) b.scrollTop = b.scrollHeight;
    setView((v) => (v.height === b.clientHeight && v.top === b.scrollTop ? v : { top: b.scrollTop, height: b.clientHeight }));
  });

  const first = Math.max(0, Math.floor(view.top / height) - 20);
  const last = Math.min(all.length, Math.ceil((view.top + view.height) / height) + 20);
  return (
    <div class="log-view">
      <div
        class="log"
        ref={box}
        tabIndex={0}
        role="log"
        aria-label="Output"
        onScroll={(e) => {
          const b = e.currentTarget;
          setFollow(b.scrollTop + b.clientHeight >= b.scrollHeight - height);
          setView({ top: b.scrollTop, height: b.clientHeight });
        }}
      >
        <div style={{ height: `${all.length * height}px`, position: 'relative' }}>
          <div style={{ transform: `translateY(${first * height}px)` }}>
            {all.slice(first, last).map((l, i) => (
              <div key={first + i} class={`log-line ${l.stream}`}>
                {l.runs.map((r, j) => (
                  <span key={j} class={r.style || undefined}>
                    {visibleLines(r.text)}
                  </span>
                ))}
              </div>
            ))}
          </div>
        </div>
      </div>
      <div class="log-foot">
        <span class="num dim">
          {all.length.toLocaleString()} {all.length === 1 ? 'line' : 'lines'}
          {lost.current && ', the oldest are gone'}
        </span>
        {error ? <span class="bad">{error.message}</span> : exit ? <ExitBadge exit={exit} /> : <span class="dim live">live</span>}
        {!follow && (
          <button class="ghost" onClick={() => setFollow(true)}>
            To the end
          </button>
        )}
      </div>
    </div>
  );
}

export function ExitBadge({ exit }: { exit?: Exit }) {
  if (!exit) return <Badge status="running" />;
  if (exit.timed_out) return <Badge status="failed">timed out</Badge>;
  if (exit.signal) return <Badge status="failed">signal {exit.signal}</Badge>;
  return <Badge status={exit.code === 0 ? 'completed' : 'failed'}>exit {exit.code}</Badge>;
}
