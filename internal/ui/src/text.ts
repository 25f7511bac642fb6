// Text that others wrote, made harmless to look at. It is put into pages as text only; here is
// what could mislead even as text: control characters and those that turn the direction of writing.

const misleading =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e01ef}]/gu;

const escaped = (c: string) => {
  const n = c.codePointAt(0)!;
  if (n >= 0xdc80 && n <= 0xdcff) return '\\x' + (n - 0xdc00).toString(16); // a byte: see bytes.ts
  if (n > 0xffff) return `\\u{${n.toString(16)}}`;
  return n < 0x100 ? '\\x' + n.toString(16).padStart(2, '0') : '\\u' + n.toString(16).padStart(4, '0');
};

/** visible shows what cannot be seen: for names, on one line. */
export const visible = (s: string): string => s.replace(misleading, escaped);

/** visibleLines is visible for text of several lines. */
export const visibleLines = (s: string): string => s.replace(/\r\n/g, '\n').replace(misleading, (c) => (c === '\n' || c === '\t' ? c : escaped(c)));

/**
 * functionOf is the name of a workflow or a step as people call it. The Workflow SDK makes names of a module and
 * a function, such as workflow//./workflows/order//charge; a default export is called as its module.
 */
export function functionOf(name: string): string {
  const [, module, f] = /^(?:workflow|step)\/\/([^\s]+?)\/\/(?:.*\/)?([^/]+)$/.exec(name) ?? [];
  if (!module || !f) return name;
  if (!/^(__)?default$/.test(f)) return f;
  return module.replace(/(?<=.)@[^@/]*$/, '').split('/').at(-1) || name;
}

/** quoted writes a command as a shell would take it. */
export function quoted(argv: string[]): string {
  return argv.map((a) => (/^[\w@%+=:,./-]+$/.test(a) ? a : "'" + a.replace(/'/g, `'\\''`) + "'")).join(' ');
}

export function bytes(n: number): string {
  if (n < 1024) return `${n} B`;
  const units = ['KiB', 'MiB', 'GiB', 'TiB'];
  let i = -1;
  do {
    n /= 1024;
    i++;
  } while (n >= 1023.5 && i < units.length - 1);
  return `${n < 9.95 && n.toFixed(1) !== n.toFixed(0) + '.0' ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

export const mebibytes = (mb: number): string => bytes(mb * 1024 * 1024);

export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return `${m} min ${Math.round(s % 60) ? Math.floor(s % 60) + ' s' : ''}`.trim();
  const h = Math.floor(m / 60);
  if (h < 48) return `${h} h ${m % 60 ? (m % 60) + ' min' : ''}`.trim();
  return `${Math.floor(h / 24)} d ${h % 24 ? (h % 24) + ' h' : ''}`.trim();
}

/** ago says how long before now a time is, or after it. */
export function ago(at: number, now: number): string {
  const d = now - at;
  const s = Math.abs(d) / 1000;
  if (s < 2) return 'now';
  let text: string;
  if (s < 60) text = `${Math.floor(s)} s`;
  else if (s < 3600) text = `${Math.floor(s / 60)} min`;
  else if (s < 48 * 3600) text = `${Math.floor(s / 3600)} h`;
  else text = `${Math.floor(s / 86400)} d`;
  return d < 0 ? `in ${text}` : `${text} ago`;
}

export function mode(m: number, type: string): string {
  const bits = 'rwxrwxrwx';
  let out = type === 'dir' ? 'd' : type === 'symlink' ? 'l' : '-';
  for (let i = 0; i < 9; i++) out += m & (1 << (8 - i)) ? bits[i] : '-';
  return out;
}
