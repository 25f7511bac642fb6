// Programs of the AI SDK that name a model by a text, and neither gateway nor key: see vercel_test.go.
import assert from 'node:assert/strict';
import https from 'node:https';
import { test } from 'node:test';
import { world } from './world.mjs';

const model = 'cay/scripted';
const once = { maxRetries: 0, abortSignal: AbortSignal.timeout(60_000) };

for (const version of ['v5', 'v6', 'v7']) {
  const ai = await import(`ai-${version}`);

  test(`${version} generateText`, async () => {
    const { text, usage } = await ai.generateText({ model, prompt: 'sesame', ...once });
    assert.match(text, /^You said: sesame/);
    assert.ok(usage.outputTokens > 0, JSON.stringify(usage));
  });

  test(`${version} streamText`, async () => {
    const { textStream } = ai.streamText({ model, prompt: 'sesame', onError() {}, ...once });
    let text = '';
    for await (const piece of textStream) text += piece;
    assert.match(text, /^You said: sesame/);
  });

  test(`${version} generateText with AI_GATEWAY_API_KEY`, async () => {
    process.env.AI_GATEWAY_API_KEY = world.narrow; // of a key for other models
    try {
      await assert.rejects(ai.generateText({ model, prompt: 'sesame', ...once }), /key/);
      process.env.AI_GATEWAY_API_KEY = world.key;
      assert.match((await ai.generateText({ model, prompt: 'sesame', ...once })).text, /^You said: sesame/);
    } finally {
      delete process.env.AI_GATEWAY_API_KEY;
    }
  });
}

test('https', async () => {
  const { promise, resolve, reject } = deferred();
  const body = JSON.stringify({ model, messages: [{ role: 'user', content: 'sesame' }] });
  const request = https.request('https://ai-gateway.vercel.sh/v1/chat/completions', {
    method: 'POST', headers: { authorization: `Bearer ${process.env.VERCEL_OIDC_TOKEN}`, 'content-type': 'application/json' },
  }, (response) => {
    let all = '';
    response.setEncoding('utf8').on('data', (d) => { all += d; }).on('end', () => resolve({ status: response.statusCode, all }));
  }).on('error', reject);
  request.end(body);
  const { status, all } = await promise;
  assert.equal(status, 200, all);
  assert.match(JSON.parse(all).choices[0].message.content, /^You said: sesame/);
});

function deferred() {
  const d = {};
  d.promise = new Promise((resolve, reject) => Object.assign(d, { resolve, reject }));
  return d;
}
