// Does through the SDK for Vercel Sandbox what its users do, and says how long it took.
//
//   node --import=PRELOAD --input-type=module -e THIS DIRECTORY-OF-THE-SDK
//
// A line of input is a request, such as {"do": "start"}, a line of output its answer:
// {"ms": [...]} or {"error": "..."}. What an answer is about has been checked, and
// removed, after the clock had stopped.
import { createHash, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const dir = process.argv[1]; // node -e
const { module } = JSON.parse(readFileSync(join(dir, 'package.json'), 'utf8'));
const { Sandbox } = await import(pathToFileURL(join(dir, module)));

let kept; // the sandbox that files are written to

const operations = {
  /** From nothing to the output of a first program: in all, to create, to run. */
  async start() {
    const begun = performance.now();
    const box = await Sandbox.create();
    const created = performance.now();
    try {
      const done = await box.runCommand('node', ['-v']);
      const ended = performance.now();
      await expect(done, (out) => out.startsWith('v24.'));
      return [ended - begun, created - begun, ended - created];
    } finally {
      await remove(box);
    }
  },

  /** Many small files in one call. */
  async write({ files, bytes }) {
    kept ??= await Sandbox.create();
    const all = Array.from({ length: files }, (_, i) => ({ path: `bench/${String(i).padStart(6, '0')}`, content: randomBytes(bytes) }));
    const begun = performance.now();
    await kept.writeFiles(all);
    const took = performance.now() - begun;
    const sum = createHash('sha256');
    for (const { content } of all) sum.update(content);
    const want = sum.digest('hex');
    await expect(await kept.runCommand('sh', ['-c', 'cat bench/* | sha256sum && rm -r bench']), (out) => out.startsWith(want));
    return [took];
  },

  /** Many sandboxes at once, each with one program, until all have stopped. */
  async burst({ sandboxes }) {
    // An error that the SDK tries again after is one, too.
    const errors = [];
    const watched = async (...args) => {
      const response = await fetch(...args);
      if (!response.ok) errors.push(`${response.status} ${await response.clone().text()}`);
      return response;
    };
    const boxes = [];
    const begun = performance.now();
    const each = await Promise.allSettled(Array.from({ length: sandboxes }, async () => {
      const box = await Sandbox.create({ fetch: watched });
      boxes.push(box);
      const done = await box.runCommand('echo', ['hello']);
      await box.stop();
      await expect(done, (out) => out === 'hello\n');
    }));
    const took = performance.now() - begun;
    await Promise.all(boxes.map(remove));
    errors.push(...each.filter((e) => e.reason).map((e) => describe(e.reason)));
    if (errors.length) throw new Error(`${errors.length} errors, the first: ${errors[0]}`);
    return [took];
  },
};

async function expect(done, wanted) {
  const out = await done.stdout();
  if (done.exitCode !== 0 || !wanted(out)) {
    throw new Error(`a program exited with ${done.exitCode} and wrote ${JSON.stringify(out)}: ${await done.stderr()}`);
  }
}

// A sandbox that was stopped has left a snapshot.
const remove = (box) => box.delete({ deleteOrphanSnapshots: true });

const describe = (err) => (err.cause ? `${err.message}: ${err.cause.message}` : err.message);

for await (const line of createInterface({ input: process.stdin })) {
  const { do: operation, ...params } = JSON.parse(line);
  let answer;
  try {
    answer = { ms: await operations[operation](params) };
  } catch (err) {
    answer = { error: describe(err) };
  }
  console.log(JSON.stringify(answer));
}
if (kept) await remove(kept);
