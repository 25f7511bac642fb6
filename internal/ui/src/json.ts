// JSON as it was written: numbers that JavaScript cannot hold stay what they are.

/** Exact is a number as it was written, since reading it would change it: beyond 2^53, or with too many figures. */
export class Exact {
  constructor(readonly text: string) {}
  toString(): string {
    return this.text;
  }
}

/** may reports whether a text can have such numbers at all. Those of others have less figures. */
const may = /\d[\d.]{15}|\d[eE][+-]?\d{3}/;

/** number is one of JSON. */
const number = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** endOf is where the text that begins at a quote ends. An expression would need a stack as long as the text. */
function endOf(text: string, quote: number): number {
  for (let e = quote + 1; (e = text.indexOf('"', e)) >= 0; e++) {
    let b = e - 1;
    while (text.charCodeAt(b) === 92) b--;
    if ((e - b) % 2 === 1) return e + 1; // the backslashes before it escape each other
  }
  return text.length;
}

/** withNumbers replaces the numbers of JSON, not those in texts. */
function withNumbers(text: string, replace: (n: string) => string): string {
  const out: string[] = [];
  for (let at = 0; at < text.length; ) {
    const quote = text.indexOf('"', at);
    out.push(text.slice(at, quote < 0 ? undefined : quote).replace(number, replace));
    if (quote < 0) break;
    at = endOf(text, quote);
    out.push(text.slice(quote, at));
  }
  return out.join('');
}

/** plain is a number without what changes nothing about it: its figures, and where the point is. */
function plain(n: string): string {
  const m = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(n);
  if (!m) return n;
  const all = m[2]! + (m[3] ?? '');
  const figures = all.replace(/^0+/, '').replace(/0+$/, '');
  if (!figures) return '0';
  const zeros = /0*$/.exec(all)![0].length;
  return `${m[1]}${figures}e${Number(m[4] ?? 0) - (m[3]?.length ?? 0) + zeros}`;
}

/** survives reports whether a number is the same after JavaScript has read and written it. */
const survives = (n: string): boolean => n.length < 16 && !/[eE]/.test(n) ? true : plain(String(Number(n))) === plain(n);

/** marks are put where no text of others can know them. */
const newMark = (): string => '\u0001' + crypto.getRandomValues(new Uint32Array(4)).join('.') + ':';

/** parse reads JSON; in it, numbers that would be changed are Exact. It throws a SyntaxError, as JSON.parse does. */
export function parse(text: string): unknown {
  if (!may.test(text)) return JSON.parse(text);
  const mark = newMark();
  const quoted = JSON.stringify(mark).slice(1, -1);
  let found = false;
  const marked = withNumbers(text, (n) => {
    if (survives(n)) return n;
    found = true;
    return `"${quoted}${n}"`;
  });
  if (!found) return JSON.parse(text);
  JSON.parse(text); // what is not JSON must not become so
  return JSON.parse(marked, (_, v) => (typeof v === 'string' && v.startsWith(mark) ? new Exact(v.slice(mark.length)) : v));
}

/** written is a value as JSON, on one line or indented: what is Exact as it was read. */
export function written(v: unknown, indent?: number): string | undefined {
  let found = false;
  const mark = newMark();
  const text = JSON.stringify(
    v,
    (_, x) => {
      if (!(x instanceof Exact)) return x;
      found = true;
      return mark + x.text;
    },
    indent,
  );
  if (!found) return text;
  const quoted = JSON.stringify(mark).slice(1, -1);
  return text
    .split(`"${quoted}`)
    .map((part, i) => (i === 0 ? part : part.replace('"', '')))
    .join('');
}
