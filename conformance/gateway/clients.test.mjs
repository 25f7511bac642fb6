// The cases, by one client with every provider, streamed and not.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { cases } from './cases.mjs';
import { load } from './clients.mjs';
import { world } from './world.mjs';

const client = await load(process.env.CAY_CLIENT);

// What no provider does.
const ofTheGateway = new Set(['metadata', 'errors of the provider', 'a failure nobody sees', 'an answer that breaks off']);

describe(client.name, { concurrency: 4 }, () => {
  const own = { chatcompletions: 'chat', responses: 'responses', messages: 'messages' }[client.surface];
  for (const dialect of world.direct ? [own] : world.dialects) {
    const model = (name) => (world.direct ? name : `${dialect}/${name}`);
    for (const stream of [false, true]) {
      for (const [name, run] of Object.entries(cases)) {
        if (world.direct && ofTheGateway.has(name)) continue;
        const cx = {
          client, dialect, model, how: { stream },
          async echo(params, parts) {
            const a = await client.talk({ model: model('echo'), ...params }).say(parts, { stream });
            assert.ok(a.text.startsWith('{'), a.text);
            return JSON.parse(a.text);
          },
        };
        test(`${dialect} ${stream ? 'streamed ' : ''}${name}`, { timeout: 60_000 }, () => run(cx));
      }
    }
  }
});
