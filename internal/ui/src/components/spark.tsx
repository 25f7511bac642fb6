// Small figures of what a number was lately.

interface Props {
  label: string;
  /** as it is now, in words */
  text: string;
  /** what else is known, beside it */
  note?: string;
  /** what it was, oldest first, each 0 to 1 of what it may be; null is not known */
  points: readonly (number | null)[];
  /** how many points there is room for */
  room: number;
}

/** tone is how much is too much: of a machine that is full, something has to be done. */
const tone = (v: number | null | undefined): string => (v === null || v === undefined ? '' : v > 0.95 ? 'bad' : v > 0.85 ? 'warn' : '');

/** Gauge shows how much of something is taken, and how that was lately. */
export function Gauge({ label, text, note, points, room }: Props) {
  // A line that has just begun is drawn larger.
  const wide = Math.min(room, Math.max(12, points.length));
  const at = (n: number) => 100 - ((points.length - 1 - n) / Math.max(1, wide - 1)) * 100;
  const known = points.map((v, n) => ({ v, x: at(n) })).filter((p): p is { v: number; x: number } => p.v !== null);
  const line = known.map((p) => `${p.x.toFixed(2)},${(30 - Math.min(1, p.v) * 28).toFixed(2)}`).join(' ');
  const now = points.at(-1);
  return (
    <div class={`gauge ${tone(now)}`} role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={now === null || now === undefined ? undefined : Math.round(now * 100)} aria-valuetext={`${text} ${note ?? ''}`.trim()}>
      <span class="dim">{label}</span>
      <span class="gauge-n num">{text}</span>
      <svg viewBox="0 0 100 30" preserveAspectRatio="none" aria-hidden="true">
        <line x1="0" x2="100" y1="30" y2="30" class="gauge-floor" />
        {known.length > 1 && <polygon points={`${known[0]!.x.toFixed(2)},30 ${line} 100,30`} />}
        {known.length > 0 && <polyline points={known.length > 1 ? line : `94,${(30 - Math.min(1, known[0]!.v) * 28).toFixed(2)} ${line}`} />}
      </svg>
      {note && <span class="dim note-line num">{note}</span>}
    </div>
  );
}
