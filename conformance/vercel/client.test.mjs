// The operations on sandboxes of @vercel/sdk, the client of the vendor's whole
// API. Its models are strict: an answer that lacks a field, or has one of another
// kind, is an error. It has none that creates a sandbox or starts a command.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { Vercel } from '@vercel/sdk';
import { HTTPClient } from '@vercel/sdk/lib/http.js';
import { pack } from 'tar-stream';
import { recent, sh, text, unique } from './case.mjs';
import { credentials, load } from './sdk.mjs';
import { world } from './world.mjs';

const { teamId, token, projectId } = credentials;
const sdk = await load('sandbox-v3');

// The client sends no body with the files that are to be written, for which it has
// no parameter; what makes its requests is a public option of it.
let upload;
const httpClient = new HTTPClient({
  fetcher: (request) => fetch(upload && request.url.includes('/fs/write') ? new Request(request, { body: upload, duplex: 'half' }) : request),
});
const vercel = new Vercel({ serverURL: world.url, bearerToken: token, httpClient, retryConfig: { strategy: 'none' } });

// Which operations were used.
const used = new Set();
const operations = Object.getOwnPropertyNames(Object.getPrototypeOf(vercel.sandboxes)).filter((n) => n !== 'constructor');
const api = new Proxy(vercel.sandboxes, {
  get(target, name) {
    used.add(name);
    return (request) => target[name]({ teamId, ...request });
  },
});

async function refused(call, status, code) {
  const err = await call.then((v) => assert.fail(`it was done: ${JSON.stringify(v)}`), (e) => e);
  assert.deepEqual([err.statusCode, JSON.parse(err.body ?? '{}').error?.code], [status, code], err.stack);
}

describe('@vercel/sdk', { concurrency: 1 }, () => {
  let box, sessionId;
  before(async () => {
    box = await sdk.create({ name: unique('client'), ports: [3000], tags: { of: 'client' }, networkPolicy: { allow: ['example.com'] } });
    sessionId = box.currentSession().sessionId;
  });
  after(() => sdk.remove(box));

  test('sandboxes', async () => {
    const got = await api.getNamedSandbox({ name: box.name, projectId });
    assert.deepEqual([got.sandbox.name, got.sandbox.status, got.session.id, got.resumed], [box.name, 'running', sessionId, false]);
    assert.deepEqual([got.session.projectId, got.session.sourceSandboxName], [projectId, box.name]);
    assert.deepEqual(got.sandbox.tags, { of: 'client' });
    assert.equal(got.routes[0].port, 3000);
    recent(got.sandbox.statusUpdatedAt, 'its status');
    const other = await sdk.create({ name: unique('client'), persistent: false, tags: { of: 'other' } });
    const all = await api.listSandboxes({ project: projectId });
    assert.deepEqual(all.sandboxes.map((s) => s.name), [other.name, box.name]);
    const page = await api.listSandboxes({ project: projectId, limit: 1, sortBy: 'createdAt', sortOrder: 'asc', status: 'running' });
    assert.deepEqual(page.sandboxes.map((s) => s.name), [box.name]);
    const rest = await api.listSandboxes({ project: projectId, limit: 1, sortBy: 'createdAt', sortOrder: 'asc', status: 'running', cursor: page.pagination.next });
    assert.deepEqual(rest.sandboxes.map((s) => s.name), [other.name]);
    for (const query of [{ sortBy: 'name', namePrefix: other.name }, { tags: 'of:other' }, { tags: ['of:other'] }]) {
      const found = await api.listSandboxes({ project: projectId, ...query });
      assert.deepEqual(found.sandboxes.map((s) => s.name), [other.name], JSON.stringify(query));
    }
    const gone = await api.deleteSandbox({ name: other.name, projectId });
    assert.equal(gone.sandbox.name, other.name);
    await refused(api.getNamedSandbox({ name: other.name, projectId }), 404, 'not_found');
  });

  test('commands', async () => {
    const command = await box.runCommand({ cmd: 'sleep', args: ['600'], detached: true });
    const { commands } = await api.listSessionCommands({ sessionId });
    assert.deepEqual([commands[0].id, commands[0].name, commands[0].args, commands[0].exitCode], [command.cmdId, 'sleep', ['600'], null]);
    const running = await api.getSessionCommand({ sessionId, cmdId: command.cmdId });
    assert.equal(running.command.exitCode, null);
    await api.killSessionCommand({ sessionId, cmdId: command.cmdId, requestBody: { signal: 15 } });
    const done = await api.getSessionCommand({ sessionId, cmdId: command.cmdId, wait: 'true' });
    assert.equal(done.command.exitCode, 143);
    await refused(api.getSessionCommand({ sessionId, cmdId: 'cmd_none' }), 404, 'not_found');
  });

  test('files', async () => {
    await api.createSessionDirectory({ sessionId, requestBody: { path: 'a/b', recursive: true } });
    await api.createSessionDirectory({ sessionId, requestBody: { path: 'c', cwd: '/tmp' } });
    const archive = pack();
    archive.entry({ name: 'a/b/file.txt' }, 'some text');
    archive.finalize();
    const parts = [];
    for await (const part of archive) parts.push(part);
    upload = gzipSync(Buffer.concat(parts));
    await api.writeSessionFiles({ sessionId, xCwd: '/vercel/sandbox' });
    upload = undefined;
    await refused(api.writeSessionFiles({ sessionId, xCwd: '/vercel/sandbox' }), 400, 'bad_request');
    const content = await api.readSessionFile({ sessionId, requestBody: { path: 'b/file.txt', cwd: '/vercel/sandbox/a' } });
    assert.equal(await new Response(content).text(), 'some text');
    assert.equal(await sh(box, 'cat a/b/file.txt; test -d /tmp/c'), 'some text');
  });

  test('sessions', async () => {
    const { session, routes } = await api.getSession({ sessionId });
    assert.deepEqual([session.id, session.status, routes.length], [sessionId, 'running', 1]);
    const extended = await api.extendSessionTimeout({ sessionId, requestBody: { duration: 60_000 } });
    assert.equal(extended.session.timeout, session.timeout + 60_000);
    for (const requestBody of [{ mode: 'deny-all' }, { allow: { 'api.example.com': [] }, subnets: { deny: ['192.0.2.0/24'] } }]) {
      const { session } = await api.updateSessionNetworkPolicy({ sessionId, requestBody });
      assert.ok(session.networkPolicy);
    }
    const stopped = await api.stopSession({ sessionId });
    assert.equal(stopped.session.status, 'stopped');
    const resumed = await api.getNamedSandbox({ name: box.name, projectId, resume: true });
    assert.deepEqual([resumed.resumed, resumed.session.sourceSnapshotId], [true, resumed.sandbox.currentSnapshotId]);
    const { sessions } = await api.listSessions({ project: projectId, name: box.name, sortOrder: 'asc' });
    assert.deepEqual(sessions.map((s) => s.id), [sessionId, resumed.session.id]);
    sessionId = resumed.session.id;
    await refused(api.getSession({ sessionId: 'ses_none' }), 404, 'not_found');
  });

  test('snapshots', async () => {
    const { snapshot } = await api.createSandboxesSessionsBySessionIdSnapshotV2({ sessionId, requestBody: {} });
    assert.equal(snapshot.status, 'created');
    ({ session: { id: sessionId } } = await api.getNamedSandbox({ name: box.name, projectId, resume: true }));
    const short = await api.createSandboxesSessionsBySessionIdSnapshotV3({ sessionId, requestBody: { expiration: 86_400_000 } });
    assert.equal(short.snapshot.expiresAt - short.snapshot.createdAt, 86_400_000);
    const got = await api.getSessionSnapshot({ snapshotId: short.snapshot.id });
    assert.equal(got.snapshot.sourceSessionId, sessionId);
    const { snapshots } = await api.listSessionSnapshots({ project: projectId, name: box.name, limit: 2 });
    assert.deepEqual(snapshots.map((s) => s.id), [short.snapshot.id, snapshot.id]);
    assert.equal((await api.deleteSessionSnapshot({ snapshotId: snapshot.id })).snapshot.status, 'deleted');
  });

  test('drives', async () => {
    const name = unique('drive');
    const made = await api.getOrCreateDrive({ name, requestBody: { projectId, maxSizeBytes: 64 << 20, region: 'cle1' } });
    assert.deepEqual([made.drive.name, made.drive.maxSizeBytes, made.drive.region, made.drive.projectId], [name, 64 << 20, 'cle1', projectId]);
    const same = await api.getOrCreateDrive({ name, requestBody: { projectId } });
    assert.equal(same.drive.id, made.drive.id);
    const { drives } = await api.listDrives({ projectId, sortBy: 'name', namePrefix: name, sortOrder: 'asc', limit: 5 });
    assert.deepEqual(drives.map((d) => d.id), [made.drive.id]);
    assert.equal((await api.deleteDrive({ name, projectId })).drive.id, made.drive.id);
    await refused(api.deleteDrive({ name, projectId }), 404, 'not_found');
  });

  test('every operation was used', () => assert.deepEqual(operations.filter((o) => !used.has(o)), []));
});
