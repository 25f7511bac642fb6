import assert from 'node:assert/strict';
import { recent, refused, sh, unique } from '../case.mjs';
import { credentials } from '../sdk.mjs';

export default ({ from, sdk }) => {
  const { Drive } = sdk;
  const make = async (c, params) => {
    const drive = await Drive.getOrCreate({ ...credentials, name: unique('drive'), ...params });
    // It may be gone, and a case that failed may have left it attached.
    c.t.after(() => drive.delete().catch((err) => { if (![404, 409].includes(err.response?.status)) throw err; }));
    return drive;
  };
  const again = (drive) => Drive.getOrCreate({ ...credentials, name: drive.name });

  from(3)('Drive: made, found and deleted', async (c) => {
    const drive = await make(c, { maxSize: 1 << 30, region: 'fra1' });
    assert.match(drive.driveId, /./);
    assert.deepEqual([drive.region, drive.maxSize, drive.projectId, drive.currentSessionId, drive.currentSandboxName], ['fra1', 1 << 30, credentials.projectId, undefined, undefined]);
    recent(drive.createdAt, 'createdAt');
    recent(drive.updatedAt, 'updatedAt');
    assert.equal((await again(drive)).driveId, drive.driveId);
    await drive.delete();
    await refused(drive.delete(), 404, 'not_found');
    const anew = await again(drive);
    assert.notEqual(anew.driveId, drive.driveId);
    await anew.delete();
  });

  from(3)('Drive: keeps what sandboxes write', async (c) => {
    const drive = await make(c);
    const box = await c.fresh({ mounts: { '/data': drive } });
    assert.deepEqual(box.mounts, { '/data': { drive: drive.name, mode: 'read-write' } });
    await sh(box, 'echo first > /data/file');
    const attached = await again(drive);
    assert.deepEqual([attached.currentSessionId, attached.currentSandboxName], [box.currentSession().sessionId, box.name]);
    const said = await drive.delete().then(() => assert.fail('it is attached'), (e) => e);
    assert.equal(said.response?.status, 409, said.stack);
    const second = await c.fresh({ mounts: { '/data': drive } }).then(() => assert.fail('it is attached'), (e) => e);
    assert.equal(second.response?.status, 409, second.stack);
    await box.stop();
    assert.equal((await again(drive)).currentSessionId, undefined);

    const reader = await c.fresh({ mounts: { '/copy': drive.snapshot() } });
    assert.deepEqual(reader.mounts, { '/copy': { drive: drive.name, mode: 'snapshot' } });
    assert.equal(await sh(reader, 'cat /copy/file'), 'first\n');
    await reader.runCommand('sh', ['-c', 'echo changed > /copy/file']);
    await reader.stop();
    const writer = await c.fresh({ mounts: { '/data': { drive: drive.name, mode: 'read-write' } } });
    assert.equal(await sh(writer, 'cat /data/file'), 'first\n');
    await writer.stop();
    await refused(c.fresh({ mounts: { '/data': { drive: unique('none'), mode: 'read-write' } } }), 404, 'not_found');
  });

  from(3)('Drive: mounts can be changed', async (c) => {
    const drive = await make(c);
    const box = await c.fresh({ persistent: true });
    await box.update({ mounts: { '/data': drive } });
    assert.equal((await box.runCommand('test', ['-d', '/data'])).exitCode, 1, 'not before the next session');
    await box.stop();
    await sh(box, 'echo x > /data/file');
    await box.update({ mounts: {} });
    assert.deepEqual((await sdk.get(box)).mounts ?? {}, {});
    await box.stop();
    assert.equal((await box.runCommand('test', ['-e', '/data/file'])).exitCode, 1);
  });

  from(3)('Drive.list', async (c) => {
    const prefix = unique('list');
    const made = [];
    for (const letter of ['b', 'c', 'a']) made.push(await make(c, { name: `${prefix}-${letter}` }));
    const list = async (params) => (await (await Drive.list({ ...credentials, namePrefix: prefix, ...params })).toArray()).map((d) => d.name.at(-1)).join('');
    const first = await Drive.list({ ...credentials, limit: 2 });
    assert.ok(first.drives[0] instanceof Drive);
    assert.equal(first.pagination.count, 2);
    assert.equal(await list({ sortBy: 'name', sortOrder: 'asc', limit: 2 }), 'abc');
    assert.equal(await list({ sortBy: 'name', sortOrder: 'desc' }), 'cba');
    assert.equal(await list({ sortBy: 'createdAt', sortOrder: 'asc' }), 'bca');
    assert.equal(await list({}), 'acb');
    assert.equal(await list({ namePrefix: `${prefix}-c` }), 'c');
  });
};
