// Names of files are bytes; what is no UTF-8 of them comes through a string and an address unchanged.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runnerImport } from 'vite';

const load = async (file) => (await runnerImport(fileURLToPath(new URL(`../src/${file}`, import.meta.url)), { configFile: false, logLevel: 'error' })).module;
const { fromBytes, isText, percent, unpercent } = await load('bytes.ts');
const { visible, visibleLines } = await load('text.ts');

/** sent is what a server reads of an address. */
const sent = (p) => Uint8Array.from(p.match(/%[0-9A-F]{2}|[\s\S]/g) ?? [], (x) => (x.length === 3 ? parseInt(x.slice(1), 16) : x.charCodeAt(0)));

test('text stays text', () => {
  for (const s of ['', 'a', 'é漢😀', '%41', 'a/b?c=d&e#f', '\ufeffx']) {
    assert.equal(fromBytes(new TextEncoder().encode(s)), s);
    assert.equal(percent(s), encodeURIComponent(s));
    assert.equal(unpercent(percent(s)), s);
    assert.ok(isText(s));
  }
});

test('bytes that are no text come through, and can be seen', () => {
  const b = Uint8Array.of(0x61, 0xff, 0xc3, 0x28, 0xe2, 0x82, 0xf0, 0x9f, 0x98, 0x80, 0xed, 0xa0, 0x80, 0xc0, 0xaf);
  const s = fromBytes(b);
  assert.ok(!isText(s));
  assert.deepEqual(sent(percent(s)), b);
  assert.equal(unpercent(percent(s)), s);
  assert.equal(visible(s), 'a\\xff\\xc3(\\xe2\\x82😀\\xed\\xa0\\x80\\xc0\\xaf');
});

test('any bytes come through', () => {
  let seed = 1;
  const next = () => (seed = (Math.imul(seed, 1103515245) + 12345) >>> 0) >>> 16;
  for (let n = 0; n < 5000; n++) {
    const b = Uint8Array.from({ length: next() % 12 }, () => next() & 255);
    const s = fromBytes(b);
    assert.deepEqual(sent(percent(s)), b);
    assert.equal(unpercent(percent(s)), s);
    assert.equal(isText(s), new TextDecoder().decode(b) === s || s === '\ufeff' + new TextDecoder().decode(b), JSON.stringify([...b]));
  }
});

test('half a character of JavaScript is none', () => {
  assert.equal(percent('\ud800x'), '%EF%BF%BDx');
  assert.equal(percent('\udc41'), '%EF%BF%BD'); // an A can be written as one
});

test('what cannot be seen, or turns writing round, is shown', () => {
  assert.equal(visible('invoice\u202egpj.exe'), 'invoice\\u202egpj.exe');
  assert.equal(visible('a\u2066b\u200bc\u00add\u3164e\u180ef\ufff9'), 'a\\u2066b\\u200bc\\xadd\\u3164e\\u180ef\\ufff9');
  assert.equal(visible('tag\u{e0041}'), 'tag\\u{e0041}');
  assert.equal(visible('\x1b[31m\r\n\t'), '\\x1b[31m\\x0d\\x0a\\x09');
  assert.equal(visibleLines('a\r\n\tb\x1b'), 'a\n\tb\\x1b');
  assert.equal(visible('é漢😀👩‍👩‍👧'), 'é漢😀👩‍👩‍👧');
});
