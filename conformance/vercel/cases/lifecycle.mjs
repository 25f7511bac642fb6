import assert from 'node:assert/strict';
import { awaitOutput, recent, refused, sh, unique } from '../case.mjs';
import { credentials } from '../sdk.mjs';

export default ({ all, only, from, sdk }) => {
  all('create: what a sandbox is like that nothing was asked for', async (c) => {
    const box = c.own(await sdk.Sandbox.create(credentials));
    const session = sdk.session(box);
    assert.equal(box.status, 'running');
    recent(box.createdAt, 'createdAt');
    assert.equal(session.timeout, 300_000);
    assert.equal(box.networkPolicy, 'allow-all');
    assert.equal(box.sourceSnapshotId, undefined);
    assert.equal(box.interactivePort, undefined);
    assert.deepEqual(box.routes, []);
    assert.equal(sdk.cwd(box), '/vercel/sandbox');
    if (sdk.major === 1) {
      assert.match(box.sandboxId, /^sbx_/);
      return;
    }
    assert.match(box.name, /^[A-Za-z0-9_-]{1,128}$/);
    assert.deepEqual([box.persistent, box.region, box.vcpus, box.memory, box.timeout], [true, 'iad1', 2, 4096, 300_000]);
    assert.deepEqual([session.vcpus, session.memory, session.region, session.status], [2, 4096, 'iad1', 'running']);
    assert.match(session.runtime, /./);
    recent(session.requestedAt, 'requestedAt');
    recent(session.startedAt, 'startedAt');
    recent(session.createdAt, 'createdAt');
    recent(session.updatedAt, 'updatedAt');
    recent(box.updatedAt, 'updatedAt');
    recent(box.statusUpdatedAt, 'statusUpdatedAt');
    assert.equal(+box.expiresAt, +session.startedAt + 300_000);
    for (const moment of ['requestedStopAt', 'stoppedAt', 'abortedAt', 'snapshottedAt']) assert.equal(session[moment], undefined, moment);
    assert.equal(session.sourceSnapshotId, undefined);
    assert.equal(box.currentSnapshotId, undefined);
    if (sdk.major > 2) assert.deepEqual([box.failoverRegions, box.networkId, box.mounts ?? {}], [[], undefined, {}]);
  });

  all('create: everything that can be asked for', async (c) => {
    const name = unique('named');
    const box = await c.fresh({
      name, ports: [3000, 8080], timeout: 61_000, resources: { vcpus: 1 }, runtime: 'node24', env: { K: 'v' },
      tags: { env: 'test', team: 'infra' }, snapshotExpiration: 86_400_000, keepLastSnapshots: { count: 2 }, networkPolicy: 'deny-all',
    });
    assert.equal(sdk.session(box).timeout, 61_000);
    assert.equal(box.networkPolicy, 'deny-all');
    assert.equal(await sh(box, 'echo $K'), 'v\n');
    assert.equal(box.routes.length, 2);
    const again = await sdk.get(box);
    assert.equal(again.status, 'running');
    assert.equal(again.domain(8080), box.domain(8080));
    if (sdk.major === 1) return;
    for (const b of [box, again]) {
      assert.deepEqual(
        [b.name, b.timeout, b.vcpus, b.memory, b.runtime, b.persistent, b.tags, b.snapshotExpiration, b.keepLastSnapshots, b.networkPolicy],
        [name, 61_000, 1, 2048, 'node24', false, { env: 'test', team: 'infra' }, 86_400_000, { count: 2, deleteEvicted: true }, 'deny-all'],
      );
    }
    assert.equal(again.currentSession().sessionId, box.currentSession().sessionId);
  });

  for (const [runtime, says] of [['node22', /^v22\./], ['python3.13', /^Python 3\.13\./]]) {
    all(`create: runtime ${runtime}`, async (c) => {
      const box = await c.fresh({ runtime });
      assert.match(await sh(box, runtime.startsWith('node') ? 'node --version' : 'python3 --version'), says);
      if (sdk.major > 1) assert.deepEqual([box.runtime, box.currentSession().runtime], [runtime, runtime]);
    });
  }

  from(2)('create: managed images', async (c) => {
    const box = await c.fresh({ image: 'vercel/sandbox/universal' });
    assert.match(await sh(box, 'node --version; python3 --version'), /^v24\.\d+\.\d+\nPython 3\./);
    assert.match(box.image, /^vercel\/sandbox\/universal/);
    assert.match(await sh(await c.fresh({ image: 'vercel/sandbox/node:22' }), 'node --version'), /^v22\./);
    const said = await refused(c.fresh({ image: 'vercel/sandbox/arch' }), 400, 'bad_request');
    assert.match(said.message, /import/);
  });

  all('create: what is wrong is refused', async (c) => {
    for (const params of [
      { ports: [0] }, { ports: [70000] }, { timeout: 10 }, { resources: { vcpus: -1 } }, { runtime: 'cobol60' },
      { env: { 'A=B': 'x' } }, { source: { type: 'git', url: 'not a url' } }, { source: { type: 'tarball', url: 'file:///etc/passwd' } },
    ]) {
      const said = await refused(c.fresh(params), 400, 'bad_request').catch((err) => { throw new Error(JSON.stringify(params), { cause: err }); });
      assert.doesNotMatch(said.message, /internal/, JSON.stringify(params));
    }
  });

  from(2)('create: what is wrong about names and tags is refused', async (c) => {
    for (const params of [
      { name: 'a b' }, { name: '' + 'n'.repeat(129) }, { name: 'sessions' }, { name: 'snapshots' }, { name: 'drives' },
      { tags: { k: 'v'.repeat(257) } },
    ]) await refused(c.fresh(params), 400, 'bad_request').catch((err) => { throw new Error(JSON.stringify(params), { cause: err }); });
  });

  from(2)('create: a name is taken', async (c) => {
    const box = await c.fresh({ name: unique('taken') });
    const said = await refused(c.fresh({ name: box.name }), 400, 'bad_request');
    assert.match(said.message, /already exists/);
    await sdk.remove(box);
    await c.fresh({ name: box.name });
  });

  from(3)('create: regions and networks are kept', async (c) => {
    const box = await c.fresh({ region: 'fra1', failoverRegions: ['sfo1', 'hnd1'] });
    const again = await sdk.get(box);
    for (const b of [box, again]) assert.deepEqual([b.region, b.failoverRegions, b.currentSession().region], ['fra1', ['sfo1', 'hnd1'], 'fra1']);
    await refused(c.fresh({ region: 'fra1', failoverRegions: ['fra1'] }), 400, 'bad_request');
  });

  all('create: can be aborted', async (c) => {
    await assert.rejects(c.fresh({ signal: AbortSignal.abort() }), (err) => /abort/i.test(`${err.name} ${err.message}`));
  });

  all('stop', async (c) => {
    const box = await c.fresh();
    await sh(box, `node -e 'for (let end = Date.now() + 300; Date.now() < end;);'`);
    const session = sdk.session(box);
    const stopped = await sdk.stop(box);
    assert.equal(stopped.status, 'stopped');
    assert.equal(box.status, 'stopped');
    assert.ok(box.activeCpuUsageMs > 100, `activeCpuUsageMs ${box.activeCpuUsageMs}`);
    assert.ok(box.networkTransfer.ingress >= 0 && box.networkTransfer.egress >= 0);
    assert.equal((await sdk.get(box)).status, 'stopped');
    if (sdk.major === 1) return;
    assert.equal(stopped.snapshot, undefined);
    assert.equal(session, box.currentSession());
    for (const moment of ['stoppedAt', 'startedAt', 'updatedAt']) recent(session[moment], moment);
    assert.ok(session.duration > 200, `duration ${session.duration}`);
    assert.equal(box.expiresAt, undefined);
    const again = await sdk.get(box);
    assert.equal(again.currentSession().sessionId, session.sessionId);
    assert.ok(again.totalActiveCpuDurationMs > 100 && again.totalDurationMs > 200, `${again.totalActiveCpuDurationMs} of ${again.totalDurationMs} ms`);
    assert.ok(again.totalIngressBytes >= 0 && again.totalEgressBytes >= 0);
  });

  all('stop: counts what went over the network', async (c) => {
    const box = await c.fresh();
    await sh(box, 'curl -sSf -o /dev/null http://files.example.com/bytes/200000');
    await sdk.stop(box);
    assert.ok(box.networkTransfer.ingress > 200_000, `ingress ${box.networkTransfer.ingress}`);
    assert.ok(box.networkTransfer.egress > 50, `egress ${box.networkTransfer.egress}`);
  });

  all('stop: once more', async (c) => {
    const box = await c.fresh();
    const session = sdk.session(box);
    const first = await sdk.stop(box);
    const again = await (sdk.major === 1 ? box.stop() : box.stop());
    assert.deepEqual([again.status, again.id], ['stopped', first.id]);
    assert.equal(session.status, 'stopped');
  });

  from(2)('stop: a persistent sandbox is saved', async (c) => {
    const box = await c.fresh({ persistent: true });
    const stopped = await box.stop();
    assert.equal(stopped.snapshot.status, 'created');
    assert.equal(stopped.snapshot.sourceSessionId, stopped.id);
    assert.equal(stopped.snapshot.creationMethod, 'automatic');
    assert.equal(box.currentSnapshotId, stopped.snapshot.id);
    assert.equal((await sdk.get(box)).currentSnapshotId, stopped.snapshot.id);
    const again = await box.stop();
    assert.equal(again.status, 'stopped');
    assert.equal((await box.listSnapshots()).snapshots.length, 1);
  });

  all('stop: at the end of a block', async (c) => {
    const box = await c.fresh();
    await box[Symbol.asyncDispose]();
    if (sdk.major === 1) await box.stop({ blocking: true });
    assert.equal((await sdk.get(box)).status, 'stopped');
  });

  from(2)('delete', async (c) => {
    const box = await c.fresh();
    await box.delete();
    await refused(sdk.get(box), 404, 'not_found');
    await refused(box.delete(), 404, 'not_found');
    await refused(box.runCommand('true'), 404, 'not_found');
  });

  all('extendTimeout', async (c) => {
    const box = await c.fresh({ timeout: 60_000 });
    await box.extendTimeout(300_000);
    assert.equal(sdk.session(box).timeout, 360_000);
    await refused(box.extendTimeout(5 * 86_400_000), 400, 'sandbox_timeout_invalid');
    assert.equal(sdk.session(await sdk.get(box)).timeout, 360_000);
    if (sdk.major > 1) assert.equal(+box.expiresAt, +box.currentSession().startedAt + 360_000);
  });

  only(1)('a sandbox whose time is up has stopped', async (c) => {
    const box = await c.fresh({ timeout: 1500 });
    await box.runCommand('sleep', ['600']).catch(() => {}); // ends with the sandbox
    await box.stop({ blocking: true });
    await refused(box.runCommand('true'), 410, 'sandbox_stopped');
    await refused(box.mkDir('/tmp/x'), 410, 'sandbox_stopped');
    await refused(box.extendTimeout(60_000), 410, 'sandbox_stopped');
  });

  from(2)('a sandbox whose time is up is saved, and goes on', async (c) => {
    const box = await c.fresh({ timeout: 2500, persistent: true });
    const first = box.currentSession().sessionId;
    await box.writeFiles([{ path: 'kept.txt', content: 'kept' }]);
    await box.currentSession().runCommand('sleep', ['600']).catch(() => {}); // ends with the session
    await box.update({ timeout: 300_000 }); // of the next one
    assert.equal(await sh(box, 'cat kept.txt'), 'kept');
    assert.notEqual(box.currentSession().sessionId, first);
  });

  all('domain: only of ports', async (c) => {
    const box = await c.box();
    assert.throws(() => box.domain(3000), /3000/);
  });

  only(1)('get: unknown', async () => {
    await refused(sdk.Sandbox.get({ ...credentials, sandboxId: 'sbx_00000000000000000000' }), 404, 'not_found');
  });

  from(2)('get: unknown', async () => {
    await refused(sdk.Sandbox.get({ ...credentials, name: unique('nobody') }), 404, 'not_found');
  });

  from(2)('interactive terminals are offered', async (c) => {
    const box = await c.fresh({ __interactive: true });
    assert.ok(box.interactivePort > 0);
    const { url, token } = await box.openInteractive();
    assert.match(url, /^wss?:\/\/[^?]+$/);
    assert.ok(token.length > 10);
    assert.ok(box.currentSession().interactivePort > 0);
    assert.ok((await (await box.currentSession()).openInteractive()).token !== token);
  });

  all('a server that was started stays until the sandbox stops', async (c) => {
    const box = await c.fresh();
    const command = await box.runCommand({ cmd: 'sh', args: ['-c', 'echo up; exec sleep 600'], detached: true });
    await awaitOutput(command, 'up');
    const again = await sdk.get(box);
    assert.equal((await again.getCommand(command.cmdId)).exitCode, null);
  });
};
