import assert from 'node:assert/strict';
import { WORKFLOW_DESERIALIZE, WORKFLOW_SERIALIZE } from '@workflow/serde';
import { sh, unique } from '../case.mjs';
import { credentials } from '../sdk.mjs';
import { world } from '../world.mjs';

// Objects that cross the border of a workflow's step come back as data, find
// their credentials in the environment, and work.
process.env.VERCEL_OIDC_TOKEN = world.jwt;

function across(instance) {
  const cls = instance.constructor[WORKFLOW_SERIALIZE] ? instance.constructor : Object.getPrototypeOf(instance.constructor);
  const data = JSON.parse(JSON.stringify(cls[WORKFLOW_SERIALIZE](instance)));
  assert.doesNotMatch(JSON.stringify(data), new RegExp(`${world.token}|injected`));
  return cls[WORKFLOW_DESERIALIZE](data);
}

export default ({ all, from, sdk }) => {
  const { Sandbox } = sdk;

  all('credentials: a token in the shape of a JWT', async (c) => {
    const box = c.own(await Sandbox.create(sdk.major > 1 ? { persistent: false } : {}));
    assert.equal(await sh(box, 'echo made'), 'made\n');
    assert.equal((await sdk.get(box)).status, 'running', 'others see it');
  });

  all('credentials: a team and a project by their names', async (c) => {
    const named = { token: world.token, teamId: world.name, projectId: world.name };
    const box = c.own(await Sandbox.create({ ...named, ...(sdk.major > 1 && { persistent: false }) }));
    assert.equal((await sdk.get(box)).status, 'running');
    const listed = await Sandbox.list({ ...named, limit: 100 });
    const id = sdk.major === 1 ? 'sandboxId' : 'name';
    assert.ok((listed.json ?? listed).sandboxes.some((s) => (s.name ?? s.id) === box[id]));
  });

  all('serialization: a sandbox', async (c) => {
    const policy = { allow: { 'api.example.com': [{ transform: [{ headers: { 'x-key': 'injected' } }] }] } };
    const box = await c.fresh({ ports: [3000], networkPolicy: policy });
    const copy = across(box);
    assert.ok(copy instanceof Sandbox);
    assert.deepEqual(
      [copy.status, copy.domain(3000), sdk.sessionId(copy), sdk.session(copy).timeout, copy.networkPolicy],
      [box.status, box.domain(3000), sdk.sessionId(box), sdk.session(box).timeout, box.networkPolicy],
    );
    assert.equal(await sh(copy, 'echo from the copy'), 'from the copy\n');
    await copy.writeFiles([{ path: 'x', content: 'written' }]);
    assert.equal((await box.readFileToBuffer({ path: 'x' })).toString(), 'written');
    await copy.stop();
  });

  all('serialization: commands', async (c) => {
    const box = await c.box();
    const running = await box.runCommand({ cmd: 'sh', args: ['-c', 'echo out; echo err >&2; sleep 0.3; exit 6'], detached: true });
    const copy = across(running);
    assert.ok(copy instanceof sdk.Command && !(copy instanceof sdk.CommandFinished));
    const finished = await copy.wait();
    assert.equal(finished.exitCode, 6);
    assert.equal(await copy.stdout(), 'out\n');
    const done = across(finished);
    assert.ok(done instanceof sdk.CommandFinished);
    assert.deepEqual([done.exitCode, done.cmdId, await done.stderr()], [6, running.cmdId, 'err\n']);
    const killed = across(await box.runCommand({ cmd: 'sleep', args: ['600'], detached: true }));
    await killed.kill();
    assert.equal((await killed.wait()).exitCode, 143);
    // What was read goes along.
    const read = await box.runCommand('echo', ['cached']);
    await read.stdout();
    assert.equal(await across(read).stdout(), 'cached\n');
  });

  all('serialization: a snapshot', async (c) => {
    const snapshot = await (await c.fresh()).snapshot();
    const copy = across(snapshot);
    assert.deepEqual([copy.snapshotId, copy.status, +copy.createdAt], [snapshot.snapshotId, 'created', +snapshot.createdAt]);
    await copy.delete();
    assert.equal((await sdk.getSnapshot(snapshot.snapshotId)).status, 'deleted');
  });

  from(2)('serialization: a session', async (c) => {
    const session = (await c.box()).currentSession();
    const copy = across(session);
    assert.deepEqual([copy.sessionId, copy.status], [session.sessionId, 'running']);
    assert.equal(await (await copy.runCommand('echo', ['copied'])).stdout(), 'copied\n');
  });

  from(2)('serialization: a sandbox that sleeps', async (c) => {
    const box = await c.fresh({ persistent: true });
    await sh(box, 'echo kept > file');
    await box.stop();
    assert.equal(await sh(across(box), 'cat file'), 'kept\n');
  });

  from(3)('serialization: a drive', async () => {
    const drive = await sdk.Drive.getOrCreate({ ...credentials, name: unique('drive') });
    const copy = across(drive);
    assert.deepEqual([copy.driveId, copy.name, copy.maxSize], [drive.driveId, drive.name, drive.maxSize]);
    await copy.delete();
  });
};
