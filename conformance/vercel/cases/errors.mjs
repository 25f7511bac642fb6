import assert from 'node:assert/strict';
import { refused, sh, unique } from '../case.mjs';
import { credentials } from '../sdk.mjs';
import { world } from '../world.mjs';

// A fetch that meddles: answer(n, go) gives the nth answer, go asks the server.
function meddling(answer) {
  let n = 0;
  const meddled = (url, init) => answer(++n, () => fetch(url, init));
  return Object.assign(meddled, { count: () => n });
}

const failure = (status, headers) => new Response(JSON.stringify({ error: { code: 'busy', message: 'busy' } }), { status, headers });

export default ({ all, only, from, sdk }) => {
  const { Sandbox } = sdk;
  const byId = (box) => (sdk.major === 1 ? { sandboxId: box.sandboxId } : { name: box.name });

  all('401: credentials that are none', async (c) => {
    for (const token of ['wrong', `${world.token}x`]) {
      const err = await Sandbox.create({ ...credentials, token }).then((b) => { c.own(b); assert.fail(`${token} lets in`); }, (e) => e);
      assert.equal(err.response?.status, 401, err.stack);
    }
    // Of tokens in the shape of a JWT the client takes the environment's if there is one.
    const [head, claims, signature] = world.jwt.split('.');
    const unsigned = Buffer.from(JSON.stringify({ alg: 'none', typ: 'JWT' })).toString('base64url');
    const shared = Buffer.from(JSON.stringify({ ...JSON.parse(Buffer.from(head, 'base64url')), alg: 'HS256' })).toString('base64url');
    const other = Buffer.from(JSON.stringify({ ...JSON.parse(Buffer.from(claims, 'base64url')), owner_id: world.other.teamId })).toString('base64url');
    for (const token of [`${unsigned}.${claims}.`, `${shared}.${claims}.${signature}`, `${head}.${other}.${signature}`, `${head}.${claims}.${signature.slice(0, -8)}AAAAAAAA`]) {
      const answer = await fetch(`https://vercel.com/api/v2/sandboxes?teamId=${credentials.teamId}`, { headers: { authorization: `Bearer ${token}` } });
      assert.equal(answer.status, 401, token);
      assert.match((await answer.json()).error.message, /\w/);
    }
  });

  all('403: another team', async (c) => {
    const err = await Sandbox.create({ ...world.other, teamId: credentials.teamId }).then((b) => { c.own(b); assert.fail('it was made'); }, (e) => e);
    assert.equal(err.response?.status, 403, err.stack);
  });

  all('404: what belongs to another team', async (c) => {
    const box = await c.box();
    await refused(Sandbox.get({ ...world.other, ...byId(box) }), 404, 'not_found');
    const mine = await Sandbox.list({ ...world.other });
    assert.deepEqual((mine.json ?? mine).sandboxes, []);
  });

  all('404: an unknown project', async (c) => {
    await refused(Sandbox.create({ ...credentials, projectId: 'prj_00000000000000000000' }), 404, 'not_found');
  });

  all('429: more than a team may, and when it may again', async (c) => {
    const create = (fetch) => Sandbox.create({ ...world.limited, ...(sdk.major > 1 && { persistent: false }), fetch });
    const counted = meddling((_, go) => go());
    const first = await create(counted).catch((err) => { assert.equal(err.response?.status, 429, err.stack); });
    if (first) c.own(first);
    const before = counted.count();
    const err = await create(counted).then((b) => { c.own(b); assert.fail('it was made'); }, (e) => e);
    assert.equal(err.response?.status, 429, err.stack);
    assert.ok(Number(err.response.headers.get('retry-after')) > 20);
    assert.equal(counted.count() - before, 1, 'what takes long is not tried again');
  });

  all('429: a client waits as long as it is told', async (c) => {
    // The team may have one sandbox at a time, and the first has two seconds to live.
    const create = (timeout) => Sandbox.create({ ...world.single, timeout, ...(sdk.major > 1 && { persistent: false }) });
    const first = await create(2000);
    const second = c.own(await create(60_000));
    assert.equal(second.status, 'running');
    assert.equal((await Sandbox.get({ ...world.single, ...byId(first) })).status, 'stopped');
  });

  all('retries: what failed is tried again', async (c) => {
    for (const broken of [
      () => { throw new TypeError('fetch failed'); },
      () => failure(500),
      () => failure(503, { 'retry-after': '1' }),
      () => failure(429, { 'retry-after': '1' }),
    ]) {
      const flaky = meddling((n, go) => (n === 1 ? broken() : go()));
      const box = c.own(await sdk.create({ persistent: false, fetch: flaky }));
      assert.equal(flaky.count(), 2);
      assert.equal(box.status, 'running');
      await sdk.remove(box);
    }
  });

  all('retries: an answer that was lost', async (c) => {
    // A POST that reached the server and is sent again: the command runs twice.
    let losing = false;
    let n = 0;
    const lossy = async (url, init) => {
      const answer = await fetch(url, init);
      if (losing && n++ === 0) {
        await answer.body.cancel();
        throw new TypeError('terminated');
      }
      return answer;
    };
    const box = await c.fresh({ fetch: lossy });
    losing = true;
    const done = await box.runCommand('sh', ['-c', 'echo x >> runs; wc -l < runs']);
    assert.equal(done.exitCode, 0);
    assert.equal(n, 2);
    assert.equal(await sh(box, 'for i in $(seq 200); do test $(wc -l < runs) -lt 2 || break; sleep 0.05; done; wc -l < runs'), '2\n');
  });

  from(2)('retries: a create whose answer was lost', async (c) => {
    const name = unique('twice');
    const lossy = meddling(async (n, go) => {
      const answer = await go();
      if (n > 1) return answer;
      await answer.text();
      throw new TypeError('terminated');
    });
    const err = await sdk.create({ name, persistent: false, fetch: lossy }).then(() => null, (e) => e);
    if (err) assert.equal(err.response?.status, 400, err.stack);
    const box = c.own(await sdk.get({ name }));
    assert.equal(box.status, 'running');
  });

  only(1)('410: a sandbox that stopped stays so', async (c) => {
    const box = await c.fresh();
    await box.stop({ blocking: true });
    for (const call of [
      () => box.runCommand('true'), () => box.runCommand({ cmd: 'true', detached: true }), () => box.writeFiles([{ path: 'x', content: 'x' }]),
      () => box.mkDir('x'), () => box.updateNetworkPolicy('deny-all'), () => box.extendTimeout(1000), () => box.snapshot(),
    ]) await refused(call(), 410, 'sandbox_stopped');
  });

  from(2)('410: a session that stopped stays so', async (c) => {
    const box = await c.fresh();
    const session = box.currentSession();
    await box.stop();
    for (const call of [
      () => session.runCommand('true'), () => session.runCommand({ cmd: 'true', detached: true }), () => session.writeFiles([{ path: 'x', content: 'x' }]),
      () => session.mkDir('x'), () => session.update({ networkPolicy: 'deny-all' }), () => session.extendTimeout(1000), () => session.snapshot(),
      () => session.openInteractive(), () => session.readFile({ path: 'x' }),
    ]) await refused(call(), 410, 'sandbox_stopped').catch((err) => { throw new Error(String(call), { cause: err }); });
    assert.equal((await sdk.get(box)).status, 'stopped', 'nothing started it');
    assert.equal((await session.stop()).session.status, 'stopped');
  });

  all('an unknown path', async () => {
    for (const path of ['/api/v2/teams/x/y', '/api/v9/sandboxes', '/api/v2/sandboxes/sessions/x/no-such']) {
      const answer = await fetch(`https://vercel.com${path}?teamId=${credentials.teamId}`, { headers: { authorization: `Bearer ${credentials.token}` } });
      assert.equal(answer.status, 404, path);
      assert.equal((await answer.json()).error.code, 'not_found', path);
    }
  });
};
