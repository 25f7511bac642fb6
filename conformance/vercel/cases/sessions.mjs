import assert from 'node:assert/strict';
import { refused, sh, unique } from '../case.mjs';
import { credentials } from '../sdk.mjs';

const day = 86_400_000;

export default ({ from, sdk }) => {
  const { Sandbox, Snapshot } = sdk;
  const stopped = async (c, params) => {
    const box = await c.fresh({ persistent: true, name: unique('stopped'), ...params });
    await sh(box, 'echo kept > file');
    await box.stop();
    return box;
  };

  from(2)('resume: each call starts a stopped sandbox', async (c) => {
    const calls = {
      runCommand: async (box) => assert.equal(await (await box.runCommand('cat', ['file'])).stdout(), 'kept\n'),
      readFileToBuffer: async (box) => assert.equal((await box.readFileToBuffer({ path: 'file' })).toString(), 'kept\n'),
      readFile: async (box) => (await box.readFile({ path: 'file' })).resume(),
      writeFiles: (box) => box.writeFiles([{ path: 'other', content: 'x' }]),
      mkDir: (box) => box.mkDir('dir'),
      updateNetworkPolicy: (box) => box.updateNetworkPolicy('deny-all'),
      extendTimeout: (box) => box.extendTimeout(60_000),
      openInteractive: (box) => box.openInteractive(),
    };
    await Promise.all(Object.entries(calls).map(async ([name, call]) => {
      const box = await stopped(c);
      const before = box.currentSession().sessionId;
      await call(box);
      assert.equal(box.status, 'running', name);
      assert.notEqual(box.currentSession().sessionId, before, name);
    }));
  });

  from(2)('resume: onResume, and what tells it', async (c) => {
    let count = 0;
    const box = await c.fresh({ persistent: true, onResume: async (b) => { count++; assert.equal(b.status, 'running'); } });
    await box.stop();
    await Promise.all([box.runCommand('true'), box.runCommand('true'), box.mkDir('d')]);
    assert.equal(count, 1);
    let called = 0;
    const onResume = async () => { called++; };
    await Sandbox.get({ ...credentials, name: box.name, resume: true, onResume });
    assert.equal(called, 0, 'it runs already');
    await box.stop();
    const quiet = await Sandbox.get({ ...credentials, name: box.name, resume: false, onResume });
    assert.deepEqual([quiet.status, called], ['stopped', 0]);
    const woken = await Sandbox.get({ ...credentials, name: box.name, resume: true, onResume });
    assert.deepEqual([woken.status, called, woken.sourceSnapshotId], ['running', 1, box.currentSnapshotId]);
  });

  from(2)('resume: several at once make one session', async (c) => {
    const box = await stopped(c);
    const got = await Promise.all(Array.from({ length: 5 }, () => Sandbox.get({ ...credentials, name: box.name, resume: true })));
    assert.equal(new Set(got.map((b) => b.currentSession().sessionId)).size, 1);
    assert.equal((await box.listSessions()).sessions.length, 2);
  });

  from(2)('resume: from a session that takes long to end, and says so', async (c) => {
    // What a session says for why it does nothing; until then there is a directory.
    async function refusal(session) {
      for (;;) {
        const err = await session.mkDir('/tmp').then(() => assert.fail('there are two'), (e) => e);
        if (err.response?.status !== 400) return `${err.response?.status} ${err.json?.error.code}`;
      }
    }
    const box = await c.fresh({ persistent: true });
    await sh(box, 'head -c 150000000 /dev/urandom > large');
    for (const [end, code] of [['snapshot', 'sandbox_snapshotting'], ['stop', 'sandbox_stopping']]) {
      const other = await sdk.get(box);
      const ending = other[end]();
      assert.equal(await refusal(other.currentSession()), `422 ${code}`);
      assert.equal(await sh(box, 'stat -c %s large'), '150000000\n');
      await ending;
    }
  });

  from(2)('resume: a sandbox that is not persistent starts anew', async (c) => {
    const box = await c.fresh();
    await sh(box, 'echo lost > file');
    await box.stop();
    assert.equal((await box.runCommand('test', ['-e', 'file'])).exitCode, 1);
    assert.equal(box.sourceSnapshotId, undefined);
  });

  from(2)('resume: without its snapshot', async (c) => {
    const box = await stopped(c);
    await (await sdk.getSnapshot(box.currentSnapshotId)).delete();
    await refused(Sandbox.get({ ...credentials, name: box.name, resume: true }), 410, 'snapshot_not_found');
    assert.equal((await sdk.get(box)).status, 'stopped');
  });

  from(2)('getOrCreate', async (c) => {
    const name = unique('either');
    const made = [];
    const onCreate = async (box) => { made.push(box); };
    const params = { ...credentials, name, persistent: true, onCreate };
    const first = c.own(await Sandbox.getOrCreate(params));
    assert.deepEqual([first.name, first.status, made.length, made[0] === first], [name, 'running', 1, true]);
    const second = await Sandbox.getOrCreate(params);
    assert.deepEqual([second.currentSession().sessionId, made.length], [first.currentSession().sessionId, 1]);
    await first.stop();
    assert.equal((await Sandbox.getOrCreate({ ...params, resume: false })).status, 'stopped');
    assert.equal((await Sandbox.getOrCreate({ ...params, resume: true })).status, 'running');
    const unnamed = c.own(await Sandbox.getOrCreate({ ...credentials, persistent: false, onCreate }));
    assert.deepEqual([made.length, made[1] === unnamed], [2, true]);
  });

  from(2)('getOrCreate: again when the snapshot is gone', async (c) => {
    const box = await stopped(c);
    await (await Snapshot.get({ ...credentials, snapshotId: box.currentSnapshotId })).delete();
    let made = 0;
    const again = await Sandbox.getOrCreate({ ...credentials, name: box.name, persistent: true, resume: true, onCreate: async () => { made++; } });
    assert.deepEqual([again.name, again.status, made], [box.name, 'running', 1]);
    assert.notEqual(again.currentSession().sessionId, box.currentSession().sessionId);
    assert.equal((await again.runCommand('test', ['-e', 'file'])).exitCode, 1);
  });

  from(2)('fork', async (c) => {
    const source = await c.fresh({
      persistent: true, name: unique('source'), timeout: 120_000, env: { K: 'source', ONLY: 'source' }, tags: { from: 'source' }, ports: [3000],
      resources: { vcpus: 1 }, networkPolicy: { allow: ['api.example.com'] }, snapshotExpiration: 2 * day, runtime: 'node24',
    });
    await sh(source, 'echo kept > file');
    await source.stop();
    const fork = c.own(await Sandbox.fork({ ...credentials, sourceSandbox: source.name }));
    assert.notEqual(fork.name, source.name);
    assert.deepEqual(
      [fork.status, fork.sourceSnapshotId, fork.timeout, fork.vcpus, fork.tags, fork.networkPolicy, fork.snapshotExpiration, fork.persistent],
      ['running', source.currentSnapshotId, 120_000, 1, { from: 'source' }, { allow: ['api.example.com'] }, 2 * day, true],
    );
    assert.equal(await sh(fork, 'cat file; echo $K $ONLY'), 'kept\nsource source\n');
    assert.match(fork.domain(3000), /^https:/);
    await sh(fork, 'echo changed > file');
    assert.equal(await sh(source, 'cat file'), 'kept\n');

    const other = c.own(await Sandbox.fork({
      ...credentials, sourceSandbox: source.name, name: unique('fork'), timeout: 90_000, env: { K: 'fork' }, tags: { to: 'fork' },
      ports: [4000], persistent: false, networkPolicy: 'deny-all', resources: { vcpus: 2 },
    }));
    assert.deepEqual([other.timeout, other.tags, other.persistent, other.networkPolicy, other.vcpus], [90_000, { to: 'fork' }, false, 'deny-all', 2]);
    assert.equal(await sh(other, 'cat file; echo $K:$ONLY'), 'kept\nfork:\n');
    assert.throws(() => other.domain(3000));
    assert.match(other.domain(4000), /^https:/);
    await refused(Sandbox.fork({ ...credentials, sourceSandbox: unique('nobody') }), 404, 'not_found');
    await refused(Sandbox.fork({ ...credentials, sourceSandbox: source.name, name: other.name }), 400, 'bad_request');
  });

  from(2)('fork: of what has no snapshot', async (c) => {
    const source = await c.fresh();
    await sh(source, 'echo live > file');
    const fork = c.own(await Sandbox.fork({ ...credentials, sourceSandbox: source.name }));
    assert.equal((await fork.runCommand('test', ['-e', 'file'])).exitCode, 1, 'the live disk is not copied');
    assert.equal(fork.sourceSnapshotId, undefined);
  });

  from(2)('update: everything', async (c) => {
    const box = await c.fresh({ persistent: true, timeout: 60_000, keepLastSnapshots: { count: 3 }, tags: { a: '1' } });
    await box.stop();
    const { snapshotId } = await box.snapshot();
    const retention = { count: 5, expiration: 3 * day, deleteEvicted: false };
    await box.update({
      resources: { vcpus: 1 }, timeout: 70_000, persistent: false, snapshotExpiration: 2 * day, keepLastSnapshots: retention,
      currentSnapshotId: snapshotId, tags: { b: '2' }, networkPolicy: 'deny-all', ports: [3000],
    });
    for (const b of [box, await sdk.get(box)]) {
      assert.deepEqual(
        [b.vcpus, b.memory, b.timeout, b.persistent, b.snapshotExpiration, b.keepLastSnapshots, b.currentSnapshotId, b.tags, b.networkPolicy],
        [1, 2048, 70_000, false, 2 * day, retention, snapshotId, { b: '2' }, 'deny-all'],
      );
    }
    await box.update({ keepLastSnapshots: null, tags: {} });
    const cleared = await sdk.get(box);
    assert.deepEqual([cleared.keepLastSnapshots, cleared.tags ?? {}], [undefined, {}]);
    assert.equal(await sh(box, 'echo it runs'), 'it runs\n');
    assert.equal(box.currentSession().vcpus, 1);
    assert.equal(box.currentSession().timeout, 70_000);
    await refused(box.update({ currentSnapshotId: 'snap_00000000000000000000' }), 404, 'not_found');
    await refused(box.update({ timeout: 10 }), 400, 'bad_request');
  });

  from(2)('update: a longer timeout is the running session\'s, too', async (c) => {
    const box = await c.fresh({ timeout: 60_000 });
    await box.update({ timeout: 200_000 });
    assert.deepEqual([box.timeout, box.currentSession().timeout], [200_000, 200_000]);
    await box.update({ timeout: 100_000 });
    assert.deepEqual([box.timeout, box.currentSession().timeout], [100_000, 200_000]);
  });

  from(2)('update: back to an earlier snapshot', async (c) => {
    const box = await c.fresh({ persistent: true });
    await sh(box, 'echo one > file');
    const first = await box.snapshot();
    await sh(box, 'echo two > file');
    await box.stop();
    await box.update({ currentSnapshotId: first.snapshotId });
    assert.equal(await sh(box, 'cat file'), 'one\n');
  });

  from(3)('update: regions and networks', async (c) => {
    const box = await c.fresh();
    await box.update({ region: 'fra1', failoverRegions: ['sfo1'] });
    assert.deepEqual([box.region, box.failoverRegions], ['fra1', ['sfo1']]);
    await box.update({ failoverRegions: [] });
    assert.deepEqual((await sdk.get(box)).failoverRegions, []);
  });
};
