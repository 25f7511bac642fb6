import assert from 'node:assert/strict';
import { recent, refused, sh, unique } from '../case.mjs';
import { credentials } from '../sdk.mjs';

const day = 86_400_000;

export default ({ all, only, from, sdk }) => {
  const { Sandbox, Snapshot } = sdk;
  const restored = (c, snapshotId, params) => c.fresh({ ...params, source: { type: 'snapshot', snapshotId } });
  const ended = (box) => sdk.session(box).status;

  all('snapshot: what is kept', async (c) => {
    const box = await c.fresh();
    await sh(box, `mkdir a && echo content > a/file && ln -s a/file link && printf '#!/bin/sh\\necho it runs\\n' > run && chmod 750 run
      echo temporary > /tmp/kept && sudo sh -c 'echo of root > /etc/kept'`);
    const snapshot = await box.snapshot();
    assert.ok(snapshot instanceof Snapshot);
    assert.match(snapshot.snapshotId, /^snap_/);
    assert.equal(snapshot.status, 'created');
    assert.ok(snapshot.sizeBytes > 0, `sizeBytes ${snapshot.sizeBytes}`);
    recent(snapshot.createdAt, 'createdAt');
    assert.equal(sdk.major === 1 ? snapshot.sourceSandboxId : snapshot.sourceSessionId, sdk.sessionId(box));
    assert.ok(snapshot.expiresAt > new Date(Date.now() + 6 * day), `expiresAt ${snapshot.expiresAt}`);
    assert.match(ended(box), /^(stopping|snapshotting|stopped)$/);
    if (sdk.major > 1) recent(snapshot.updatedAt, 'updatedAt');
    if (sdk.major > 2) assert.deepEqual(snapshot.regions, ['iad1']);

    const copies = await Promise.all([restored(c, snapshot.snapshotId), restored(c, snapshot.snapshotId)]);
    for (const copy of copies) {
      assert.equal(copy.sourceSnapshotId, snapshot.snapshotId);
      assert.equal(await sh(copy, 'cat link /tmp/kept /etc/kept; ./run; stat -c %a run; readlink link'), 'content\ntemporary\nof root\nit runs\n750\na/file\n');
    }
    await sh(copies[0], 'echo changed > a/file');
    assert.equal(await sh(copies[1], 'cat a/file'), 'content\n');
  });

  all('snapshot: when it expires', async (c) => {
    const [never, later] = await Promise.all([{ expiration: 0 }, { expiration: 3 * day }].map(async (opts) => (await c.fresh()).snapshot(opts)));
    assert.equal(never.expiresAt, undefined);
    assert.ok(Math.abs(later.expiresAt - later.createdAt - 3 * day) < 5000, `${later.expiresAt}`);
  });

  all('Snapshot.get and delete', async (c) => {
    const snapshot = await (await c.fresh()).snapshot();
    const again = await sdk.getSnapshot(snapshot.snapshotId);
    assert.deepEqual(
      [again.snapshotId, again.status, again.sizeBytes, +again.createdAt, +again.expiresAt],
      [snapshot.snapshotId, 'created', snapshot.sizeBytes, +snapshot.createdAt, +snapshot.expiresAt],
    );
    await again.delete();
    assert.equal(again.status, 'deleted');
    assert.equal((await sdk.getSnapshot(snapshot.snapshotId)).status, 'deleted');
    await refused(restored(c, snapshot.snapshotId), 410, 'snapshot_not_found');
  });

  all('Snapshot.get and delete: unknown', async (c) => {
    await refused(sdk.getSnapshot('snap_00000000000000000000'), 404, 'not_found');
    await refused(restored(c, 'snap_00000000000000000000'), 404, 'not_found');
  });

  only(1)('snapshot: of a sandbox that stopped', async (c) => {
    const box = await c.fresh();
    await box.stop({ blocking: true });
    await refused(box.snapshot(), 410, 'sandbox_stopped');
  });

  from(2)('snapshot: of a sandbox that stopped starts it again', async (c) => {
    const box = await c.fresh();
    await sh(box, 'echo kept > file');
    const first = await box.snapshot();
    const second = await box.snapshot();
    assert.notEqual(first.snapshotId, second.snapshotId);
    const { snapshots } = await box.listSnapshots();
    assert.deepEqual(snapshots.map((s) => [s.id, s.parentId, s.creationMethod]), [
      [second.snapshotId, first.snapshotId, 'manual'], [first.snapshotId, undefined, 'manual'],
    ]);
    assert.equal((await sdk.get(box)).currentSnapshotId, second.snapshotId);
    // A sandbox that is not persistent goes on from it all the same.
    assert.equal(await sh(box, 'cat file'), 'kept\n');
    assert.equal(box.sourceSnapshotId, second.snapshotId);
  });

  from(2)('snapshot: one is all that comes of it', async (c) => {
    const box = await c.fresh({ persistent: true });
    const { snapshotId } = await box.snapshot();
    await box.stop();
    assert.deepEqual((await box.listSnapshots()).snapshots.map((s) => s.id), [snapshotId]);
  });

  from(2)('Snapshot.tree', async (c) => {
    const box = await c.fresh();
    const line = [];
    for (let i = 0; i < 3; i++) line.push((await box.snapshot()).snapshotId);
    const branch = (await (await restored(c, line[0])).snapshot()).snapshotId;
    const tree = (params) => Snapshot.tree({ ...credentials, ...params });
    const up = await tree({ snapshotId: line[2], sortOrder: 'desc' });
    const ids = (nodes) => nodes.map((n) => n.snapshot.id);
    assert.equal(up.anchor?.snapshot.id, line[2]);
    assert.deepEqual(ids(await up.toArray()).filter((id) => id !== line[2]), [line[1], line[0]]);
    const second = (await up.toArray()).find((n) => n.snapshot.id === line[1]);
    assert.deepEqual([second.siblings.map((s) => s.id), second.count], [[branch], '2']);
    const down = await tree({ snapshotId: line[0], sortOrder: 'asc' });
    const below = ids(await down.toArray());
    for (const id of [line[1], line[2]]) assert.ok(below.includes(id) || below.includes(branch), `${id} in ${below}`);
    const paged = ids(await (await tree({ snapshotId: line[2], sortOrder: 'desc', limit: 1 })).toArray());
    assert.deepEqual(paged.filter((id) => id !== line[2]), [line[1], line[0]]);
    await refused(tree({ snapshotId: 'snap_00000000000000000000' }), 404, 'not_found');
  });

  from(2)('snapshots: only the last are kept', async (c) => {
    const box = await c.fresh({ keepLastSnapshots: { count: 1, expiration: 2 * day }, snapshotExpiration: day });
    assert.deepEqual(box.keepLastSnapshots, { count: 1, expiration: 2 * day, deleteEvicted: true });
    const [first, second] = [await box.snapshot(), await box.snapshot()];
    assert.equal((await sdk.getSnapshot(first.snapshotId)).status, 'deleted');
    const kept = await sdk.getSnapshot(second.snapshotId);
    assert.equal(kept.status, 'created');
    assert.ok(Math.abs(kept.expiresAt - kept.createdAt - 2 * day) < 5000, `${kept.expiresAt}`);
  });

  from(2)('snapshots: the sandbox says when they expire', async (c) => {
    const box = await c.fresh({ snapshotExpiration: 0, persistent: true });
    assert.equal(box.snapshotExpiration, 0);
    const { snapshot } = await box.stop();
    assert.equal(snapshot.expiresAt, undefined);
  });

  from(3)('delete: with the snapshots that nothing else uses', async (c) => {
    const box = await c.fresh({ persistent: true });
    const used = (await box.snapshot()).snapshotId;
    await c.fresh({ persistent: true, name: unique('user'), source: { type: 'snapshot', snapshotId: used } });
    const orphan = (await box.snapshot()).snapshotId;
    await box.delete({ deleteOrphanSnapshots: true });
    assert.equal((await sdk.getSnapshot(used)).status, 'created');
    // It is done while nobody waits.
    for (let status = ''; status !== 'deleted';) {
      ({ status } = await sdk.getSnapshot(orphan).catch((err) => (err.response?.status === 404 ? { status: 'deleted' } : Promise.reject(err))));
      c.signal.throwIfAborted();
    }
  });

  from(2)('delete: snapshots stay', async (c) => {
    const box = await c.fresh();
    await sh(box, 'echo kept > file');
    const { snapshotId } = await box.snapshot();
    await box.delete();
    assert.equal((await sdk.getSnapshot(snapshotId)).status, 'created');
    assert.equal(await sh(await restored(c, snapshotId), 'cat file'), 'kept\n');
  });
};
