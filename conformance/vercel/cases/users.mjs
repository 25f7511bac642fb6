import assert from 'node:assert/strict';
import { readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { awaitOutput, sh, text } from '../case.mjs';

export default ({ from, sdk }) => {
  from(2)('users: commands run as they are', async (c) => {
    const box = await c.fresh();
    const alice = await box.createUser('alice');
    assert.ok(alice instanceof sdk.SandboxUser);
    assert.deepEqual([alice.username, alice.homeDir], ['alice', '/home/alice']);
    assert.equal(await (await alice.runCommand('whoami')).stdout(), 'alice\n');
    assert.equal(await (await alice.runCommand('pwd')).stdout(), '/home/alice\n');
    assert.equal(await (await alice.runCommand({ cmd: 'sh', args: ['-c', 'echo $K; pwd'], env: { K: 'a b' }, cwd: '/tmp' })).stdout(), 'a b\n/tmp\n');
    assert.equal(await (await alice.runCommand({ cmd: 'whoami', sudo: true })).stdout(), 'root\n');
    assert.equal(await (await box.asUser('root').runCommand('sh', ['-c', 'whoami; pwd'])).stdout(), 'root\n/root\n');
    // A user that was made has no rights of root.
    assert.notEqual((await alice.runCommand('sudo', ['-n', 'true'])).exitCode, 0);
    assert.equal(await sh(box, 'stat -c "%a %U" /home/alice'), '770 alice\n');
    await assert.rejects(box.createUser('alice'), sdk.SandboxUserAlreadyExistsError);
    for (const name of ['Alice', 'a b', '$(id)', 'a'.repeat(33)]) assert.throws(() => box.asUser(name));
  });

  from(2)('users: detached commands, and what ends them', async (c) => {
    const box = await c.fresh();
    const alice = await box.createUser('alice');
    const command = await alice.runCommand({ cmd: 'sh', args: ['-c', 'whoami; sleep 600; echo not killed'], detached: true });
    await awaitOutput(command, 'alice\n');
    await command.kill('SIGKILL');
    const done = await command.wait();
    assert.deepEqual([done.exitCode, await done.stdout()], [137, 'alice\n']);
    assert.equal((await alice.runCommand('sleep', ['600'], { timeoutMs: 400 })).exitCode, 137);
  });

  from(2)('users: files are theirs', async (c) => {
    const box = await c.fresh();
    const [alice, bob] = [await box.createUser('alice'), await box.createUser('bob')];
    await alice.writeFiles([{ path: 'secret.txt', content: 'of alice' }, { path: 'a/b/run', content: '#!/bin/sh\nid -un\n', mode: 0o700 }]);
    await alice.mkDir('projects');
    assert.equal(await (await alice.runCommand('sh', ['-c', 'stat -c "%U:%G" secret.txt; ./a/b/run; stat -c %U projects; touch projects/x'])).stdout(), 'alice:alice\nalice\nalice\n');
    assert.equal((await alice.readFileToBuffer({ path: 'secret.txt' })).toString(), 'of alice');
    assert.equal(await text(await alice.readFile({ path: 'secret.txt' })), 'of alice');
    assert.equal((await box.readFileToBuffer({ path: '/home/alice/secret.txt' })).toString(), 'of alice');
    assert.equal(await alice.readFileToBuffer({ path: 'missing' }), null);
    await alice.runCommand('chmod', ['600', 'secret.txt']);
    assert.equal((await alice.readFileToBuffer({ path: 'secret.txt' })).toString(), 'of alice');
    assert.notEqual((await bob.runCommand('cat', ['/home/alice/secret.txt'])).exitCode, 0);
    assert.notEqual((await bob.runCommand('ls', ['/home/alice'])).exitCode, 0);
    const local = await c.localDir();
    assert.equal(await alice.downloadFile({ path: 'secret.txt' }, { path: 'd/s', cwd: local }, { mkdirRecursive: true }), join(local, 'd/s'));
    assert.equal(await readFile(join(local, 'd/s'), 'utf8'), 'of alice');
    assert.equal(await alice.downloadFile({ path: 'missing' }, { path: 'm', cwd: local }), null);
    await assert.rejects(stat(join(local, 'm')));
  });

  from(2)('groups share a directory', async (c) => {
    const box = await c.fresh();
    const users = {};
    for (const name of ['alice', 'bob', 'charlie']) users[name] = await box.createUser(name);
    assert.deepEqual(await box.createGroup('devs'), { groupname: 'devs', sharedDir: '/shared/devs' });
    assert.equal(await sh(box, 'stat -c "%a %G" /shared/devs'), '2770 devs\n');
    await box.addUserToGroup('alice', 'devs');
    await users.bob.addToGroup('devs');
    const read = async (user) => user.runCommand('cat', ['/shared/devs/spec.txt']);
    assert.equal((await users.alice.runCommand('bash', ['-c', 'echo "spec v2" > /shared/devs/spec.txt'])).exitCode, 0);
    assert.equal(await (await read(users.bob)).stdout(), 'spec v2\n');
    assert.notEqual((await read(users.charlie)).exitCode, 0);
    await box.removeUserFromGroup('alice', 'devs');
    await users.bob.removeFromGroup('devs');
    for (const user of [users.alice, users.bob]) assert.notEqual((await read(user)).exitCode, 0);
    await assert.rejects(box.createGroup('devs'), /devs/);
    await assert.rejects(box.addUserToGroup('alice', 'nobodies'), /nobodies/);
  });
};
