// Names of files are bytes to Linux. Those that are no UTF-8 are kept in strings as Python does: a byte that is
// part of no character is the lone surrogate U+DC00 plus the byte, which no text has.

/** fromBytes is a string for bytes. */
export function fromBytes(b: Uint8Array): string {
  let out = '';
  let text = '';
  let i = 0;
  const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  while (i < b.length) {
    const first = b[i]!;
    const n = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    try {
      if (n === 0 || i + n > b.length) throw new TypeError();
      text += utf8.decode(b.subarray(i, i + n));
      i += n;
    } catch {
      out += text + String.fromCharCode(0xdc00 + first);
      text = '';
      i++;
    }
  }
  return out + text;
}

/** fromBase64 is fromBytes of what is written in base64. */
export const fromBase64 = (s: string): string => fromBytes(Uint8Array.from(atob(s), (c) => c.charCodeAt(0)));

/** percent writes a string for an address, byte by byte. */
export const percent = (s: string): string =>
  s.replace(/[\ud800-\udbff][\udc00-\udfff]|[\s\S]/g, (c) => {
    const n = c.charCodeAt(0);
    if (c.length === 1 && n >= 0xd800 && n <= 0xdfff) return n >= 0xdc80 && n <= 0xdcff ? '%' + (n - 0xdc00).toString(16).toUpperCase() : '%EF%BF%BD';
    return encodeURIComponent(c);
  });

/** unpercent reads what percent has written. */
export function unpercent(s: string): string {
  const out: number[] = [];
  const utf8 = new TextEncoder();
  for (const part of s.match(/%[0-9a-fA-F]{2}|[^%]+|%/g) ?? []) {
    if (/^%..$/.test(part)) out.push(parseInt(part.slice(1), 16));
    else out.push(...utf8.encode(part));
  }
  return fromBytes(Uint8Array.from(out));
}

/** isText reports whether a string is text alone. */
export const isText = (s: string): boolean => !/[\udc80-\udcff]/u.test(s);
