// The labels of a timeline's spans.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runnerImport } from 'vite';

const load = async (path) => (await runnerImport(fileURLToPath(new URL(path, import.meta.url)), { configFile: false, logLevel: 'error' })).module;
const { functionOf } = await load('../src/text.ts');
const { labelOf, purposeOf } = await load('../src/pages/workflow/waits.ts');
const { position } = await load('../src/pages/workflow/stack.ts');

const at = (second) => new Date(Date.UTC(2026, 0, 1, 0, 0, second)).toISOString();
const span = (kind, id, slot, more) => ({ kind, id, slot, status: 'open', begins_at: at(slot), ...more });
const hook = (slot, token, more) => span('hook', `hook_${slot}`, slot, { token, ...more });

test("a hook's timeout is named after the hook", () => {
  const wait = span('wait', 'wait_receive.1', 9);
  const label = (...hooks) => labelOf(wait, [...hooks, wait]);
  assert.equal(label(hook(2, 'approve:41')), 'timeout of approve:41');
  assert.equal(label(hook(2, 'secret', { webhook: true })), 'timeout of hook_2', "a webhook's token is an address");
  assert.equal(label(hook(2, 'gone', { status: 'disposed', ends_at: at(5) }), hook(6, 'next')), 'timeout of next');
  assert.equal(label(hook(2, 'taken', { status: 'conflict' }), hook(6, 'mine'), hook(12, 'later')), 'timeout of mine');
  // The log does not say which of two.
  assert.equal(label(hook(2, 'one'), hook(3, 'two')), 'timeout of a hook');
  assert.equal(label(), 'timeout of a hook');
  assert.equal(purposeOf(wait, [hook(2, 'approve:41'), wait]), 'How long the code waits for a value of the hook approve:41.');
});

test('each kind of wait says what it is for', () => {
  for (const [id, label, purpose] of [
    ['wait_receive.2', 'timeout of a hook', 'How long the code waits for a value of a hook.'],
    ['wait_both.1/receive.1', 'timeout of a hook', 'How long the code waits for a value of a hook.'],
    ['wait_timeout.1', 'timeout.1', 'The timeout of a part of the code.'],
    ['wait_after.3', 'after.3', 'A timer that the code started.'],
    ['wait_sleep.12', 'sleep.12', 'The code sleeps.'],
    ['wait_01M80KF21V5AFMKEEETZBEN7WR', '01M80KF21V5AFMKEEETZBEN7WR', ''],
  ]) {
    const wait = span('wait', id, 1);
    assert.deepEqual([labelOf(wait, [wait]), purposeOf(wait, [wait])], [label, purpose], id);
  }
  const step = span('step', 'step_receive.1', 1, { name: 'receive' });
  assert.deepEqual([labelOf(step, [step]), purposeOf(step, [step])], ['receive', '']);
});

test("names of the Workflow SDK are shown by their functions'", () => {
  for (const [name, want] of [
    ['workflow//./workflows/order//placeOrder', 'placeOrder'],
    ['step//./workflows/order//placeOrder/charge', 'charge'],
    ['step//@vercel/sandbox@3.5.0//Sandbox#runCommand', 'Sandbox#runCommand'],
    ['workflow//./workflows/order//default', 'order'],
    ['workflow//@shop/orders@1.2.3//__default', 'orders'],
    ['order', 'order'],
    ['charge card', 'charge card'],
    ['https://example.com//x', 'https://example.com//x'],
    ['step//', 'step//'],
  ])
    assert.equal(functionOf(name), want, name);
  const step = span('step', 'step_1', 1, { name: 'step//./workflows/order//charge' });
  assert.equal(labelOf(step, [step]), 'charge');
});

test('a stack says where a panic was, also that of a program built with -trimpath', () => {
  const stack = (std, own) =>
    `goroutine 8 [running]:
runtime/debug.Stack()
\t${std}runtime/debug/stack.go:26 +0x64
example.com/shop.recovered()
\t${own}/worker.go:40 +0x20
panic({0x1024, 0x2048})
\t${std}runtime/panic.go:860 +0x12c
reflect.Value.Call({0x1, 0x2})
\t${std}reflect/value.go:370 +0x90
example.com/shop.divide(...)
\t${own}/divide.go:12
`;
  assert.equal(position(stack('/usr/local/go/src/', '/home/ada/shop')), '/home/ada/shop/divide.go:12');
  assert.equal(position(stack('', 'example.com/shop')), 'example.com/shop/divide.go:12');
  assert.equal(position('Error: no\n    at work (file:///app/work.js:3:9)\n    at node:internal/process:1:2'), 'file:///app/work.js:3:9');
});
