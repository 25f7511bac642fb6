import assert from 'node:assert/strict';
import { unique } from '../case.mjs';
import { credentials } from '../sdk.mjs';

export default ({ all, only, from, sdk }) => {
  const { Sandbox, Snapshot } = sdk;

  only(1)('list: by pages of time', async (c) => {
    const boxes = [await c.fresh(), await c.fresh(), await c.fresh()];
    const ids = boxes.map((b) => b.sandboxId);
    const { json } = await Sandbox.list({ ...credentials, limit: 100 });
    assert.equal(json.pagination.count, json.sandboxes.length);
    const mine = json.sandboxes.filter((s) => ids.includes(s.id));
    assert.deepEqual(mine.map((s) => s.id), [...ids].reverse(), 'newest first');
    assert.deepEqual([...new Set(mine.map((s) => s.status))], ['running']);

    const seen = [];
    let page;
    for (let next = null; !ids.every((id) => seen.includes(id)); next = page.pagination.next) {
      page = (await Sandbox.list({ ...credentials, limit: 2, ...(next !== null && { until: next }) })).json;
      seen.push(...page.sandboxes.map((s) => s.id));
      assert.ok(page.pagination.next === null || page.sandboxes.length >= 2);
    }
    assert.deepEqual(seen.filter((id) => ids.includes(id)), [...ids].reverse());
    assert.equal(new Set(seen).size, seen.length);
    const since = await Sandbox.list({ ...credentials, since: boxes[1].createdAt });
    assert.ok(since.json.sandboxes.some((s) => s.id === ids[2]) && !since.json.sandboxes.some((s) => s.id === ids[0]), 'since is a bound');
    const later = await Sandbox.list({ ...credentials, until: boxes[0].createdAt });
    assert.ok(!later.json.sandboxes.some((s) => s.id === ids[2]), 'until is a bound');
  });

  from(2)('list: newest first, page by page', async (c) => {
    const tag = unique('tag');
    const boxes = [];
    for (let i = 0; i < 3; i++) boxes.push(await c.fresh({ tags: { page: tag, i: `${i}` } }));
    const names = boxes.map((b) => b.name).reverse();
    const first = await Sandbox.list({ ...credentials, limit: 2, tags: { page: tag } });
    assert.deepEqual(first.sandboxes.map((s) => s.name), names.slice(0, 2));
    assert.equal(first.pagination.count, 2);
    assert.notEqual(first.pagination.next, null);
    assert.deepEqual((await first.toArray()).map((s) => s.name), names);
    const pages = [];
    for await (const page of first.pages()) pages.push(page.sandboxes.length);
    assert.deepEqual(pages, [2, 1]);
    const oldest = await Sandbox.list({ ...credentials, sortOrder: 'asc', tags: { page: tag } });
    assert.deepEqual(oldest.sandboxes.map((s) => s.name), [...names].reverse());
    assert.equal(oldest.pagination.next, null);
    assert.deepEqual((await Sandbox.list({ ...credentials, tags: { i: '1' } })).sandboxes.filter((s) => names.includes(s.name)).map((s) => s.name), [names[1]]);
    assert.deepEqual((await Sandbox.list({ ...credentials, tags: { page: 'none' } })).sandboxes, []);
  });

  from(2)('list: by name', async (c) => {
    const prefix = unique('p');
    for (const letter of ['b', 'c', 'a']) await c.fresh({ name: `${prefix}-${letter}` });
    const list = async (params) => (await (await Sandbox.list({ ...credentials, sortBy: 'name', namePrefix: prefix, ...params })).toArray()).map((s) => s.name.at(-1)).join('');
    assert.equal(await list({ sortOrder: 'asc' }), 'abc');
    assert.equal(await list({ sortOrder: 'desc', limit: 1 }), 'cba');
    assert.equal(await list({ namePrefix: `${prefix}-b` }), 'b');
    assert.equal(await list({ namePrefix: `${prefix}-d` }), '');
  });

  from(2)('list: by the change of status', async (c) => {
    const tag = unique('tag');
    const [a, b] = [await c.fresh({ tags: { s: tag } }), await c.fresh({ tags: { s: tag } })];
    await a.stop();
    const list = await Sandbox.list({ ...credentials, sortBy: 'statusUpdatedAt', tags: { s: tag } });
    assert.deepEqual(list.sandboxes.map((s) => [s.name, s.status]), [[a.name, 'stopped'], [b.name, 'running']]);
  });

  from(2)('listSessions', async (c) => {
    const box = await c.fresh({ persistent: true });
    await box.stop();
    await Sandbox.get({ ...credentials, name: box.name, resume: true });
    const first = await box.listSessions({ limit: 1 });
    assert.equal(first.sessions.length, 1);
    assert.notEqual(first.pagination.next, null);
    const sessions = await first.toArray();
    assert.deepEqual(sessions.map((s) => s.status), ['running', 'stopped']);
    assert.equal(sessions[1].id, box.currentSession().sessionId);
    assert.equal(sessions[0].sourceSnapshotId, box.currentSnapshotId);
    assert.deepEqual((await box.listSessions({ sortOrder: 'asc' })).sessions.map((s) => s.status), ['stopped', 'running']);
  });

  from(2)('listSnapshots and Snapshot.list', async (c) => {
    const box = await c.fresh();
    const made = [(await box.snapshot()).snapshotId, (await box.snapshot()).snapshotId];
    for (const list of [(p) => box.listSnapshots(p), (p) => Snapshot.list({ ...credentials, name: box.name, ...p })]) {
      const first = await list({ limit: 1 });
      assert.deepEqual(first.snapshots.map((s) => s.id), [made[1]]);
      assert.notEqual(first.pagination.next, null);
      assert.deepEqual((await first.toArray()).map((s) => s.id), [...made].reverse());
      assert.deepEqual((await list({ sortOrder: 'asc' })).snapshots.map((s) => s.id), made);
    }
    assert.ok((await Snapshot.list({ ...credentials, limit: 50 })).snapshots.some((s) => s.id === made[0]));
  });

  only(1)('Snapshot.list: by pages of time', async (c) => {
    const box = await c.fresh();
    const { snapshotId } = await box.snapshot();
    const { json } = await Snapshot.list({ ...credentials, limit: 100 });
    assert.equal(json.pagination.count, json.snapshots.length);
    const found = json.snapshots.find((s) => s.id === snapshotId);
    assert.deepEqual([found.sourceSandboxId, found.status], [box.sandboxId, 'created']);
  });

  all('list: only the project', async (c) => {
    await c.box();
    const call = Sandbox.list({ ...credentials, projectId: 'prj_00000000000000000000' });
    const err = await call.then(() => assert.fail('there is no such project'), (e) => e);
    assert.equal(err.response?.status, 404, err.stack);
  });
};
