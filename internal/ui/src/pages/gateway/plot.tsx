// A chart of what happened in each part of a time: bars on top of each other, or lines. uPlot is fetched when the first one
// is shown.
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import type uPlot from 'uplot';
import { visible } from '../../text';
import { theme } from '../../theme';

export interface Row {
  name: string;
  colour: string; // a CSS variable
  values: (number | null)[];
  /** what stands beside the name while nothing is pointed at */
  total?: string;
}

interface Props {
  title: string;
  /** when each part begins, in seconds, and how long one is */
  times: number[];
  step: number;
  rows: Row[];
  lines?: boolean;
  format: (v: number) => string;
}

const height = 148;

const two = (n: number) => String(n).padStart(2, '0');
const clock = (d: Date) => `${two(d.getHours())}:${two(d.getMinutes())}`;
const day = (d: Date) => d.toLocaleDateString(undefined, { day: 'numeric', month: 'short' });

/** Days are those of UTC, as the API counts them. */
const utcDay = (d: Date) => d.toLocaleDateString(undefined, { day: 'numeric', month: 'short', timeZone: 'UTC' });

function label(s: number, step: number): string {
  const d = new Date(s * 1000);
  if (step >= 86_400) return utcDay(d);
  return step >= 3600 ? `${day(d)}, ${clock(d)}` : clock(d);
}

export function Plot({ title, times, step, rows, lines, format }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const [at, setAt] = useState<number | null>(null);
  // Bars on top of each other are drawn one behind the other, the sum of all first.
  const stacked = useStacked(times, rows, !!lines);
  const latest = useRef({ data: stacked, format });
  latest.current = { data: stacked, format };
  const shape = JSON.stringify([rows.map((r) => r.colour), lines, step, theme.value]);

  useEffect(() => {
    let over = false;
    let observer: ResizeObserver | undefined;
    void (async () => {
      const [{ default: U }] = await Promise.all([import('uplot'), import('uplot/dist/uPlot.min.css')]);
      if (over || !box.current) return;
      const css = getComputedStyle(document.documentElement);
      const colour = (name: string) => css.getPropertyValue(name).trim();
      const axis = { stroke: colour('--dim'), grid: { stroke: colour('--line'), width: 1 }, ticks: { show: false }, font: '11px system-ui' };
      const el = box.current;
      const drawn = lines ? rows : [...rows].reverse();
      plot.current = new U(
        {
          width: el.clientWidth,
          height,
          padding: [8, 18, 0, 0],
          legend: { show: false },
          cursor: { y: false, drag: { x: false, y: false, setScale: false }, points: { show: !!lines, size: 5 } },
          hooks: { setCursor: [(u) => setAt(u.cursor.idx ?? null)] },
          scales: {
            x: { time: true, range: (_u, from, to) => [from - step / 2, to + step / 2] },
            y: { range: (_u, _min, top) => [0, Math.max((top ?? 0) * 1.1, 1e-12)] },
          },
          axes: [
            { ...axis, grid: { show: false }, size: 22, space: 70, values: (_u: uPlot, all: number[]) => all.map((s) => axisLabel(s, step)) },
            { ...axis, size: 62, space: 32, values: (_u: uPlot, all: number[]) => all.map((v) => latest.current.format(v)) },
          ],
          series: [
            {},
            ...drawn.map((r) =>
              lines
                ? { stroke: colour(r.colour), width: 1.5, points: { show: true, size: 5, fill: colour(r.colour) }, spanGaps: true }
                : { stroke: colour(r.colour), fill: colour(r.colour), width: 0, points: { show: false }, paths: U.paths.bars!({ size: [0.78, 34] }) },
            ),
          ],
        },
        latest.current.data,
        el,
      );
      observer = new ResizeObserver(() => plot.current?.setSize({ width: el.clientWidth, height }));
      observer.observe(el);
    })();
    return () => {
      over = true;
      observer?.disconnect();
      plot.current?.destroy();
      plot.current = undefined;
    };
  }, [shape]);
  useLayoutEffect(() => plot.current?.setData(stacked), [stacked]);

  const pointed = at !== null && at < times.length ? at : null;
  return (
    <figure class="chart plot">
      <figcaption>
        <span>
          {title} {pointed !== null && <span class="dim num">{label(times[pointed]!, step)}</span>}
        </span>
        <span class="legend">
          {rows.map((r) => {
            const v = pointed === null ? undefined : r.values[pointed];
            return (
              <span key={r.name} title={visible(r.name)}>
                <i style={{ background: `var(${r.colour})` }} />
                <bdi class="legend-name">{visible(r.name)}</bdi> <b class="num">{pointed === null ? (r.total ?? '') : v === null || v === undefined ? '–' : format(v)}</b>
              </span>
            );
          })}
        </span>
      </figcaption>
      <div ref={box} class="plot-box" role="img" aria-label={`${title}: ${rows.map((r) => `${visible(r.name)} ${r.total ?? ''}`).join(', ')}`} />
    </figure>
  );
}

function axisLabel(s: number, step: number): string {
  const d = new Date(s * 1000);
  if (step >= 86_400) return utcDay(d);
  return d.getHours() === 0 && d.getMinutes() === 0 ? day(d) : clock(d);
}

function useStacked(times: number[], rows: Row[], lines: boolean): uPlot.AlignedData {
  const kept = useRef<{ key: string; data: uPlot.AlignedData }>({ key: '', data: [[]] });
  const key = JSON.stringify([times, rows.map((r) => r.values), lines]);
  if (kept.current.key !== key) {
    let data: (number | null)[][];
    if (lines) data = rows.map((r) => r.values);
    else {
      const sum = times.map(() => 0);
      data = rows.map((r) => r.values.map((v, i) => (sum[i]! += v ?? 0) || null)).reverse();
    }
    kept.current = { key, data: [times, ...data] as uPlot.AlignedData };
  }
  return kept.current.data;
}
