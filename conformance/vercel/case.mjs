// What cases are made of.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

/** A name that nothing else has. */
export const unique = (prefix) => `${prefix}-${randomBytes(5).toString('hex')}`;

/**
 * Registers the cases of a module, a function that gets what to register with:
 * all is for every version, only(1) for one of them, from(2) for it and later.
 */
export function register(sdk, define) {
  const shared = sharing(sdk);
  const add = (applies) => (name, run) => {
    if (applies) test(name, (t) => run(new Case(sdk, t, shared)));
  };
  define({ sdk, all: add(true), only: (major) => add(sdk.major === major), from: (major) => add(sdk.major >= major) });
}

// One sandbox serves all the cases that leave no trace outside of a directory.
const boxes = new WeakMap();
function sharing(sdk) {
  return () => {
    if (!boxes.has(sdk)) boxes.set(sdk, sdk.create({ timeout: 600_000, persistent: false, env: { SHARED: 'by all' } }));
    return boxes.get(sdk);
  };
}

/** Ends the sandbox that cases shared. */
export async function finish(sdk) {
  if (boxes.has(sdk)) await sdk.remove(await boxes.get(sdk));
}

/** The surroundings of one case. */
export class Case {
  constructor(sdk, t, shared) {
    this.sdk = sdk;
    this.t = t;
    this.signal = t.signal;
    this.box = shared;
  }

  /** A sandbox of the case's own, without anything to save unless it is asked for. */
  async fresh(params) {
    return this.own(await this.sdk.create({ persistent: false, timeout: 300_000, ...params }));
  }

  /** Has a sandbox end with the case. */
  own(box) {
    this.t.after(() => this.sdk.remove(box));
    return box;
  }

  /** A directory of the case's own in the shared sandbox. */
  async dir() {
    const box = await this.box();
    const path = `/tmp/${unique('case')}`;
    await box.mkDir(path);
    return path;
  }

  /** A directory of the case's own on this machine. */
  async localDir() {
    const path = await mkdtemp(join(tmpdir(), 'cay-vercel-'));
    this.t.after(() => rm(path, { recursive: true }));
    return path;
  }
}

/** Runs a shell line that must succeed, and returns what it prints. */
export async function sh(box, line, params) {
  const done = await box.runCommand({ cmd: 'sh', args: ['-c', line], ...params });
  assert.equal(done.exitCode, 0, `${line}: exit code ${done.exitCode}: ${await done.stderr()}`);
  return done.stdout();
}

/** Asserts that the server refused a call, with a status and an error code. */
export async function refused(call, status, code) {
  const err = await call.then((v) => assert.fail(`it was done: ${v}`), (e) => e);
  if (err.constructor.name !== 'APIError') throw err;
  const said = err.json ?? JSON.parse(err.text || (await err.response.text()));
  assert.deepEqual([err.response.status, said.error?.code], [status, code], JSON.stringify(said));
  assert.match(said.error.message, /\w/);
  return said.error;
}

/** Reads a stream to its end, as text. */
export async function text(stream) {
  let all = '';
  stream.setEncoding('utf8');
  for await (const part of stream) all += part;
  return all;
}

/** The log entries of a command until one has some text; the rest is left unread. */
export async function awaitOutput(command, wanted) {
  let seen = '';
  for await (const { data } of command.logs()) {
    seen += data;
    if (seen.includes(wanted)) return seen;
  }
  throw new Error(`the command ended without ${JSON.stringify(wanted)}: ${seen}`);
}

/** That two moments are as near as a call lets them be; clocks are the same machine's. */
export function recent(moment, what) {
  const ago = Date.now() - Number(moment);
  assert.ok(ago > -1000 && ago < 120_000, `${what} is ${ago} ms ago`);
}
