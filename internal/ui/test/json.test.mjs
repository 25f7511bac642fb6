// Numbers of JSON stay what they are, however large they are and however many figures they have.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runnerImport } from 'vite';

const { Exact, parse, written } = (await runnerImport(fileURLToPath(new URL('../src/json.ts', import.meta.url)), { configFile: false, logLevel: 'error' })).module;

test('what JavaScript cannot hold is written as it was read', () => {
  for (const s of [
    '12345678901234567890',
    '{"a":-9007199254740993,"b":[0.12345678901234567891,1e400,1e-400]}',
    '{"s":"12345678901234567890 \\" 12345678901234567890","12345678901234567890":12345678901234567890}',
    '["\\\\",12345678901234567890,"\\u0001"]',
  ])
    assert.equal(written(parse(s)), s);
  assert.ok(parse('[9007199254740993]')[0] instanceof Exact);
  assert.equal(written(parse('{"a":12345678901234567890}'), 2), '{\n  "a": 12345678901234567890\n}');
});

test('what it can hold is a number', () => {
  for (const s of ['9007199254740992', '[1.5,-0.25,1e21,123456789012345,0.30000000000000004]', '"1e400"']) assert.deepEqual(parse(s), JSON.parse(s));
});

test('what is not JSON is refused as ever', () => {
  for (const s of ['12345678901234567890 x', '[012345678901234567890]', '{"a":12345678901234567890', '[12345678901234567890.]', '-']) assert.throws(() => parse(s), SyntaxError, s);
});

test('texts of others are no numbers, whatever they say', () => {
  const v = parse('["\\u00011.2.3.4:7",12345678901234567890]');
  assert.equal(v[0], '\u00011.2.3.4:7');
  assert.equal(written(v), '["\\u00011.2.3.4:7",12345678901234567890]');
});

test('a text of 20 MB, with an escape in each 4 characters, is read', () => {
  const s = `[${JSON.stringify('a\n1"'.repeat(5_000_000))},12345678901234567890]`;
  assert.equal(written(parse(s)[1]), '12345678901234567890');
});

/** same is a number as its sign, figures and exponent. */
function same(n) {
  const [, sign, whole, rest = '', e = '0'] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(n);
  const all = (whole + rest).replace(/^0+/, '');
  const figures = all.replace(/0+$/, '');
  return figures ? `${sign}${figures}e${Number(e) - rest.length + all.length - figures.length}` : '0';
}

test('any number comes back', () => {
  let seed = 7;
  const next = () => (seed = (Math.imul(seed, 1103515245) + 12345) >>> 0) >>> 16;
  const figures = (n) => Array.from({ length: n }, () => next() % 10).join('');
  for (let i = 0; i < 20_000; i++) {
    let n = (next() % 4 ? '' : '-') + figures(1 + (next() % 25)).replace(/^0+(?=\d)/, '');
    if (next() % 3 === 0) n += '.' + figures(1 + (next() % 20));
    if (next() % 5 === 0) n += 'e' + ((next() % 700) - 350);
    assert.equal(same(written(parse(`[${n}]`)).slice(1, -1)), same(n), n);
  }
});
