// What a run did and when: a bar for the run, and one for each step, sleep, hook and child.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { isTyping } from '../../components/table';
import { Name } from '../../components/show';
import { place, setQuery } from '../../router';
import { duration, functionOf, visible } from '../../text';
import { moment } from './events';
import { pan, ticks, zoom, type Range } from './scale';
import { ended, type Event, type Span, type Timeline } from './types';
import { RunPanel, SpanPanel } from './span';
import { labelOf } from './waits';

/** runRow is the id of the row of the run itself. */
const runRow = '$run';
const rowHeight = 32;
const narrowRow = 46;
const beyond = 10;

const narrow = window.matchMedia('(max-width: 720px)');

const ms = (t: string | undefined): number | undefined => (t ? Date.parse(t) : undefined);

/** A piece of a row: a bar, a line, or a point. */
interface Piece {
  from: number;
  to: number;
  class: string;
  title: string;
}

const tones: Record<string, string> = { completed: 'good', failed: 'bad', cancelled: 'idle', running: 'busy', pending: 'wait', open: 'busy', abandoned: 'idle', disposed: 'idle', conflict: 'bad', marked: 'idle' };

/** piecesOf are what is drawn of a span. */
function piecesOf(s: Span, now: number): Piece[] {
  const from = Date.parse(s.begins_at);
  const to = ms(s.ends_at) ?? now;
  const tone = tones[s.status] ?? 'idle';
  if (s.kind === 'version') return [{ from, to: from, class: 'point', title: `version ${s.version ?? 0}` }];
  if (s.kind === 'wait') {
    const until = ms(s.until) ?? to;
    const out: Piece[] = [{ from, to: Math.max(from, Math.min(to, Math.max(until, to))), class: `sleep ${s.status === 'open' ? 'busy' : 'idle'}`, title: `slept ${duration(to - from)}` }];
    if (s.status === 'open' && until > now) out.push({ from: now, to: until, class: 'ahead', title: `until ${moment(s.until!, now)}` });
    return out;
  }
  if (s.kind === 'hook') {
    return [
      { from, to, class: `hook ${s.status === 'open' ? 'busy' : tone}`, title: s.status === 'open' ? 'waits' : s.status },
      ...(s.received ?? []).slice(0, 200).map((r) => ({ from: Date.parse(r.at), to: Date.parse(r.at), class: 'point good', title: 'received a value' })),
    ];
  }
  const tries = s.attempts ?? [];
  if (s.kind === 'child' || tries.length === 0) return [{ from, to, class: `bar ${s.kind === 'child' ? 'child ' : ''}${tone}`, title: s.status }];
  const out: Piece[] = [];
  const last = tries.at(-1)!;
  const lastEnd = ms(last.ended_at) ?? now;
  out.push({ from, to: Math.max(lastEnd, from), class: 'gap', title: 'from the first attempt to the last' });
  for (const a of tries.slice(0, 200)) {
    const begin = Date.parse(a.started_at);
    const failed = a.status === 'failed' && s.status !== 'failed';
    out.push({ from: begin, to: ms(a.ended_at) ?? now, class: `bar ${failed ? 'warn' : (tones[a.status] ?? 'idle')}`, title: `attempt ${a.number}: ${a.status}, ${duration((ms(a.ended_at) ?? now) - begin)}` });
  }
  const until = ms(s.until);
  if (s.status === 'pending' && until && until > lastEnd) out.push({ from: lastEnd, to: until, class: 'ahead', title: `tried again at ${moment(s.until!, now)}` });
  return out;
}

/** The last moment a row is about, as far as it is known. */
const endOf = (s: Span, now: number): number => Math.max(ms(s.ends_at) ?? now, s.status === 'open' || s.status === 'pending' ? (ms(s.until) ?? 0) : 0);

const tried = (s: Span): number => s.attempts?.at(-1)?.number ?? 0;

/** tookOf is how long a span took, in ms. */
export const tookOf = (s: Span, now: number): number => Math.max(0, (ms(s.ends_at) ?? now) - Date.parse(s.begins_at));

export function Trace({ timeline: t, events }: { timeline: Timeline; events: readonly Event[] }) {
  const over = ended(t.run.status);
  const { query } = place.value;
  const view = query.get('view') ?? '';
  const text = (query.get('q') ?? '').trim().toLowerCase();

  // A clock that never is behind what has happened, whatever this machine's says.
  const latest = useMemo(() => Math.max(Date.parse(t.run.created_at), ms(t.run.completed_at) ?? 0, ...t.marks.slice(-1).map((m) => Date.parse(m.at)), ...t.spans.slice(-50).map((s) => ms(s.ends_at) ?? Date.parse(s.begins_at))), [t]);
  const [clock, setClock] = useState(Date.now());
  useEffect(() => {
    if (over) return;
    const timer = window.setInterval(() => !document.hidden && setClock(Date.now()), 250);
    return () => window.clearInterval(timer);
  }, [over]);
  const begin = Date.parse(t.run.created_at);
  const now = over ? latest : Math.max(clock, latest);
  const stop = over ? (ms(t.run.completed_at) ?? latest) : now;

  // What is asleep for days would leave no room for what has happened: what lies ahead is cut off.
  const all: Range = useMemo(() => {
    const done = t.spans.reduce((n, s) => Math.max(n, s.ends_at ? Date.parse(s.ends_at) : 0), stop);
    const ahead = over ? done : t.spans.reduce((n, s) => Math.max(n, endOf(s, now)), done);
    const width = Math.max(20, done - begin);
    return { from: begin, to: begin + Math.max(width, Math.min(ahead - begin, width * 1.6)) * 1.02 };
  }, [t, over, stop]);

  const [free, setFree] = useState<Range | undefined>(() => {
    const m = /^(-?\d+(?:\.\d+)?)_(-?\d+(?:\.\d+)?)$/.exec(query.get('zoom') ?? '');
    return m && Number(m[2]) > Number(m[1]) ? { from: begin + Number(m[1]), to: begin + Number(m[2]) } : undefined;
  });
  const [follow, setFollow] = useState(true);
  // Whoever has zoomed in follows what happens by the end of what is seen.
  const range: Range = !free ? all : follow && !over ? { from: all.to - (free.to - free.from), to: all.to } : free;
  const change = (r: Range | undefined, following = false) => {
    setFree(r);
    setFollow(r ? following : true);
  };
  useEffect(() => {
    const timer = window.setTimeout(() => setQuery({ zoom: free && !(follow && !over) ? `${(free.from - begin).toFixed(1)}_${(free.to - begin).toFixed(1)}` : '' }), 300);
    return () => window.clearTimeout(timer);
  }, [free, follow, over]);

  const rows = useMemo(() => (text ? t.spans.filter((s) => `${s.name ?? ''} ${s.id} ${s.kind} ${s.status} ${s.code ?? ''} ${s.token ?? ''} ${s.run ?? ''}`.toLowerCase().includes(text)) : t.spans), [t, text]);
  const ids = useMemo(() => [runRow, ...rows.map((s) => s.id)], [rows]);

  const box = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState({ top: 0, height: 600, width: 800 });
  const [cursor, setCursor] = useState(-1);
  const atEnd = useRef(true);
  const [small, setSmall] = useState(narrow.matches);
  const height = small ? narrowRow : rowHeight;
  useLayoutEffect(() => {
    const b = box.current!;
    const measure = () => setSeen({ top: b.scrollTop, height: b.clientHeight, width: b.clientWidth });
    const observer = new ResizeObserver(measure);
    observer.observe(b);
    measure();
    const onNarrow = () => setSmall(narrow.matches);
    narrow.addEventListener('change', onNarrow);
    return () => {
      observer.disconnect();
      narrow.removeEventListener('change', onNarrow);
    };
  }, []);
  useLayoutEffect(() => {
    const b = box.current!;
    if (!over && follow && atEnd.current && rows.length * height > b.clientHeight) b.scrollTop = b.scrollHeight;
  }, [rows.length]);

  const open = (id: string) => setQuery({ view: id === view ? '' : id });
  const state = useRef({ range, all, ids, cursor, view, over, follow, change, open, height });
  state.current = { range, all, ids, cursor: state.current.cursor, view, over, follow, change, open, height };

  const reveal = (n: number) => {
    const b = box.current!;
    const top = n * height;
    const head = 30;
    if (top < b.scrollTop) b.scrollTop = top;
    else if (top + height + head > b.scrollTop + b.clientHeight) b.scrollTop = top + height + head - b.clientHeight;
  };
  // A link to a span shows it.
  useEffect(() => {
    const n = ids.indexOf(view);
    if (n >= 0) {
      state.current.cursor = n;
      setCursor(n);
      reveal(n);
    }
  }, [view]);

  useEffect(() => {
    const onKey = (e: KeyboardEvent) => {
      const s = state.current;
      if (e.ctrlKey || e.metaKey || e.altKey || isTyping(e.target) || document.querySelector('dialog[open]')) return;
      if (e.target instanceof Element && e.target.closest('[role=tab]') && e.key.startsWith('Arrow')) return;
      const within = box.current?.contains(document.activeElement) || document.activeElement === document.body;
      const middle = (s.range.from + s.range.to) / 2;
      const move = e.key === 'j' || (e.key === 'ArrowDown' && within) ? 1 : e.key === 'k' || (e.key === 'ArrowUp' && within) ? -1 : 0;
      if (move) {
        s.cursor = Math.max(0, Math.min(s.ids.length - 1, s.cursor + move));
        setCursor(s.cursor);
        reveal(s.cursor);
      } else if (e.key === 'Enter' && s.ids[s.cursor] && !(document.activeElement instanceof HTMLButtonElement || document.activeElement instanceof HTMLAnchorElement)) s.open(s.ids[s.cursor]!);
      else if (e.key === 'Escape' && s.view) setQuery({ view: '' });
      else if (e.key === '+' || e.key === '=') s.change(zoom(s.range, 1 / 1.6, middle, s.all), s.follow);
      else if (e.key === '-') s.change(zoom(s.range, 1.6, middle, s.all), s.follow);
      else if (e.key === '0') s.change(undefined);
      else if (e.key === 'f') setFollow((v) => !v);
      else if (e.key === 'h' || (e.key === 'ArrowLeft' && within)) s.change(pan(s.range, -0.2, s.all));
      else if (e.key === 'l' || (e.key === 'ArrowRight' && within)) s.change(pan(s.range, 0.2, s.all));
      else return;
      e.preventDefault();
    };
    // Ctrl and the wheel, or two fingers apart, zoom; sideways moves.
    const onWheel = (e: WheelEvent) => {
      const s = state.current;
      const track = box.current!.querySelector('.trace-track')!.getBoundingClientRect();
      if (e.ctrlKey || e.metaKey) {
        const at = s.range.from + ((e.clientX - track.left) / track.width) * (s.range.to - s.range.from);
        s.change(zoom(s.range, Math.exp(Math.max(-60, Math.min(60, e.deltaY)) * 0.01), at, s.all), false);
      } else if (Math.abs(e.deltaX) > Math.abs(e.deltaY) || e.shiftKey) s.change(pan(s.range, (e.shiftKey ? e.deltaY : e.deltaX) / track.width, s.all));
      else return;
      e.preventDefault();
    };
    const b = box.current!;
    window.addEventListener('keydown', onKey);
    b.addEventListener('wheel', onWheel, { passive: false });
    return () => {
      window.removeEventListener('keydown', onKey);
      b.removeEventListener('wheel', onWheel);
    };
  }, []);

  // Dragging a row moves what is seen; dragging along the axis chooses it.
  const [mark, setMark] = useState<Range | undefined>();
  const drag = useRef<{ x: number; range: Range; width: number; left: number; axis: boolean; moved: boolean } | undefined>(undefined);
  const onDown = (e: PointerEvent) => {
    const target = e.target as Element;
    const track = target.closest('.trace-track');
    if (!track || e.button !== 0) return;
    const r = track.getBoundingClientRect();
    drag.current = { x: e.clientX, range, width: r.width, left: r.left, axis: !!target.closest('.trace-axis'), moved: false };
  };
  const timeAt = (x: number, d: NonNullable<typeof drag.current>) => d.range.from + ((x - d.left) / d.width) * (d.range.to - d.range.from);
  const onMove = (e: PointerEvent) => {
    const d = drag.current;
    if (!d || (!d.moved && Math.abs(e.clientX - d.x) < 5)) return;
    if (!d.moved) (e.currentTarget as Element).setPointerCapture(e.pointerId);
    d.moved = true;
    if (d.axis) {
      const [a, z] = [timeAt(d.x, d), timeAt(e.clientX, d)];
      setMark({ from: Math.min(a, z), to: Math.max(a, z) });
    } else change(pan(d.range, (d.x - e.clientX) / d.width, all));
  };
  const onUp = () => {
    const d = drag.current;
    if (d?.axis && mark && mark.to - mark.from > 1) change(mark);
    setMark(undefined);
    // The click that follows is none.
    if (d?.moved) window.setTimeout(() => (drag.current = undefined));
    else drag.current = undefined;
  };
  const onRow = (id: string) => !drag.current?.moved && open(id);

  const width = range.to - range.from;
  const at = (time: number) => Math.max(-1, Math.min(101, ((time - range.from) / width) * 100));
  const axis = ticks(range, begin, Math.max(2, Math.min(10, Math.floor((seen.width - (small ? 0 : 260)) / 90))));
  const first = Math.max(0, Math.floor(seen.top / height) - beyond);
  const last = Math.min(ids.length, Math.ceil((seen.top + seen.height) / height) + beyond);
  const chosen = view && view !== runRow ? t.spans.find((s) => s.id === view) : undefined;

  return (
    <div class="wf-part">
      <div class="wf-bar">
        <input data-filter type="search" aria-label="Search steps" placeholder="Search steps" value={query.get('q') ?? ''} spellcheck={false} onInput={(e) => setQuery({ q: e.currentTarget.value })} />
        <span class="dim num">
          {text ? `${rows.length.toLocaleString()} of ${t.spans.length.toLocaleString()}` : t.spans.length.toLocaleString()}
          <span class="wide"> {t.spans.length === 1 ? 'span' : 'spans'}</span>
        </span>
        <span class="grow" />
        {!over && (
          <button class="chip" aria-pressed={follow} onClick={() => setFollow(!follow)} title="Follow what happens (f)">
            <span class="live">Follow</span>
          </button>
        )}
        <button class="wf-zoom" aria-label="Zoom out" title="Zoom out (-)" onClick={() => change(zoom(range, 1.6, (range.from + range.to) / 2, all), follow)}>
          −
        </button>
        <button class="wf-zoom" aria-label="Zoom in" title="Zoom in (+)" onClick={() => change(zoom(range, 1 / 1.6, (range.from + range.to) / 2, all), follow)}>
          +
        </button>
        <button disabled={!free} title="Show all (0)" onClick={() => change(undefined)}>
          Fit
        </button>
      </div>
      <div class={`trace-split${view ? '' : ' default'}`}>
        <div
          class={`trace${small ? ' small' : ''}`}
          ref={box}
          tabIndex={0}
          role="list"
          aria-label="Timeline"
          onScroll={(e) => {
            const b = e.currentTarget;
            atEnd.current = b.scrollTop + b.clientHeight >= b.scrollHeight - height;
            setSeen((v) => ({ ...v, top: b.scrollTop, height: b.clientHeight }));
          }}
          onPointerDown={onDown}
          onPointerMove={onMove}
          onPointerUp={onUp}
          onPointerCancel={onUp}
          onDblClick={(e) => (e.target as Element).closest('.trace-track') && change(undefined)}
        >
          <div class="trace-axis" aria-hidden="true">
            <span class="trace-label dim">{duration(Math.max(0, width / 1.02))}</span>
            <span class="trace-track">
              {axis.map((x) => (
                <i key={x.at} class={`num${at(x.at) > 92 ? ' end' : ''}`} style={{ left: `${at(x.at)}%` }}>
                  {x.text}
                </i>
              ))}
              {mark && <b style={{ left: `${at(mark.from)}%`, width: `${at(mark.to) - at(mark.from)}%` }} />}
            </span>
          </div>
          <div class="trace-rows" style={{ height: `${ids.length * height}px` }}>
            <div class="trace-grid" aria-hidden="true">
              {axis.map((x) => (
                <i key={x.at} style={{ left: `${at(x.at)}%` }} />
              ))}
              {!over && now <= range.to && now >= range.from && <i class="now" style={{ left: `${at(now)}%` }} />}
            </div>
            {ids.slice(first, last).map((id, i) => {
              const n = first + i;
              const s = n === 0 ? undefined : rows[n - 1]!;
              const pieces = s ? piecesOf(s, now) : runPieces(t, now);
              const from = s ? Date.parse(s.begins_at) : begin;
              const to = s ? (ms(s.ends_at) ?? now) : stop;
              const took = s?.kind === 'version' ? '' : to > from ? duration(to - from) : '< 1 ms';
              const tone = s ? (tones[s.status] ?? 'idle') : (tones[t.run.status] ?? 'idle');
              return (
                <div
                  key={id}
                  role="listitem"
                  class={`trace-row${n === cursor ? ' cursor' : ''}${id === view ? ' selected' : ''}${s ? '' : ' whole'}`}
                  style={{ transform: `translateY(${n * height}px)`, height: `${height}px` }}
                  onClick={() => onRow(id)}
                >
                  <button
                    class="trace-label"
                    onClick={(e) => {
                      e.stopPropagation();
                      open(id);
                    }}
                  >
                    <i class={`trace-kind ${s?.kind ?? 'whole'} ${tone}`} aria-hidden="true" />
                    <Name whole={s ? s.name : t.run.workflow}>{s ? labelOf(s, t.spans) : functionOf(t.run.workflow)}</Name>
                    {s && tried(s) > 1 && <span class={`trace-tries num ${tone}`}>×{tried(s)}</span>}
                    <span class="sr">{`, ${s?.kind ?? 'run'}, ${s?.status ?? t.run.status}, ${took}`}</span>
                  </button>
                  <span class="trace-track">
                    {pieces.map((p, j) => (
                      <i
                        key={j}
                        class={`piece ${p.class}`}
                        title={visible(p.title)}
                        style={/^(point|tick)/.test(p.class) ? { left: `${at(p.from)}%` } : { left: `${at(p.from)}%`, width: `max(3px, ${at(p.to) - at(p.from)}%)` }}
                      />
                    ))}
                    <Took text={s ? took : ''} from={at(from)} to={Math.max(at(to), ...pieces.map((p) => at(p.to)))} />
                  </span>
                </div>
              );
            })}
          </div>
        </div>
        <aside class="trace-panel" aria-label="Details">
          <div class="trace-scroll">
            {chosen ? <SpanPanel key={chosen.id} timeline={t} span={chosen} events={events} now={now} /> : <RunPanel timeline={t} events={events} closable={view === runRow} />}
          </div>
        </aside>
      </div>
    </div>
  );
}

/** Took is how long something took, where there is room for it. */
function Took({ text, from, to }: { text: string; from: number; to: number }) {
  if (!text || to < 0 || from > 100) return null;
  if (to < 86) return <em style={{ left: `calc(${to}% + 8px)` }}>{text}</em>;
  if (from > 14) return <em class="before" style={{ right: `calc(${100 - from}% + 8px)` }}>{text}</em>;
  return <em class="inside" style={{ left: `calc(${Math.max(0, from)}% + 8px)` }}>{text}</em>;
}

function runPieces(t: Timeline, now: number): Piece[] {
  const begin = Date.parse(t.run.created_at);
  const started = ms(t.run.started_at) ?? (ended(t.run.status) ? ms(t.run.completed_at)! : now);
  const stop = ms(t.run.completed_at) ?? now;
  const tone = tones[t.run.status] ?? 'idle';
  const out: Piece[] = [{ from: begin, to: started, class: 'gap', title: `waited ${duration(started - begin)} for a worker` }];
  if (stop > started || ended(t.run.status)) out.push({ from: started, to: Math.max(stop, started), class: `bar whole ${tone}`, title: t.run.status });
  for (const m of t.marks.slice(0, 300)) {
    if (m.type === 'attr_set') out.push({ from: Date.parse(m.at), to: Date.parse(m.at), class: 'tick', title: 'attributes set' });
    if (m.type === 'cancel_requested') out.push({ from: Date.parse(m.at), to: Date.parse(m.at), class: 'tick bad', title: `cancel requested ${m.reason ?? ''}` });
  }
  return out;
}
