import assert from 'node:assert/strict';
import { Writable } from 'node:stream';
import { awaitOutput, recent, refused, sh, unique } from '../case.mjs';

// A stream that keeps what is written to it.
const collector = () => {
  const parts = [];
  const stream = new Writable({ decodeStrings: false, write: (part, _, done) => { parts.push(part); done(); } });
  return Object.assign(stream, { text: () => parts.join('') });
};

export default ({ all, only, from, sdk }) => {
  all('runCommand: exit code and output', async (c) => {
    const box = await c.box();
    const done = await box.runCommand('sh', ['-c', 'echo out; echo err >&2; exit 3']);
    assert.ok(done instanceof sdk.CommandFinished);
    assert.equal(done.exitCode, 3);
    assert.equal(await done.stdout(), 'out\n');
    assert.equal(await done.stderr(), 'err\n');
    assert.equal((await done.output()).length, 8);
    assert.equal(await done.output('stdout'), 'out\n');
    assert.match(done.cmdId, /^cmd_/);
    assert.equal(done.cwd, sdk.cwd(box));
    recent(done.startedAt, 'startedAt');
    assert.equal(await done.wait(), done);
    if (sdk.major > 1) assert.ok(done.durationMs >= 0, `durationMs ${done.durationMs}`);
  });

  all('runCommand: arguments are no shell line', async (c) => {
    const done = await (await c.box()).runCommand('printf', ['%s|', 'a b', '$HOME', '*', "it's", '', 'ü\n']);
    assert.equal(await done.stdout(), "a b|$HOME|*|it's||ü\n|");
  });

  all('runCommand: environment of the sandbox and of the command', async (c) => {
    const box = await c.fresh({ env: { ONE: 'sandbox', TWO: 'sandbox' } });
    const done = await box.runCommand({ cmd: 'sh', args: ['-c', 'echo $ONE $TWO $THREE'], env: { TWO: 'command', THREE: 'command' } });
    assert.equal(await done.stdout(), 'sandbox command command\n');
    assert.equal(await sh(box, 'echo $ONE $TWO $THREE'), 'sandbox sandbox\n');
  });

  all('runCommand: working directory', async (c) => {
    const box = await c.box();
    assert.equal(await sh(box, 'pwd'), `${sdk.cwd(box)}\n`);
    const done = await box.runCommand({ cmd: 'pwd', cwd: '/usr/share' });
    assert.equal(await done.stdout(), '/usr/share\n');
    assert.equal(done.cwd, '/usr/share');
    const name = unique('below');
    await box.mkDir(name);
    assert.equal(await sh(box, 'pwd', { cwd: name }), `${sdk.cwd(box)}/${name}\n`);
  });

  all('runCommand: the default user has sudo', async (c) => {
    const box = await c.box();
    const user = (await sh(box, 'id -un')).trim();
    assert.notEqual(user, 'root');
    assert.equal(await sh(box, 'test -w . && echo writable'), 'writable\n');
    assert.equal(await sh(box, 'echo $USER:$HOME:$(sudo id -u)'), `${user}:${(await sh(box, 'getent passwd $(id -u) | cut -d: -f6')).trim()}:0\n`);
    const done = await box.runCommand({ cmd: 'sh', args: ['-c', 'id -u; echo $USER; echo $SUDO_USER; echo $KEPT; echo $HOME; echo :$PATH:'], sudo: true, env: { KEPT: 'yes' } });
    const [uid, name, from_, kept, home, path] = (await done.stdout()).split('\n');
    assert.deepEqual([uid, name, from_, kept, home], ['0', 'root', user, 'yes', '/root']);
    assert.match(path, /:\/vercel\/bin:/);
    assert.match(path, /:\/usr\/local\/bin:/);
  });

  all('runCommand: node and npm are there', async (c) => {
    const box = await c.box();
    assert.match(await sh(box, 'node --version'), /^v24\./);
    assert.match(await sh(box, 'npm --version'), /^\d+\./);
  });

  all('runCommand: output goes to streams', async (c) => {
    const stdout = collector();
    const stderr = collector();
    const done = await (await c.box()).runCommand({ cmd: 'sh', args: ['-c', 'echo out; echo err >&2'], stdout, stderr });
    assert.deepEqual([done.exitCode, stdout.text(), stderr.text()], [0, 'out\n', 'err\n']);
  });

  all('runCommand detached: output goes to streams', async (c) => {
    const stdout = collector();
    const command = await (await c.box()).runCommand({ cmd: 'sh', args: ['-c', 'echo one; sleep 0.2; echo two'], stdout, detached: true });
    await command.wait();
    assert.equal(await command.stdout(), 'one\ntwo\n');
    // The client copies on its own, a second time.
    while (stdout.text() !== 'one\ntwo\n') await new Promise((r) => setImmediate(r));
  }, );

  all('runCommand: UTF-8 across parts, and what is none', async (c) => {
    const box = await c.box();
    const done = await box.runCommand('sh', ['-c', `printf '\\303'; sleep 0.2; printf '\\274\\n'; printf 'a\\377b\\n'`]);
    assert.equal(await done.stdout(), 'ü\na\ufffdb\n');
  });

  all('runCommand: a megabyte of lines', async (c) => {
    const done = await (await c.box()).runCommand('seq', ['1', '150000']);
    let expected = '';
    for (let i = 1; i <= 150000; i++) expected += `${i}\n`;
    assert.ok((await done.stdout()) === expected, 'the lines are not those of seq');
  });

  all('runCommand: no standard input', async (c) => {
    assert.equal(await sh(await c.box(), 'cat; echo end'), 'end\n');
  });

  all('runCommand: a shell that does not find a program', async (c) => {
    const done = await (await c.box()).runCommand('sh', ['-c', 'no-such-program']);
    assert.equal(done.exitCode, 127);
  });

  all('runCommand: a program that does not exist', async (c) => {
    const box = await c.box();
    await refused(box.runCommand('no-such-program'), 400, 'executable_not_found');
    await refused(box.runCommand({ cmd: 'no-such-program', detached: true }), 400, 'executable_not_found');
  });

  all('runCommand: twenty at once', async (c) => {
    const box = await c.box();
    const done = await Promise.all(Array.from({ length: 20 }, (_, i) => box.runCommand('sh', ['-c', `echo ${i}; exit ${i}`])));
    assert.deepEqual(await Promise.all(done.map((d) => d.stdout())), done.map((_, i) => `${i}\n`));
    assert.deepEqual(done.map((d) => d.exitCode), done.map((_, i) => i));
  });

  all('detached: logs, wait and getCommand', async (c) => {
    const box = await c.box();
    const go = `/tmp/${unique('go')}`;
    const command = await box.runCommand({ cmd: 'sh', args: ['-c', `echo one; while ! test -e ${go}; do sleep 0.05; done; echo two >&2; exit 4`], detached: true });
    assert.ok(command instanceof sdk.Command);
    assert.equal(command.exitCode, null);
    await awaitOutput(command, 'one\n');

    const again = await box.getCommand(command.cmdId);
    assert.deepEqual([again.cmdId, again.exitCode, again.startedAt, again.cwd], [command.cmdId, null, command.startedAt, command.cwd]);
    const both = Promise.all([command, again].map(async (reader) => {
      const seen = [];
      for await (const { stream, data } of reader.logs()) seen.push(`${stream}: ${data}`);
      return seen.join('');
    }));
    await sh(box, `touch ${go}`);
    const done = await command.wait();
    assert.equal(done.exitCode, 4);
    assert.deepEqual(await both, ['stdout: one\nstderr: two\n', 'stdout: one\nstderr: two\n']);
    assert.equal(await again.output('both'), 'one\ntwo\n');
    assert.equal((await box.getCommand(command.cmdId)).exitCode, 4);
    assert.equal(await (await box.getCommand(command.cmdId)).stdout(), 'one\n');
  });

  all('detached: logs can be closed', async (c) => {
    const box = await c.box();
    const command = await box.runCommand({ cmd: 'sh', args: ['-c', 'echo ready; exec sleep 600'], detached: true });
    const logs = command.logs();
    assert.equal((await logs.next()).value.data, 'ready\n');
    logs.close();
    await logs.next().catch(() => {}); // it ends, by an error or without one
    const controller = new AbortController();
    const reading = (async () => { for await (const _ of command.logs({ signal: controller.signal })) controller.abort(); })();
    await reading.catch((err) => assert.match(err.name, /Abort/));
    await command.kill('SIGKILL');
    assert.equal((await command.wait()).exitCode, 137);
  });

  for (const [signal, code] of [[undefined, 143], ['SIGINT', 130], ['SIGKILL', 137], ['SIGHUP', 129], [12, 140]]) {
    all(`kill: ${signal ?? 'the default'} ends with ${code}`, async (c) => {
      const command = await (await c.box()).runCommand({ cmd: 'sh', args: ['-c', 'echo ready; exec sleep 600'], detached: true });
      await awaitOutput(command, 'ready');
      await command.kill(signal);
      assert.equal((await command.wait()).exitCode, code);
    });
  }

  all('kill: a command can handle its signal', async (c) => {
    const command = await (await c.box()).runCommand({ cmd: 'bash', args: ['-c', `trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.05; done`], detached: true });
    await awaitOutput(command, 'ready');
    await command.kill();
    const done = await command.wait();
    assert.deepEqual([done.exitCode, await done.stdout()], [7, 'ready\ncaught\n']);
  });

  all('kill: stopped and continued', async (c) => {
    const box = await c.box();
    const file = `/tmp/${unique('state')}`;
    const command = await box.runCommand({ cmd: 'sh', args: ['-c', `echo $$ > ${file}; echo ready; exec sleep 600`], detached: true });
    await awaitOutput(command, 'ready');
    const state = async (wanted) => sh(box, `for i in $(seq 200); do grep -q '^State:.${wanted}' /proc/$(cat ${file})/status && exit; sleep 0.05; done; grep State: /proc/$(cat ${file})/status >&2; exit 1`);
    await state('S'); // a signal amid the exec may not stop it
    await command.kill('SIGSTOP');
    await state('[Tt]');
    await command.kill('SIGCONT');
    await state('S');
    await command.kill();
    assert.equal((await command.wait()).exitCode, 143);
  });

  all('kill: what sudo started, too', async (c) => {
    const command = await (await c.box()).runCommand({ cmd: 'sh', args: ['-c', 'echo ready; sleep 600; echo not killed'], sudo: true, detached: true });
    await awaitOutput(command, 'ready');
    await command.kill('SIGKILL');
    const done = await command.wait();
    assert.deepEqual([done.exitCode, await done.stdout()], [137, 'ready\n']);
  });

  all('kill: a command that has ended', async (c) => {
    const box = await c.box();
    const done = await box.runCommand('true');
    await done.kill();
    assert.equal((await box.getCommand(done.cmdId)).exitCode, 0);
  });

  all('getCommand: an unknown one', async (c) => {
    await refused((await c.box()).getCommand('cmd_00000000000000000000'), 404, 'not_found');
  });

  all('abort: leaving a command does not end it', async (c) => {
    const box = await c.box();
    const file = `/tmp/${unique('pid')}`;
    const controller = new AbortController();
    const stdout = new Writable({ write: (_, __, done) => { controller.abort(); done(); } });
    const running = box.runCommand({ cmd: 'sh', args: ['-c', `echo $$ > ${file}; echo ready; exec sleep 600`], stdout, signal: controller.signal });
    await assert.rejects(running, (err) => /abort/i.test(`${err.name} ${err.message}`));
    assert.equal(await sh(box, `kill -0 $(cat ${file}) && echo alive; kill -KILL $(cat ${file})`), 'alive\n');
  });

  all('abort: waiting', async (c) => {
    const command = await (await c.box()).runCommand({ cmd: 'sleep', args: ['600'], detached: true });
    const controller = new AbortController();
    const waiting = command.wait({ signal: controller.signal });
    setImmediate(() => controller.abort());
    await assert.rejects(waiting, (err) => /abort/i.test(`${err.name} ${err.message}`));
    await command.kill('SIGKILL');
    assert.equal((await command.wait()).exitCode, 137);
  });

  all('logs: readable after the sandbox stopped', async (c) => {
    const box = await c.fresh();
    const command = await box.runCommand({ cmd: 'sh', args: ['-c', 'echo kept; echo too >&2; exit 5'], detached: true });
    await command.wait();
    await sdk.stop(box);
    assert.equal(await command.output('both'), 'kept\ntoo\n');
    assert.equal((await command.wait()).exitCode, 5);
  });

  all('a sandbox that stops ends what waits for its commands', async (c) => {
    const box = await c.fresh();
    const command = await box.runCommand({ cmd: 'sh', args: ['-c', 'echo ready; exec sleep 600'], detached: true });
    await awaitOutput(command, 'ready');
    const ended = Promise.allSettled([
      command.wait(),
      (async () => { for await (const _ of command.logs()); })(),
      // By the session, so that no client starts the sandbox again.
      sdk.session(box).runCommand('sleep', ['600']),
    ]);
    await sdk.stop(box);
    const [waited, , ran] = await ended;
    for (const outcome of [waited, ran]) {
      if (outcome.status === 'fulfilled') assert.notEqual(outcome.value.exitCode, 0);
    }
  });

  from(2)('timeoutMs ends a command', async (c) => {
    const box = await c.box();
    const done = await box.runCommand('sh', ['-c', `trap '' TERM; echo ready; sleep 600`], { timeoutMs: 5000 }); // "ready" takes its time, too
    assert.deepEqual([done.exitCode, await done.stdout()], [137, 'ready\n']);
    const command = await box.runCommand({ cmd: 'sleep', args: ['600'], timeoutMs: 400, detached: true });
    assert.equal((await command.wait()).exitCode, 137);
    assert.equal((await box.runCommand('true', [], { timeoutMs: 60_000 })).exitCode, 0);
  });

  from(2)('a session runs commands, too', async (c) => {
    const session = (await c.box()).currentSession();
    assert.equal(await (await session.runCommand('echo', ['from', 'a', 'session'])).stdout(), 'from a session\n');
  });

  only(1)('runCommand: output is fetched, even while it comes', async (c) => {
    const done = await (await c.box()).runCommand('sh', ['-c', 'for i in 1 2 3; do echo $i; sleep 0.1; done']);
    assert.equal(await done.stdout(), '1\n2\n3\n');
  });
};
