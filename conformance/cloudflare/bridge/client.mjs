// The OpenAI Agents SDK's CloudflareSandboxClient, unmodified, against the bridge at
// CAY_BRIDGE. Each step is a line: "ok NAME" or "not ok NAME: why".

import assert from 'node:assert/strict';
import { Manifest } from '@openai/agents/sandbox';
import { CloudflareSandboxClient } from '@openai/agents-extensions/sandbox/cloudflare';

const workerUrl = process.env.CAY_BRIDGE;
const apiKey = process.env.CAY_TOKEN;

let failed = false;
async function step(name, f) {
  try {
    await f();
    console.log(`ok ${name}`);
  } catch (e) {
    failed = true;
    console.log(`not ok ${name}: ${e.message} ${JSON.stringify(e.details ?? e.cause ?? '')}`.replaceAll('\n', ' '));
  }
}

const client = new CloudflareSandboxClient({ workerUrl, apiKey });
const manifest = new Manifest({
  entries: { 'notes/hello.txt': { type: 'file', content: 'from the manifest\n' } },
  environment: { GREETING: 'hi' },
});
let session;

await step('create', async () => {
  session = await client.create({ manifest });
  assert.match(session.state.sandboxId, /^[a-z2-7]{26}$/);
});
await step('running', async () => assert.equal(await session.running(), true));
await step('execCommand', async () => {
  const out = await session.execCommand({ cmd: 'echo "$GREETING from $(pwd)"; cat notes/hello.txt; uname -r; id -un' });
  assert.match(out, /exited with code 0/);
  assert.match(out, /hi from \/workspace\nfrom the manifest\n4\.19\.0-gvisor\nroot/);
});
await step('execCommand that fails', async () => {
  const out = await session.execCommand({ cmd: 'echo out; echo err >&2; exit 3' });
  assert.match(out, /exited with code 3/);
  assert.match(out, /out\nerr/);
});
await step('characters that are cut', async () => {
  // Euro signs, each cut in the middle by a pause.
  const out = await session.execCommand({ cmd: String.raw`printf '\342\202'; sleep 0.3; printf '\254\342'; sleep 0.3; printf '\202\254\n'` });
  assert.match(out, /€€/);
});
await step('programs', async () => {
  const out = await session.execCommand({ cmd: 'python3 -c "print(6*7)" && node -e "console.log(6*7)"' });
  assert.match(out, /42\n42/);
});
await step('editor', async () => {
  const editor = session.createEditor();
  await editor.createFile({ type: 'create_file', path: 'src/deep/a.txt', diff: '+one\n+two\n' });
  await editor.updateFile({ type: 'update_file', path: 'src/deep/a.txt', diff: '@@\n one\n-two\n+three\n' });
  assert.match(new TextDecoder().decode(await session.readFile({ path: 'src/deep/a.txt' })), /^one\nthree\n?$/);
  await editor.deleteFile({ type: 'delete_file', path: 'src/deep/a.txt' });
  assert.equal(await session.pathExists('src/deep/a.txt'), false);
});
await step('readFile', async () => {
  await session.execCommand({ cmd: "printf '\\000\\377\\200event: x' > raw.bin" });
  const bytes = await session.readFile({ path: 'raw.bin' });
  assert.deepEqual([...bytes.subarray(0, 3)], [0, 255, 128]);
});
await step('readFile of nothing', async () => {
  await assert.rejects(session.readFile({ path: 'missing.txt' }), /not found/);
});

let archive;
await step('persistWorkspace', async () => {
  await session.execCommand({ cmd: 'mkdir -p d && echo kept > d/kept.txt && ln -s kept.txt d/link && chmod 755 d/kept.txt' });
  archive = await session.persistWorkspace();
  assert.ok(archive.byteLength > 1024);
});
await step('hydrateWorkspace', async () => {
  await session.execCommand({ cmd: 'rm -rf d; echo mine > mine.txt' });
  await session.hydrateWorkspace(archive);
  const out = await session.execCommand({ cmd: 'cat d/link mine.txt; stat -c %a d/kept.txt' });
  assert.match(out, /kept\nmine\n755/);
});
await step('hydrateWorkspace in another sandbox', async () => {
  const other = await client.create({});
  try {
    await other.hydrateWorkspace(archive);
    assert.match(await other.execCommand({ cmd: 'cat d/kept.txt notes/hello.txt' }), /kept\nfrom the manifest/);
  } finally {
    await other.close();
  }
});
await step('PTY with writeStdin', async () => {
  const first = await session.execCommand({ cmd: 'tty; read -r line; echo "got:$line"; stty size', tty: true, yieldTimeMs: 3000 });
  const id = Number(/session ID (\d+)/i.exec(first)?.[1]);
  assert.ok(id, first);
  let seen = first;
  seen += await session.writeStdin({ sessionId: id, chars: 'ping\n', yieldTimeMs: 2000 });
  for (let i = 0; i < 10 && !seen.includes('24 80'); i++) {
    seen += await session.writeStdin({ sessionId: id, chars: '', yieldTimeMs: 1000 });
  }
  assert.match(seen, /\/dev\/pts\/\d+/);
  assert.match(seen, /got:ping/);
  assert.match(seen, /24 80/);
  const last = await session.writeStdin({ sessionId: id, chars: 'exit 5\n', yieldTimeMs: 3000 });
  assert.match(last, /exited with code 5/);
});
await step('close', async () => {
  await session.close();
  assert.equal(await session.running(), false);
});
await step('a wrong key', async () => {
  const stranger = new CloudflareSandboxClient({ workerUrl, apiKey: 'wrong' });
  await assert.rejects(stranger.create({}), /unauthorized/);
});
process.exit(failed ? 1 : 0);
