// Recorded answers of providers, as one client understands them: what they mean is
// what the provider's own format, read by cay, says they mean.
//
// world.recorded has, by provider, {model, stream, want: {text, reasoning, calls,
// finish, usage}, lost: [...]} of each. A recording is of one call, which is whole
// or streamed.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { refused } from './cases.mjs';
import { load } from './clients.mjs';
import { world } from './world.mjs';

const client = await load(process.env.CAY_CLIENT);

describe(client.name, { concurrency: 4 }, () => {
  for (const [dialect, recordings] of Object.entries(world.recorded)) {
    for (const { model, stream, want, fails } of recordings) {
      test(`${dialect} ${model}${stream ? ' streamed' : ''}`, { timeout: 60_000 }, async () => {
        const call = client.talk({ model: `${dialect}/${model}` }).say([{ text: 'Again' }], { stream });
        if (fails) {
          await refused(call);
          return;
        }
        const a = await call;
        assert.equal(a.text, want.text);
        assert.equal(a.reasoning, want.reasoning);
        // A call whose signature came late is written late: crosstest checks the order of others.
        const sorted = (calls) => calls.map((c) => JSON.stringify([c.name, c.input])).sort();
        assert.deepEqual(sorted(a.calls), sorted(want.calls));
        assert.ok(want.finish.includes(a.finish), `${a.finish} and not ${want.finish}`);
        assert.deepEqual([a.usage?.input ?? 0, a.usage?.output ?? 0], [want.usage.input ?? 0, want.usage.output ?? 0]);
      });
    }
  }
});
