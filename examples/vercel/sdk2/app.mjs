// A program for the SDK 2: named sandboxes that are saved when they stop.
import { Sandbox } from '@vercel/sandbox';

const api = process.env.API_URL ?? 'https://api.github.com/user';
const env = process.env.NPM_CONFIG_REGISTRY ? { NPM_CONFIG_REGISTRY: process.env.NPM_CONFIG_REGISTRY } : {};
const server = `
import { createServer } from 'node:http';
import ms from 'ms';
createServer((_, res) => res.end('two days are ' + ms('2 days') + ' ms')).listen(3000, () => console.log('listening'));
`;

const sandbox = await Sandbox.create({ runtime: 'node24', ports: [3000], env, timeout: 10 * 60_000 });
console.log(`created ${sandbox.name}, ${sandbox.status}`);
let restored;
try {
  await sandbox.writeFiles([{ path: 'server.mjs', content: Buffer.from(server) }]);
  await run('npm', 'install', '--no-audit', '--no-fund', 'ms@2.1.3');

  await serve(sandbox);
  console.log('preview:', await (await fetch(sandbox.domain(3000))).text());

  await sandbox.stop(); // its files are saved, and the next call starts it again
  await run('ls', 'node_modules');

  const snapshot = await sandbox.snapshot();
  restored = await Sandbox.create({ source: { type: 'snapshot', snapshotId: snapshot.snapshotId }, ports: [3000] });
  await serve(restored);
  console.log('preview of what was restored:', await (await fetch(restored.domain(3000))).text());

  await sandbox.updateNetworkPolicy('deny-all');
  await run('curl', '-sS', '--max-time', '10', api);

  // The key is put on requests outside of the sandbox, which never has it.
  const key = 'a-key-that-is-not-in-the-sandbox';
  await sandbox.updateNetworkPolicy({ allow: { [new URL(api).hostname]: [{ transform: [{ headers: { authorization: `Bearer ${key}` } }] }] } });
  await run('curl', '-sS', api);
} finally {
  await restored?.delete();
  await sandbox.delete();
}

async function run(cmd, ...args) {
  const done = await sandbox.runCommand({ cmd, args });
  console.log(`${cmd} ${args.join(' ')}: exit code ${done.exitCode}\n${await done.output('both')}`);
}

async function serve(where) {
  const command = await where.runCommand({ cmd: 'node', args: ['server.mjs'], detached: true });
  for await (const line of command.logs()) {
    if (line.data.includes('listening')) return;
  }
  throw new Error('the server has ended');
}
