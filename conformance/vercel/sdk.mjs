// One face for the three versions of the SDK where they do the same under
// different names, and a record of which of their methods were called.
import { readFileSync, readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { world } from './world.mjs';

export const credentials = { token: world.token, teamId: world.teamId, projectId: world.projectId };

/** Loads an SDK by its alias in package.json: sandbox-v1, sandbox-v2 or sandbox-v3. */
export async function load(alias) {
  const module = await import(alias);
  const major = Number(alias.at(-1));
  const { Sandbox, Snapshot } = module;
  return {
    ...module,
    alias,
    major,
    calls: record(module),
    packageDir: dirname(dirname(fileURLToPath(import.meta.resolve(alias)))),

    create: (params) => Sandbox.create({ ...credentials, ...(major === 1 ? asV1(params) : params) }),
    get: (box) => Sandbox.get({ ...credentials, ...(major === 1 ? { sandboxId: box.sandboxId } : { name: box.name }) }),
    /** What has a machine's fields: a sandbox of version 1 is one, later ones have one after another. */
    session: (box) => (major === 1 ? box : box.currentSession()),
    sessionId: (box) => (major === 1 ? box.sandboxId : box.currentSession().sessionId),
    cwd: (box) => (major === 1 ? box.sandbox.cwd : box.cwd), // version 1 keeps it to itself
    stop: (box) => box.stop(major === 1 ? { blocking: true } : undefined),
    listSnapshots: (params) => Snapshot.list({ ...credentials, ...params }),
    getSnapshot: (snapshotId) => Snapshot.get({ ...credentials, snapshotId }),
    /** Ends what a case made. It may be gone already. */
    async remove(box) {
      try {
        await (major === 1 ? box.stop() : box.delete());
      } catch (err) {
        if (err.response?.status !== 404 && err.response?.status !== 410) throw err;
      }
    },
  };
}

// Version 1 knows no names and nothing that outlives a machine.
function asV1({ name, persistent, tags, snapshotExpiration, keepLastSnapshots, ...rest } = {}) {
  return rest;
}

/** The classes a module exports, by name; errors have nothing to call. */
export function classes(module) {
  return Object.entries(module).filter(([, v]) =>
    typeof v === 'function' && /^class\b/.test(Function.prototype.toString.call(v)) && !(v.prototype instanceof Error));
}

/** The names of a class's own methods and accessors, as "Class.static" and "Class#method". */
export function* members(name, cls) {
  for (const [owner, sign] of [[cls, '.'], [cls.prototype, '#']]) {
    for (const key of Reflect.ownKeys(owner)) {
      if (owner === cls ? ['length', 'name', 'prototype'].includes(key) : key === 'constructor') continue;
      const property = Object.getOwnPropertyDescriptor(owner, key);
      if (property.get || typeof property.value === 'function') yield { id: name + sign + String(key), owner, key, property };
    }
  }
}

/**
 * The members that a version's types call private or internal. They are told
 * from the others there alone: in JavaScript all are the same.
 */
export function internals(packageDir) {
  const found = new Set();
  const dist = join(packageDir, 'dist');
  for (const file of readdirSync(dist).filter((f) => f.endsWith('.d.ts'))) {
    const text = readFileSync(join(dist, file), 'utf8');
    for (const body of text.split(/^declare class /m).slice(1)) {
      const cls = body.match(/^\w+/)[0];
      for (const [, name] of body.matchAll(/^ {2}(?:private|protected) (?:static |readonly |get )*(\w+)/gm)) found.add(`${cls}#${name}`);
      for (const [, name] of body.matchAll(/\/\*\*(?:(?!\*\/)[^])*?@internal(?:(?!\*\/)[^])*?\*\/\s+(?:(?:private|protected|static|readonly|get) )*(\w+)/g)) found.add(`${cls}#${name}`);
    }
  }
  return found;
}

function record(module) {
  const calls = new Set();
  for (const [name, cls] of classes(module)) {
    for (const { id, owner, key, property } of members(name, cls)) {
      const kind = property.get ? 'get' : 'value';
      const original = property[kind];
      Object.defineProperty(owner, key, {
        ...property,
        [kind](...args) {
          calls.add(id);
          return Reflect.apply(original, this, args);
        },
      });
    }
  }
  return calls;
}
