// Charts over time. uPlot is fetched when the first one is shown.
import { useEffect, useRef } from 'preact/hooks';
import type uPlot from 'uplot';
import { theme } from '../theme';

export interface Series {
  name: string;
  colour: string; // a CSS variable
}

interface Props {
  title: string;
  /** times in seconds, then the values of each series */
  data: (number | null)[][];
  series: Series[];
  format: (v: number) => string;
  max?: number;
}

const clock = (s: number) => new Date(s * 1000).toLocaleTimeString(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });

/** span is what time is shown: a minute at least. Of one moment, uPlot would make many days. */
function span(u: uPlot, from: number, to: number): [number, number] {
  const [first] = u.data;
  if (first.length < 2) to = from = first[0] ?? Date.now() / 1000;
  return [Math.min(from, to - 60), to];
}

export function Chart({ title, data, series, format, max }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const latest = useRef(data);
  latest.current = data;
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
      plot.current = new U(
        {
          width: el.clientWidth,
          height: 132,
          padding: [8, 8, 0, 0],
          legend: { show: false },
          cursor: { y: false, points: { size: 5 } },
          scales: { x: { time: true, range: span }, y: { range: (_u, _min, top) => [0, Math.max(max ?? 0, (top ?? 0) * 1.15, 1e-9)] } },
          axes: [
            { ...axis, size: 24, space: 90, values: (_u: uPlot, all: number[]) => all.map(clock) },
            { ...axis, size: 64, space: 34, values: (_u: uPlot, all: number[]) => all.map(format) },
          ],
          series: [
            {},
            ...series.map((s) => ({ label: s.name, stroke: colour(s.colour), width: 1.5, fill: colour(s.colour) + '22', points: { show: false } })),
          ],
        },
        latest.current as uPlot.AlignedData,
        el,
      );
      observer = new ResizeObserver(() => plot.current?.setSize({ width: el.clientWidth, height: 132 }));
      observer.observe(el);
    })();
    return () => {
      over = true;
      observer?.disconnect();
      plot.current?.destroy();
      plot.current = undefined;
    };
  }, [theme.value, max]);
  useEffect(() => plot.current?.setData(data as uPlot.AlignedData), [data]);
  const last = (i: number) => {
    const v = data[i + 1]?.at(-1);
    return v === null || v === undefined ? '–' : format(v);
  };
  return (
    <figure class="chart">
      <figcaption>
        <span>{title}</span>
        <span class="legend">
          {series.map((s, i) => (
            <span key={s.name}>
              <i style={{ background: `var(${s.colour})` }} />
              {series.length > 1 && s.name} <b class="num">{last(i)}</b>
            </span>
          ))}
        </span>
      </figcaption>
      <div ref={box} role="img" aria-label={`${title}: ${series.map((s, i) => `${s.name} ${last(i)}`).join(', ')}`} />
    </figure>
  );
}
