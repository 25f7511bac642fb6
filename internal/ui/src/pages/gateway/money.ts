// Amounts and counts, as people read them.

/** dollars shows an amount: cents where it has some, else as many figures as say something. null is not known. */
export function dollars(v: string | number | null | undefined): string {
  if (v === null || v === undefined || v === '') return 'unknown';
  const n = Number(v);
  if (!Number.isFinite(n)) return 'unknown';
  const a = Math.abs(n);
  if (a === 0) return '$0';
  if (a >= 1000) return '$' + n.toLocaleString('en-US', { maximumFractionDigits: a >= 100_000 ? 0 : 2, minimumFractionDigits: a >= 100_000 ? 0 : 2 });
  if (a >= 1) return '$' + n.toFixed(2);
  if (a >= 0.01) return '$' + n.toFixed(3).replace(/0$/, '');
  return '$' + trimmed(n.toFixed(Math.min(12, 1 - Math.floor(Math.log10(a)))));
}

const trimmed = (s: string) => s.replace(/\.?0+$/, '');

/** perMillion is a price of one token, for a million of them. */
export function perMillion(v: string | undefined): string {
  if (v === undefined) return '–';
  const n = Number(v) * 1e6;
  return '$' + (n.toFixed(4).endsWith('00') ? n.toFixed(2) : trimmed(n.toFixed(4)));
}

/** count shows a number in few figures. */
export function count(n: number): string {
  if (n < 10_000) return Math.round(n).toLocaleString('en-US');
  const units: [number, string][] = [
    [1e9, 'B'],
    [1e6, 'M'],
    [1e3, 'k'],
  ];
  const [size, unit] = units.find(([s]) => n >= s * 0.9995)!;
  return `${(n / size).toFixed(n / size >= 100 ? 0 : 1).replace(/\.0$/, '')}${unit}`;
}

/** millis shows how long something took. */
export function millis(ms: number): string {
  if (ms < 1) return ms > 0 ? '<1 ms' : '0 ms';
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 9_950 ? 2 : 1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

export const percent = (part: number, whole: number): string => {
  if (whole === 0 || part === 0) return '0%';
  const p = (part / whole) * 100;
  return p < 0.1 ? '<0.1%' : `${p < 10 ? trimmed(p.toFixed(1)) : Math.round(p)}%`;
};
