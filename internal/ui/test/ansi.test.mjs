// What is shown of the output of programs: text and colours, whatever they write.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runnerImport } from 'vite';

const { Ansi, longest, widest } = (await runnerImport(fileURLToPath(new URL('../src/ansi.ts', import.meta.url)), { configFile: false, logLevel: 'error' })).module;

const all = (...pieces) => {
  const a = new Ansi();
  return [...pieces.flatMap((p) => a.feed(p)), a.rest()];
};
const texts = (lines) => lines.map((l) => l.map((r) => r.text).join(''));
const show = (lines) => lines.map((l) => l.map((r) => (r.style ? `<${r.style}>${r.text}</>` : r.text)).join('')).join('\n');

const cases = [
  ['plain', 'one\ntwo', 'one\ntwo'],
  ['empty lines', '\n\na\n', '\n\na\n'],
  ['CR LF', 'a\r\nb', 'a\nb'],
  ['a line that is written again', '10%\r20%\r30%\n', '30%\n'],
  ['tab', 'a\tb', 'a\tb'],
  ['colours', '\x1b[31mred\x1b[0m \x1b[1;92mgreen\x1b[39mbold\x1b[m.', '<fg1>red</> <fg10 bold>green</><bold>bold</>.'],
  ['dim and underlined', '\x1b[2;4ma\x1b[22mb\x1b[24mc', '<dim under>a</><under>b</>c'],
  ['256 and true colours', '\x1b[38;5;9ma\x1b[38;5;200mb\x1b[38;2;1;2;3mc\x1b[48;5;1md\x1b[48;2;9;9;9;31me', '<fg9>a</>bcd<fg1>e</>'],
  ['8-bit CSI', '\x9b31mred', '<fg1>red</>'],
  ['private and unknown', 'a\x1b[?25l\x1b[2J\x1b[10;10H\x1b[6n\x1b[>c\x1b[3 qb', 'ab'],
  ['colours that are none', '\x1b[?31ma\x1b[31!mb\x1b[:::mc\x1b[999mc', 'abcc'],
  ['title', 'a\x1b]0;evil\x07b\x1b]2;evil\x1b\\c\x9d0;evil\x9cd', 'abcd'],
  ['link', '\x1b]8;;http://evil.example\x07text\x1b]8;;\x07', 'text'],
  ['clipboard', 'a\x1b]52;c;aGFja2Vk\x07b', 'ab'],
  ['DCS, SOS, PM, APC', 'a\x1bPq#0\x1b\\b\x1bXx\x1b\\c\x1b^x\x1b\\d\x1b_x\x1b\\e', 'abcde'],
  ['8-bit strings', 'a\x90x\x9cb\x98x\x9cc\x9ex\x9cd\x9fx\x9ce', 'abcde'],
  ['character sets', 'a\x1b(0b\x1b#8c\x1b%Gd\x1b=e\x1b7f', 'abcdef'],
  ['other controls', 'a\0b\bc\x7fd\x0be\x85f', 'abcdef'],
  ['a sequence that is broken off', 'a\x1b[31\nb\x1b\nc', 'a\nb\nc'],
  ['within another', 'a\x1b]0;x\x1b[31mb', 'a<fg1>b</>'],
  ['a string that is cancelled', 'a\x1b]0;x\x18b', 'ab'],
  ['markup is text', '<img src=x onerror=alert(1)>\n', '<img src=x onerror=alert(1)>\n'],
  ['not ended', 'a\x1b[3', 'a'],
  ['other scripts', 'é漢😀\x1b[31m😀', 'é漢😀<fg1>😀</>'],
];
for (const [name, input, want] of cases) test(name, () => assert.equal(show(all(input)), want));

test('a line that is too long is cut, and says so', () => {
  const [line, rest] = all('x'.repeat(widest + 5) + '\n' + 'y'.repeat(widest));
  assert.equal(texts([line])[0], 'x'.repeat(widest) + ' … and 5 characters more');
  assert.equal(texts([rest])[0], 'y'.repeat(widest));
});

test('a sequence that does not end is over some time', () => {
  const got = texts(all('\x1b]0;' + 'x'.repeat(longest) + 'yz\n'));
  assert.match(got[0], /^x*yz$/);
  assert.ok(got[0].length < 10, got[0]);
});

// A generator that gives the same each time, so that what fails can be tried again.
const random = (seed) => () => {
  seed = (seed + 0x6d2b79f5) | 0;
  let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
};
const pieces = ['\x1b', '\x1b[', '\x1b]', '\x1bP', '\x9b', '\x9d', '\x90', '\x9c', '\x07', '\x1b\\', '\x18', 'm', '0', '31', ';', ':', '38;5;9', '?', '\n', '\r', '\t', '\0', 'a', '<b>', '漢', '😀', '\u202e', 'x'.repeat(50), '\x1b[1m', '\x1b[0m'];
const hostile = (rnd) => {
  let s = '';
  for (let n = 1 + Math.floor(rnd() * 60); n > 0; n--) s += rnd() < 0.03 ? 'y'.repeat(longest) : pieces[Math.floor(rnd() * pieces.length)];
  return s;
};
const known = /^(fg(\d|1[0-5]))?( ?bold)?( ?dim)?( ?under)?$/;

test('in whatever pieces it comes, it is the same, and nothing but text and known styles', () => {
  const rnd = random(Number(process.env.CAY_SEED ?? 7));
  for (let n = 0; n < 2000; n++) {
    const s = hostile(rnd);
    const whole = all(s);
    const cut = [];
    for (let i = 0; i < s.length; ) {
      const size = rnd() < 0.5 ? 1 : 1 + Math.floor(rnd() * 40);
      cut.push(s.slice(i, i + size));
      i += size;
    }
    assert.deepEqual(all(...cut), whole, JSON.stringify(s));
    for (const r of whole.flat()) {
      assert.match(r.style, known, JSON.stringify(s));
      assert.doesNotMatch(r.text, /[\0-\x08\x0a-\x1f\x7f-\x9f]/, JSON.stringify(s));
    }
    assert.ok(whole.length <= s.split('\n').length, 'no more lines than were written');
  }
});

const computed = (f) => {
  const before = process.cpuUsage();
  f();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000;
};

test('what is hostile takes no more than it is long', () => {
  const mb = 1 << 20;
  for (const [name, chunk, times] of [
    ['a line of 100 MB', 'x'.repeat(mb), 100],
    ['a million escapes', '\x1b[31mx\x1b[0m'.repeat(10_000), 100],
    ['a string of 20 MB that never ends', '\x1b]0;' + 'x'.repeat(mb), 20],
    ['a million beginnings', '\x1b'.repeat(mb), 1],
    ['parameters without end', '\x1b[' + '1;'.repeat(mb / 2), 20],
    ['a line that is written again and again', '50%\r'.repeat(250_000), 4],
  ]) {
    const a = new Ansi();
    let lines = 0;
    const took = computed(() => {
      for (let i = 0; i < times; i++) lines += a.feed(chunk).length;
    });
    const kept = JSON.stringify(a).length;
    assert.equal(lines, 0, name);
    assert.ok(kept < 400_000, `${name}: ${kept} characters are remembered`);
    assert.ok(took < 20_000, `${name}: ${Math.round(took)} ms of CPU`);
  }
});

test('byte by byte is no slower by more than its calls', () => {
  const a = new Ansi();
  const s = '\x1b]0;' + 'x'.repeat(300_000);
  const took = computed(() => {
    for (const c of s) a.feed(c);
  });
  assert.ok(took < 5000, `${Math.round(took)} ms of CPU`);
});
