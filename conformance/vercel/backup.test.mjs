// Sandboxes and snapshots on both sides of a backup. CAY_PHASE says which side this is;
// CAY_KEPT has the ids that the first side has printed.
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { test } from 'node:test';
import { sh } from './case.mjs';
import { load } from './sdk.mjs';
import { world } from './world.mjs';

const sdk = await load('sandbox-v3');
const { Sandbox, Snapshot } = sdk;
const withJWT = { token: world.jwt, teamId: world.teamId, projectId: world.projectId };

if (process.env.CAY_PHASE === 'before') {
  test('before the backup', async () => {
    const box = await sdk.create({ name: 'kept', timeout: 300_000, env: { SECRET: 's3cret' }, tags: { stage: 'test' } });
    await sh(box, 'echo saved > file');
    await sdk.stop(box);
    const source = await sdk.create({ name: 'source', timeout: 300_000 });
    await sh(source, 'echo snapshot > file');
    const snapshot = await source.snapshot();
    const running = await sdk.create({ name: 'running', timeout: 300_000 });
    await sh(running, 'echo unsaved > file');
    writeFileSync(process.env.CAY_KEPT, JSON.stringify({ snapshotId: snapshot.snapshotId, sizeBytes: snapshot.sizeBytes }));
  });
} else {
  const { readFileSync } = await import('node:fs');
  const kept = JSON.parse(readFileSync(process.env.CAY_KEPT, 'utf8'));

  test('its sandboxes are listed, with the token of before', async () => {
    const { sandboxes } = await Sandbox.list({ token: world.token, teamId: world.teamId, projectId: world.projectId });
    assert.deepEqual(sandboxes.map((s) => s.name).sort(), ['kept', 'running', 'source']);
  });

  test('a sandbox has its files, its environment and its tags', async () => {
    const box = await Sandbox.get({ ...withJWT, name: 'kept' });
    assert.equal(await sh(box, 'cat file; echo $SECRET'), 'saved\ns3cret\n');
    assert.deepEqual(box.tags, { stage: 'test' });
  });

  test('a sandbox that ran starts again, without what was not saved', async () => {
    const box = await Sandbox.get({ ...withJWT, name: 'running' });
    assert.equal(await sh(box, 'cat file 2>/dev/null; echo runs'), 'runs\n');
  });

  test('a snapshot is there, and sandboxes start from it', async () => {
    const snapshot = await Snapshot.get({ ...withJWT, snapshotId: kept.snapshotId });
    assert.deepEqual([snapshot.status, snapshot.sizeBytes], ['created', kept.sizeBytes]);
    const box = await sdk.create({ source: { type: 'snapshot', snapshotId: kept.snapshotId }, timeout: 300_000, persistent: false });
    assert.equal(await sh(box, 'cat file'), 'snapshot\n');
  });
}
