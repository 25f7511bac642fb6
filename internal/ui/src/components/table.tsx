// A table that draws only the rows that are seen, so that it may have any number of them.
import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { go } from '../router';

export interface Column<T> {
  name: string;
  /** a track of CSS grid */
  width: string;
  /** wide: only where there is room; num: figures, at the right */
  class?: string;
  /** what of a row is its link, if rows have one */
  main?: boolean;
  show: (row: T) => ComponentChildren;
}

interface Props<T> {
  label: string;
  columns: Column<T>[];
  rows: readonly T[];
  id: (row: T) => string;
  /** where a row leads to; '' nowhere */
  href?: (row: T) => string;
  onOpen?: (row: T) => void;
  selected?: string;
  rowHeight?: number;
  /** keep the end in sight while it is there */
  tail?: boolean;
  fill?: boolean;
  /** is told which rows are drawn: from the first to before the last */
  onView?: (first: number, last: number) => void;
}

/** beyond is how many rows are drawn out of sight, in each direction. */
const beyond = 8;

export function Table<T>({ label, columns, rows, id, href, onOpen, selected, rowHeight = 38, tail, fill, onView }: Props<T>) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [cursor, setCursor] = useState(-1);
  const atEnd = useRef(true);

  useLayoutEffect(() => {
    const b = box.current!;
    const measure = () => setView({ top: b.scrollTop, height: b.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(b);
    measure();
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    const b = box.current!;
    if (tail && atEnd.current) b.scrollTop = b.scrollHeight;
  }, [rows, tail]);

  // An address may name a row that is far down.
  const chosen = useMemo(() => (selected ? rows.findIndex((r) => id(r) === selected) : -1), [rows, selected]);
  useLayoutEffect(() => {
    const b = box.current!;
    const top = chosen * rowHeight;
    if (chosen < 0 || (top >= b.scrollTop && top + 2 * rowHeight <= b.scrollTop + b.clientHeight)) return;
    b.scrollTop = top - b.clientHeight / 2 + rowHeight;
    atEnd.current = false;
  }, [selected, chosen >= 0]);

  const open = (row: T) => {
    const to = href?.(row);
    if (to) go(to);
    else onOpen?.(row);
  };
  // j, k and Enter work for the table that a page is about, wherever the focus is. Keys may come faster
  // than the page is drawn, so what they are about is read when they come.
  const state = useRef({ cursor, rows, open });
  state.current = { cursor: state.current.cursor, rows, open };
  const reacts = !!(href || onOpen);
  useEffect(() => {
    if (!reacts) return;
    const onKey = (e: KeyboardEvent) => {
      const s = state.current;
      const b = box.current;
      if (!b || e.ctrlKey || e.metaKey || e.altKey || isTyping(e.target) || document.querySelector('dialog[open]')) return;
      const within = b.contains(document.activeElement);
      const move = e.key === 'j' || (e.key === 'ArrowDown' && within) ? 1 : e.key === 'k' || (e.key === 'ArrowUp' && within) ? -1 : 0;
      if (move) {
        e.preventDefault();
        s.cursor = Math.max(0, Math.min(s.rows.length - 1, s.cursor + move));
        setCursor(s.cursor);
        if (s.cursor * rowHeight < b.scrollTop) b.scrollTop = s.cursor * rowHeight;
        else if ((s.cursor + 2) * rowHeight > b.scrollTop + b.clientHeight) b.scrollTop = (s.cursor + 2) * rowHeight - b.clientHeight;
      } else if (e.key === 'Enter' && s.rows[s.cursor] && !(document.activeElement instanceof HTMLButtonElement || document.activeElement instanceof HTMLAnchorElement)) {
        s.open(s.rows[s.cursor]!);
      }
    };
    window.addEventListener('keydown', onKey);
    return () => window.removeEventListener('keydown', onKey);
  }, [reacts, rowHeight]);

  const first = Math.max(0, Math.floor(view.top / rowHeight) - beyond);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / rowHeight) + beyond);
  useEffect(() => onView?.(first, last), [first, last]);
  const tracks = columns.map((c) => c.width).join(' ');
  const narrow = columns
    .filter((c) => !c.class?.includes('wide'))
    .map((c) => c.width.replace(/minmax\([^,]+,/, 'minmax(0,'))
    .join(' ');
  return (
    <div
      class={`table${fill ? ' fill' : ''}`}
      role="table"
      aria-label={label}
      aria-rowcount={rows.length + 1}
      ref={box}
      tabIndex={0}
      style={{ '--tracks': tracks, '--narrow': narrow, '--row': `${rowHeight}px` }}
      onScroll={(e) => {
        const b = e.currentTarget;
        atEnd.current = b.scrollTop + b.clientHeight >= b.scrollHeight - rowHeight;
        setView({ top: b.scrollTop, height: b.clientHeight });
      }}
    >
      <div class="row head" role="row" aria-rowindex={1}>
        {columns.map((c) => (
          <span key={c.name} role="columnheader" class={c.class}>
            {c.name}
          </span>
        ))}
      </div>
      <div role="rowgroup" style={{ height: `${rows.length * rowHeight}px`, position: 'relative' }}>
        {rows.slice(first, last).map((row, i) => {
          const n = first + i;
          const key = id(row);
          const to = href?.(row);
          return (
            <div
              key={key}
              class={`row${n === cursor ? ' cursor' : ''}${selected === key ? ' selected' : ''}`}
              role="row"
              aria-rowindex={n + 2}
              style={{ transform: `translateY(${n * rowHeight}px)` }}
              data-open={to || onOpen ? '' : undefined}
              onClick={onOpen && (() => onOpen(row))}
            >
              {columns.map((c) => (
                <span key={c.name} role="cell" class={c.class}>
                  {c.main && to ? (
                    <a class="row-link" href={to}>
                      {c.show(row)}
                    </a>
                  ) : c.main && onOpen ? (
                    <button
                      class="row-button"
                      onClick={(e) => {
                        e.stopPropagation();
                        onOpen(row);
                      }}
                    >
                      {c.show(row)}
                    </button>
                  ) : (
                    c.show(row)
                  )}
                </span>
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}

/** isTyping reports whether keys are text for what has the focus. */
export function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || !!target.closest('.xterm'));
}
