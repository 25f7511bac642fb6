// A program for the SDK 1: sandboxes without names, which are gone when they stop.
import { Sandbox } from '@vercel/sandbox';

const api = process.env.API_URL ?? 'https://api.github.com/user';
const env = process.env.NPM_CONFIG_REGISTRY ? { NPM_CONFIG_REGISTRY: process.env.NPM_CONFIG_REGISTRY } : {};
const server = `
import { createServer } from 'node:http';
import ms from 'ms';
createServer((_, res) => res.end('two days are ' + ms('2 days') + ' ms')).listen(3000, () => console.log('listening'));
`;

let sandbox = await Sandbox.create({ runtime: 'node24', ports: [3000], env, timeout: 10 * 60_000 });
console.log(`created ${sandbox.sandboxId}, ${sandbox.status}`);
try {
  await sandbox.writeFiles([{ path: 'server.mjs', content: Buffer.from(server) }]);
  await run('npm', 'install', '--no-audit', '--no-fund', 'ms@2.1.3');

  await serve();
  console.log('preview:', await (await fetch(sandbox.domain(3000))).text());

  const snapshot = await sandbox.snapshot(); // the sandbox is gone
  console.log(`snapshot of ${(snapshot.sizeBytes / 2 ** 20).toFixed(1)} MiB`);
  sandbox = await Sandbox.create({ source: { type: 'snapshot', snapshotId: snapshot.snapshotId }, ports: [3000] });
  await serve();
  console.log('preview of what was restored:', await (await fetch(sandbox.domain(3000))).text());

  await sandbox.updateNetworkPolicy('deny-all');
  await run('curl', '-sS', '--max-time', '10', api);

  // The key is put on requests outside of the sandbox, which never has it.
  const key = 'a-key-that-is-not-in-the-sandbox';
  await sandbox.updateNetworkPolicy({ allow: { [new URL(api).hostname]: [{ transform: [{ headers: { authorization: `Bearer ${key}` } }] }] } });
  await run('curl', '-sS', api);
} finally {
  await sandbox.stop();
}

async function run(cmd, ...args) {
  const done = await sandbox.runCommand({ cmd, args });
  console.log(`${cmd} ${args.join(' ')}: exit code ${done.exitCode}\n${await done.output('both')}`);
}

async function serve() {
  const command = await sandbox.runCommand({ cmd: 'node', args: ['server.mjs'], detached: true });
  for await (const line of command.logs()) {
    if (line.data.includes('listening')) return;
  }
  throw new Error('the server has ended');
}
