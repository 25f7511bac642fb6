// What is no call of a language model, and who is let in: each client as far as it
// goes.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { pixel, refused, statusOf, weather } from './cases.mjs';
import { load } from './clients.mjs';
import { world } from './world.mjs';

const client = await load(process.env.CAY_CLIENT);
const say = (params, how) => client.talk({ model: 'chat/text', ...params }).say([{ text: 'Hi' }], how);
const is = (...surfaces) => surfaces.includes(client.surface);
const when = (applies, name, run) => applies && test(name, { timeout: 60_000 }, run);

describe(client.name, () => {
  for (const stream of [false, true]) {
    const of = (name) => `${name}${stream ? ' (streamed)' : ''}`;

    test(of('a key nobody knows'), async () => {
      const err = await refused(say({ key: 'cgk_nobody' }, { stream }));
      if (!is('aisdk')) assert.equal(statusOf(err), 401, err.stack);
      assert.match(`${err.name} ${err.constructor.name}`, /AuthenticationError/); // AI SDK says no status
    });

    test(of('a model nobody has'), async () => {
      const err = await refused(say({ model: 'nobody/nothing' }, { stream }));
      assert.equal(statusOf(err), 404, err.stack);
      if (is('aisdk')) assert.equal(err.modelId ?? err.cause?.modelId, 'nobody/nothing');
    });

    test(of('a budget that is used up'), async () => {
      const err = await refused(say({ key: world.spent }, { stream }));
      assert.equal(statusOf(err), 402, err.stack);
      assert.match(err.message, /budget/i);
    });

    test(of('a model the key may not call'), async () => {
      const err = await refused(say({ key: world.narrow, model: 'gemini/text' }, { stream }));
      assert.equal(statusOf(err), 403, err.stack);
      assert.equal((await say({ key: world.narrow }, { stream })).text, 'Hello from the provider.');
    });

    test(of('another provider takes over'), async () => {
      const a = await say({ model: 'twice/text', gateway: { order: ['refusing', 'chat'] } }, { stream });
      assert.equal(a.text, 'Hello from the provider.');
      const attempts = a.metadata.routing.modelAttempts.flatMap((m) => m.providerAttempts);
      // One that refuses again and again is not asked for a while.
      assert.ok(attempts.slice(0, -1).every((p) => p.provider === 'refusing' && !p.success), JSON.stringify(attempts));
      assert.deepEqual([attempts.at(-1).provider, attempts.at(-1).success], ['chat', true]);
    });

    test(of('another model takes over'), async () => {
      const a = await say({ model: 'chat/fail-server-error', gateway: { models: ['gemini/text'] } }, { stream });
      assert.equal(a.text, 'Hello from the provider.');
      assert.equal(a.metadata.routing.finalProvider, 'gemini');
    });
  }

  test('an image in the result of a tool', { skip: !(is('aisdk') || is('messages')) && 'the format has none' }, async () => {
    for (const dialect of ['messages', 'converse']) {
      const talk = client.talk({ model: `${dialect}/tools`, tools: weather });
      const a = await talk.say([{ text: 'Weather?' }]);
      const b = await talk.results(a.calls.map((call) => ({ call, text: 'see', image: { image: pixel, type: 'image/png' } })));
      assert.match(b.text, /see.* and .*see/);
    }
  });

  when(is('chatcompletions'), 'models', async () => {
    const ids = [];
    for await (const m of client.open().models.list()) ids.push(m.id);
    assert.ok(ids.includes('chat/text') && ids.includes('converse/think'), String(ids.length));
    assert.equal((await client.open().models.retrieve('gemini/text')).id, 'gemini/text');
  });

  when(is('chatcompletions'), 'embeddings', async () => {
    const one = await client.open().embeddings.create({ model: 'chat/embed', input: 'four' });
    assert.deepEqual([one.data[0].embedding, one.usage.prompt_tokens], [[4, 0.25, 0.5, -0.75], 3]);
    const two = await client.open().embeddings.create({ model: 'chat/embed', input: ['a', 'bc'], encoding_format: 'float' });
    assert.deepEqual(two.data.map((d) => d.embedding[0]), [1, 2]);
  });

  when(is('chatcompletions'), 'images', async () => {
    const r = await client.open().images.generate({ model: 'chat/draw', prompt: 'a pixel', n: 2 });
    assert.deepEqual(r.data.map((d) => d.b64_json), [pixel.toString('base64'), pixel.toString('base64')]);
  });

  when(is('messages'), 'count_tokens', async () => {
    for (const dialect of ['messages', 'chat']) {
      const n = await client.open().messages.countTokens({ model: `${dialect}/text`, messages: [{ role: 'user', content: 'Hello there' }] });
      assert.ok(n.input_tokens > 0, JSON.stringify(n));
    }
  });

  when(is('messages'), 'cache_control reaches providers that have it', async () => {
    for (const dialect of ['messages', 'converse']) {
      const a = await client.talk({ model: `${dialect}/claude`, system: 'A long story.', cache: true }).say([{ text: 'Hi' }]);
      assert.equal(JSON.parse(a.text).cached, 1, dialect);
    }
  });

  when(is('aisdk'), 'embed', async () => {
    const { embed, embedMany } = client.module;
    const model = (client.gateway().textEmbeddingModel ?? client.gateway().embeddingModel)('chat/embed');
    const one = await embed({ model, value: 'four', maxRetries: 0 });
    assert.deepEqual([one.embedding, one.usage.tokens], [[4, 0.25, 0.5, -0.75], 3]);
    const many = await embedMany({ model, values: ['a', 'bc', 'def'], maxRetries: 0 });
    assert.deepEqual(many.embeddings.map((e) => e[0]), [1, 2, 3]);
  });

  when(is('aisdk'), 'generateImage', async () => {
    const generate = client.module.generateImage ?? client.module.experimental_generateImage;
    const r = await generate({ model: client.gateway().imageModel('chat/draw'), prompt: 'a pixel', n: 2, maxRetries: 0 });
    assert.deepEqual(r.images.map((i) => Buffer.from(i.uint8Array)), [pixel, pixel]);
  });

  when(is('aisdk') && client.major >= 6, 'rerank', async () => {
    const r = await client.module.rerank({ model: client.gateway().rerankingModel('chat/rank'), documents: ['a', 'b', 'c'], query: 'c?', topN: 2, maxRetries: 0 });
    assert.deepEqual(r.ranking.map((x) => x.originalIndex), [2, 1]);
  });

  when(is('aisdk'), 'getAvailableModels', async () => {
    const { models } = await client.gateway().getAvailableModels();
    const m = models.find((x) => x.id === 'gemini/text');
    assert.equal(m?.specification.specificationVersion, { 5: 'v2', 6: 'v3', 7: 'v4' }[client.major]);
    assert.ok(Number(m.pricing.input) > 0, JSON.stringify(m.pricing));
  });

  when(is('aisdk'), 'getCredits', async () => {
    const c = await client.gateway().getCredits();
    assert.match(c.balance, /^-?\d/);
    assert.match(c.totalUsed, /^\d/);
  });

  when(is('aisdk') && client.major >= 6, 'getGenerationInfo says what the metadata said', async () => {
    const a = await client.talk({ model: 'messages/text', gateway: { tags: ['looked-up'] } }).say([{ text: 'Hi' }]);
    const g = await client.gateway().getGenerationInfo({ id: a.metadata.generationId });
    assert.deepEqual([g.id, g.providerName, g.streamed, g.finishReason], [a.metadata.generationId, 'messages', false, 'stop']);
    assert.equal(g.totalCost, Number(a.metadata.cost));
    assert.deepEqual([g.promptTokens, g.completionTokens, g.cachedTokens], [40, 12, 16]);
  });

  when(is('aisdk') && client.major >= 6, 'getSpendReport', async () => {
    await client.talk({ model: 'messages/text', gateway: { tags: [`report-${client.name}`] } }).say([{ text: 'Hi' }]);
    const today = new Date().toISOString().slice(0, 10);
    const { results } = await client.gateway().getSpendReport({ startDate: today, endDate: today, groupBy: 'tag' });
    const row = results.find((r) => r.tag === `report-${client.name}`);
    assert.ok(row?.totalCost > 0, JSON.stringify(results));
    assert.deepEqual([row.inputTokens, row.outputTokens], [40, 12]);
  });

  when(is('aisdk'), 'plain strings through AI_SDK_DEFAULT_PROVIDER', async () => {
    globalThis.AI_SDK_DEFAULT_PROVIDER = client.gateway();
    try {
      const r = await client.module.generateText({ model: 'gemini/text', prompt: 'Hi', maxRetries: 0 });
      assert.equal(r.text, 'Hello from the provider.');
    } finally {
      delete globalThis.AI_SDK_DEFAULT_PROVIDER;
    }
  });
});
