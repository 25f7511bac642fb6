// All cases for one version of the SDK, which the environment names.
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { finish, register } from './case.mjs';
import { classes, internals, load, members } from './sdk.mjs';
import commands from './cases/commands.mjs';
import drives from './cases/drives.mjs';
import errors from './cases/errors.mjs';
import files from './cases/files.mjs';
import filesystem from './cases/filesystem.mjs';
import lifecycle from './cases/lifecycle.mjs';
import lists from './cases/lists.mjs';
import load_ from './cases/load.mjs';
import network from './cases/network.mjs';
import ports from './cases/ports.mjs';
import serialization from './cases/serialization.mjs';
import sessions from './cases/sessions.mjs';
import snapshots from './cases/snapshots.mjs';
import sources from './cases/sources.mjs';
import users from './cases/users.mjs';

const sdk = await load(process.env.CAY_SDK);

describe(sdk.alias, { concurrency: 1 }, () => {
  after(() => finish(sdk));
  describe('cases', { concurrency: 4, timeout: 240_000 }, () => {
    for (const define of [
      lifecycle, commands, files, filesystem, users, ports, network, sources, snapshots, sessions, drives, lists, errors, serialization,
    ]) {
      register(sdk, define);
    }
  });
  describe('alone', { concurrency: 1 }, () => register(sdk, load_));

  // A version that adds a method fails here until a case calls it.
  test('every public method and property was used', () => {
    const hidden = internals(sdk.packageDir);
    const unused = [];
    for (const [name, cls] of classes(sdk)) {
      for (const { id } of members(name, cls)) if (!hidden.has(id) && !sdk.calls.has(id)) unused.push(id);
    }
    assert.deepEqual(unused, []);
  });
});
