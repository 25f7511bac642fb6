// Streams rest while nobody looks at the page, and go on when somebody does.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runnerImport } from 'vite';

const page = Object.assign(new EventTarget(), { hidden: false });
globalThis.document = page;
globalThis.window = { setTimeout: (...a) => setTimeout(...a), clearTimeout: (t) => clearTimeout(t) };
const { whileSeen } = (await runnerImport(fileURLToPath(new URL('../src/seen.ts', import.meta.url)), { configFile: false, logLevel: 'error' })).module;

const show = (is) => {
  page.hidden = !is;
  page.dispatchEvent(new Event('visibilitychange'));
};

/** settle lets what waits for promises go on. */
const settle = () => new Promise((done) => setImmediate(done));

/** stream is a read that goes on until its signal, and counts how often it was begun and given up. */
function stream() {
  const s = { begun: 0, ended: 0, settle: undefined };
  s.read = (signal) =>
    new Promise((done, fail) => {
      s.begun++;
      s.settle = { done, fail };
      signal.addEventListener('abort', () => {
        s.ended++;
        fail(new Error('aborted'));
      });
    });
  return s;
}

test('a page that is hidden for long reads nothing until it is seen', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const s = stream();
  const stop = new AbortController();
  show(true);
  const all = whileSeen(stop.signal, s.read);
  await settle();
  show(false);
  t.mock.timers.tick(1_900);
  show(true); // in time
  t.mock.timers.tick(60_000);
  await settle();
  assert.deepEqual([s.begun, s.ended], [1, 0]);

  show(false);
  t.mock.timers.tick(2_000);
  await settle();
  assert.deepEqual([s.begun, s.ended], [1, 1]);
  t.mock.timers.tick(60_000);
  await settle();
  assert.equal(s.begun, 1);
  show(true);
  await settle();
  assert.deepEqual([s.begun, s.ended], [2, 1]);

  s.settle.done();
  await all;
});

test('what breaks, and what stops, is told to who reads', async () => {
  show(true);
  const s = stream();
  const broken = whileSeen(new AbortController().signal, s.read);
  await settle();
  s.settle.fail(new Error('broken'));
  await assert.rejects(broken, /broken/);

  const stop = new AbortController();
  const stopped = whileSeen(stop.signal, s.read);
  await settle();
  stop.abort();
  await assert.rejects(stopped, /aborted/);
});

test('a page that is stopped while it is hidden reads nothing', async () => {
  show(false);
  const s = stream();
  const stop = new AbortController();
  const all = whileSeen(stop.signal, s.read);
  await settle();
  stop.abort();
  await all;
  assert.equal(s.begun, 0);
});
