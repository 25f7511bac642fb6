// Answers that take longer than a client waits. The daemon of this program sends
// headers after a tenth of a second.
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { Agent } from 'undici';
import { Case, sh } from './case.mjs';
import { credentials, load } from './sdk.mjs';
import { world } from './world.mjs';

// A client that gives up when there are no headers after some seconds, which are
// enough for a busy machine.
const hasty = new Agent({ headersTimeout: 5000, bodyTimeout: 0 });
const gaveUp = [];
const hastily = (url, init) => fetch(url, { ...init, dispatcher: hasty }).catch((err) => {
  gaveUp.push(`${init.method} ${url}: ${err.cause ?? err}`); // and is asked again, by the client
  throw err;
});

// Asks the server without a client, and returns what came, and how long before the end the headers came.
// meanwhile is done when they are there.
async function raw(method, path, { query, body, meanwhile } = {}) {
  const parameters = new URLSearchParams({ teamId: credentials.teamId, ...query });
  const answer = await fetch(`${world.url}/api${path}?${parameters}`, {
    method, body: body && JSON.stringify(body), headers: { authorization: `Bearer ${credentials.token}`, 'content-type': 'application/json' },
  });
  const headers = performance.now();
  await meanwhile?.();
  const text = await answer.text();
  return { status: answer.status, type: answer.headers.get('content-type'), text, ahead: performance.now() - headers };
}

describe('slow', { concurrency: 6 }, async () => {
  const sdks = await Promise.all(['sandbox-v1', 'sandbox-v2', 'sandbox-v3'].map(load));
  const all = (name, run) => {
    for (const sdk of sdks) test(`${sdk.alias}: ${name}`, (t) => run(new Case(sdk, t), sdk));
  };
  const wire = (name, run) => test(name, (t) => run(new Case(sdks.at(-1), t)));
  const commands = async (c) => `/v2/sandboxes/sessions/${(await c.fresh()).currentSession().sessionId}/cmd`;

  // Longer than the quarter of a minute after which a stream says that it is there.
  const quiet = ['-c', 'echo one; sleep 20; echo two'];

  wire('NDJSON is padded with empty lines', async (c) => {
    const { status, type, text, ahead } = await raw('POST', await commands(c), { body: { command: 'sh', args: quiet, wait: true, logs: true } });
    assert.deepEqual([status, type], [200, 'application/x-ndjson']);
    assert.match(text, /\n\n/);
    assert.ok(ahead > 10_000);
    const lines = text.split('\n');
    assert.ok(lines.every((l) => l === '' || l.startsWith('{')), text);
    const records = lines.filter(Boolean).map((l) => JSON.parse(l));
    assert.equal(records[0].command.exitCode, null);
    assert.equal(records.at(-1).command.exitCode, 0);
    assert.equal(records.slice(1, -1).map((r) => r.data).join(''), 'one\ntwo\n');
  });

  all('a command that says nothing for long', async (c) => {
    const box = await c.fresh();
    const command = await box.runCommand({ cmd: 'sh', args: quiet, detached: true });
    const [done, seen] = await Promise.all([box.runCommand('sh', quiet), command.output()]);
    assert.deepEqual([done.exitCode, await done.stdout(), seen], [0, 'one\ntwo\n', 'one\ntwo\n']);
  });

  all('waiting for a command', async (c) => {
    const box = await c.fresh({ fetch: hastily });
    const done = await box.runCommand('sh', ['-c', 'sleep 8; echo done; exit 3']);
    assert.deepEqual([done.exitCode, await done.stdout()], [3, 'done\n']);
    const command = await box.runCommand({ cmd: 'sh', args: ['-c', 'sleep 8; exit 4'], detached: true });
    const [waited, output] = await Promise.all([command.wait(), command.output()]);
    assert.deepEqual([waited.exitCode, output], [4, '']);
  });

  all('create, snapshot, stop and resume', async (c, sdk) => {
    const box = await c.fresh({ persistent: true, fetch: hastily });
    await sh(box, 'head -c 20000000 /dev/urandom > file');
    const { snapshotId } = await box.snapshot();
    const copy = await c.fresh({ source: { type: 'snapshot', snapshotId }, fetch: hastily });
    assert.equal(await sh(copy, 'stat -c %s file'), '20000000\n');
    await sdk.stop(copy);
    if (sdk.major > 1) assert.equal(await sh(box, 'stat -c %s file'), '20000000\n');
  });

  all('what fails later is no success', async (c) => {
    const source = { type: 'git', url: 'http://git.example.com/private/project.git' };
    const err = await c.fresh({ runtime: 'node24', source }).then(() => assert.fail('it was made'), (e) => e);
    assert.ok(!(err instanceof assert.AssertionError), err.stack);
  });

  after(() => assert.deepEqual(gaveUp, []));

  wire('JSON is padded with spaces', async (c) => {
    const path = await commands(c);
    const start = async (line) => JSON.parse((await raw('POST', path, { body: { command: 'sh', args: ['-c', line] } })).text).command;
    const { id } = await start('for i in $(seq 600); do test -e /tmp/go && break; sleep 0.1; done; exit 5');
    const { status, type, text, ahead } = await raw('GET', `${path}/${id}`, { query: { wait: 'true' }, meanwhile: () => start('touch /tmp/go') });
    assert.deepEqual([status, type], [200, 'application/json']);
    assert.match(text, /^ +\{/);
    assert.equal(JSON.parse(text).command.exitCode, 5);
    assert.ok(ahead > 0);
  });
});
