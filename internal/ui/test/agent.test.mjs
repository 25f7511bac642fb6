// What agents and logs say is read as it comes, whatever they say.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runnerImport } from 'vite';

const load = async (file) => (await runnerImport(fileURLToPath(new URL(`../src/pages/agent/${file}`, import.meta.url)), { configFile: false, logLevel: 'error' })).module;
const { callsIn, Conversation, workOf } = await load('conversation.ts');
const { newLog, note } = await load('log.ts');
const { passages } = await load('fences.ts');

const message = (...parts) => ({ id: 'm', role: 'assistant', parts });

test('an agent that is a tool shows its work, which stays when it has ended', () => {
  const c = new Conversation();
  c.take({ type: 'tool-input-available', toolCallId: 'a', toolName: 'researcher', input: {} });
  const tool = () => c.messages[0].steps[0].parts[0];
  c.take({ type: 'tool-output-available', toolCallId: 'a', preliminary: true, output: message({ type: 'text', text: 'I lo', state: 'streaming' }) });
  assert.deepEqual([tool().state, tool().work[0].text, tool().output], ['running', 'I lo', undefined]);
  const inner = { type: 'dynamic-tool', toolCallId: 'b', toolName: 'search', state: 'output-available', preliminary: true, input: 1, output: message({ type: 'dynamic-tool', toolCallId: 'c', toolName: 'deep', state: 'output-error', errorText: 'no' }) };
  c.take({ type: 'tool-output-available', toolCallId: 'a', preliminary: true, output: message({ type: 'text', text: 'I look.' }, inner) });
  assert.deepEqual([...callsIn(c.messages[0].steps[0].parts)], ['a', 'b', 'c']);
  assert.equal(tool().work[1].work[0].state, 'failed');
  c.take({ type: 'tool-output-available', toolCallId: 'a', output: 'found' });
  assert.deepEqual([tool().state, tool().output, tool().work[0].text], ['done', 'found', 'I look.']);
});

test('what is no message is an output like any other', () => {
  for (const v of [null, 7, 'x', [], {}, { role: 'assistant' }, { role: 1, parts: [] }, { role: 'assistant', parts: {} }]) assert.equal(workOf(v), undefined);
  assert.deepEqual(workOf(message(null, 7, 'x', { type: 'unknown' }, { type: { toString: null } }, { type: 'text', text: {} })), [{ kind: 'text', id: '', text: '', open: false }]);
  let deep = message();
  for (let i = 0; i < 1000; i++) deep = message({ type: 'dynamic-tool', toolCallId: `${i}`, output: deep });
  assert.ok([...callsIn(workOf(deep))].length < 10, 'agents below agents have an end');
});

test('a question that takes a signature is not answered without one', () => {
  const log = newLog();
  const hooks = new Map();
  const event = (e) => note(log, { slot: 1, at: '2026-01-01T00:00:00Z', ...e }, hooks);
  const ask = (id, signed) => event({ type: 'hook_created', id, token: `t-${id}`, payload: { json: { approval_id: `approval-${id}`, call_id: id, agent: 'a', tool: 't', input: {}, signed } } });
  ask('x', true);
  ask('y', false);
  for (const id of ['x', 'y']) event({ type: 'hook_received', id, payload: { json: { approved: true } } });
  assert.deepEqual([...log.waiting.keys()], ['x']);
  event({ type: 'hook_received', id: 'x', payload: { json: { approved: false, signature: 'h1.abc' } } });
  assert.deepEqual([log.waiting.size, log.answered.get('x').approved], [0, false]);
});

test('code stands between fences, and all else is text', () => {
  const of = (text) => passages(text).map((p) => (p.code ? `<${p.text}>` : p.text));
  assert.deepEqual(of('# no heading\n\n  **nor bold** `x`\n'), ['# no heading\n\n  **nor bold** `x`\n']);
  assert.deepEqual(of('Here:\n\n```python\ndef f():\n\treturn 1\n```\n\nDone.'), ['Here:', '<def f():\n\treturn 1>', 'Done.']);
  assert.deepEqual(of('```\na\n```\n~~~js\nb\n~~~'), ['<a>', '<b>']);
  assert.deepEqual(of('````md\n```\nin\n```\n````'), ['<```\nin\n```>']); // a longer fence holds a shorter one
  assert.deepEqual(of('Wait\n```go\nfunc'), ['Wait', '<func>']); // more is coming
  assert.deepEqual(of('Wait\n```go'), ['Wait']);
  assert.deepEqual(of('```not``` a fence'), ['```not``` a fence']);
  assert.deepEqual(of('a ``` in a line'), ['a ``` in a line']);
  assert.deepEqual(of('```\r\na\r\n```\r\nb'), ['<a\r>', 'b']);
  assert.deepEqual(of(''), ['']);
  assert.deepEqual(of('```\n```'), []);
});
