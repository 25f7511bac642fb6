// What one version of the SDK made is there for the others, and for cay's own API.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Case, sh, unique } from './case.mjs';
import { credentials, load } from './sdk.mjs';
import { world } from './world.mjs';

const [v1, v2, v3] = [await load('sandbox-v1'), await load('sandbox-v2'), await load('sandbox-v3')];

async function native(path, init) {
  const answer = await fetch(`${world.url}/v1${path}`, { ...init, headers: { authorization: `Bearer ${world.token}`, 'content-type': 'application/json' } });
  const said = await answer.json();
  assert.ok(answer.ok, `${path}: ${answer.status} ${JSON.stringify(said)}`);
  return said;
}

describe('versions', { concurrency: 3 }, () => {
  const each = (name, run) => test(name, (t) => run((sdk) => new Case(sdk, t)));

  each('a sandbox of version 3', async (of) => {
    const box = await of(v3).fresh({ name: unique('three'), env: { K: 'v' } });
    await box.writeFiles([{ path: 'file', content: 'of version 3' }]);
    const command = await box.runCommand({ cmd: 'sh', args: ['-c', 'echo $K; exec sleep 600'], detached: true });

    const two = await v2.Sandbox.get({ ...credentials, name: box.name });
    assert.equal(await sh(two, 'cat file'), 'of version 3');
    const one = await v1.Sandbox.get({ ...credentials, sandboxId: box.currentSession().sessionId });
    assert.equal((await one.readFileToBuffer({ path: 'file' })).toString(), 'of version 3');
    const seen = await one.getCommand(command.cmdId);
    await seen.kill();
    assert.deepEqual([(await command.wait()).exitCode, await seen.stdout()], [143, 'v\n']);

    const ours = await native(`/sandboxes/${box.name}`);
    assert.deepEqual([ours.name, ours.status, ours.project_id], [box.name, 'running', credentials.projectId]);
    await one.stop({ blocking: true });
    assert.equal((await v3.get(box)).status, 'stopped');
    assert.equal((await native(`/sandboxes/${ours.id}`)).status, 'stopped');
  });

  each('a sandbox of version 1', async (of) => {
    const box = await of(v1).fresh();
    await box.writeFiles([{ path: 'file', content: 'of version 1' }]);
    const { name, status } = await native(`/sandboxes/${box.sandboxId}`);
    assert.equal(status, 'running');
    const { sandboxes } = await v3.Sandbox.list({ ...credentials });
    assert.ok(sandboxes.some((s) => s.name === name), `${name} is not in the list`);
    const three = await v3.Sandbox.get({ ...credentials, name });
    assert.equal(three.persistent, false);
    assert.equal(await sh(three, 'cat file'), 'of version 1');
  });

  each('a sandbox of our own', async (of) => {
    const name = unique('ours');
    await native('/sandboxes', { method: 'POST', body: JSON.stringify({ name, project_id: credentials.projectId, env: { K: 'native' } }) });
    const three = of(v3).own(await v3.Sandbox.get({ ...credentials, name }));
    assert.equal(await sh(three, 'echo $K'), 'native\n');
    assert.equal(await sh(await v2.Sandbox.get({ ...credentials, name }), 'echo $K'), 'native\n');
  });

  each('snapshots', async (of) => {
    const sources = { 1: await of(v1).fresh(), 2: await of(v2).fresh(), 3: await of(v3).fresh() };
    const snapshots = {};
    for (const [major, box] of Object.entries(sources)) {
      await box.writeFiles([{ path: 'file', content: `of version ${major}` }]);
      snapshots[major] = (await box.snapshot()).snapshotId;
    }
    for (const [major, snapshotId] of Object.entries(snapshots)) {
      for (const sdk of [v1, v2, v3]) {
        assert.equal((await sdk.getSnapshot(snapshotId)).status, 'created');
        const copy = await of(sdk).fresh({ source: { type: 'snapshot', snapshotId } });
        assert.equal(await sh(copy, 'cat file'), `of version ${major}`, sdk.alias);
      }
    }
    await (await v1.getSnapshot(snapshots[3])).delete();
    assert.equal((await v3.getSnapshot(snapshots[3])).status, 'deleted');
  });
});
