// The part of a run's time that is seen, and how it is divided.

/** Range is a part of time, in Unix ms. */
export interface Range {
  from: number;
  to: number;
}

/** shortest is the least time that is shown, in ms. */
const shortest = 2;

/** zoom makes a range smaller or larger by a factor around a time, within what there is and a bit more. */
export function zoom(r: Range, factor: number, around: number, all: Range): Range {
  const whole = all.to - all.from;
  const width = Math.max(shortest, Math.min(whole * 1.5, (r.to - r.from) * factor));
  const part = r.to > r.from ? (around - r.from) / (r.to - r.from) : 0.5;
  return keep({ from: around - width * part, to: around + width * (1 - part) }, all);
}

/** pan moves a range by a part of its width. */
export function pan(r: Range, part: number, all: Range): Range {
  const d = (r.to - r.from) * part;
  return keep({ from: r.from + d, to: r.to + d }, all);
}

/** keep keeps a range in sight of what there is. */
function keep(r: Range, all: Range): Range {
  const width = r.to - r.from;
  const from = Math.max(all.from - width * 0.5, Math.min(all.to - width * 0.5, r.from));
  return { from, to: from + width };
}

const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3, 7200e3, 3 * 3600e3, 6 * 3600e3, 12 * 3600e3, 86400e3, 2 * 86400e3, 7 * 86400e3, 14 * 86400e3, 30 * 86400e3, 90 * 86400e3, 365 * 86400e3];

/** ticks are round times of a range, at most so many, as offsets from the beginning. */
export function ticks(r: Range, begin: number, most: number): { at: number; text: string }[] {
  const step = steps.find((s) => (r.to - r.from) / s <= most) ?? steps.at(-1)! * Math.ceil((r.to - r.from) / steps.at(-1)! / most);
  const out: { at: number; text: string }[] = [];
  for (let t = Math.ceil((r.from - begin) / step) * step; begin + t <= r.to && out.length <= most; t += step) {
    if (t >= 0) out.push({ at: begin + t, text: offset(t, step) });
  }
  return out;
}

/** offset writes a time since the beginning, no finer than step. */
export function offset(ms: number, step: number): string {
  if (ms === 0) return '0';
  if (ms < 1000 && step < 1000) return `${ms} ms`;
  const s = ms / 1000;
  if (s < 60) return `${step < 1000 ? s.toFixed(step < 10 ? 3 : step < 100 ? 2 : 1) : s} s`;
  const pad = (n: number) => String(n).padStart(2, '0');
  const whole = Math.floor(s);
  const seconds = step < 1000 ? (s % 60).toFixed(step < 10 ? 3 : step < 100 ? 2 : 1).padStart(step < 10 ? 6 : step < 100 ? 5 : 4, '0') : pad(whole % 60);
  if (s < 3600) return `${Math.floor(s / 60)}:${seconds}`;
  const h = Math.floor(s / 3600);
  if (h < 48) return `${h}:${pad(Math.floor(s / 60) % 60)}${step < 60e3 ? ':' + seconds : ' h'}`;
  return `${Math.floor(h / 24)} d${h % 24 ? ` ${h % 24} h` : ''}`;
}
