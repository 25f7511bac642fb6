// What every client can do with every provider. A case gets the client, the name of
// the provider, and whether answers are to be streamed.
import assert from 'node:assert/strict';
import { asked, endOf } from './world.mjs';

/** The place and the days of weather. */
const weather = {
  weather: {
    description: 'The weather of a city',
    schema: { type: 'object', properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city'], additionalProperties: false },
  },
};
const place = {
  type: 'object', properties: { city: { type: 'string' }, degrees: { type: 'integer' } }, required: ['city', 'degrees'], additionalProperties: false,
};
const pixel = Buffer.from('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==', 'base64');
const pdf = Buffer.from('%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n');
const [paris, oslo] = [{ city: 'Paris', days: 3 }, { city: 'Oslo, "Norge" – øst', days: 1 }];

let serial = 0;
/** A text that nobody else sends. */
const marker = () => `case ${process.pid}.${++serial}`;

/** The cases by name. cx is {client, dialect, how: {stream}, model(name), echo(params, parts)}. */
export const cases = {
  async text(cx) {
    const deltas = [];
    const a = await cx.client.talk({ model: cx.model('text') }).say([{ text: 'Hi' }], { ...cx.how, onDelta: (d) => deltas.push(d) });
    assert.equal(a.text, 'Hello from the provider.');
    assert.equal(a.finish, 'stop');
    assert.deepEqual(a.calls, []);
    assert.equal(deltas.length > 1, Boolean(cx.how.stream));
    assert.equal(deltas.join(''), cx.how.stream ? a.text : '');
    assert.deepEqual([a.usage.input, a.usage.output, a.usage.cached], [40, 12, 16]);
  },

  async settings(cx) {
    const e = await cx.echo({ system: 'Be brief.', maxTokens: 123, temperature: 0.5, stop: ['STOP'] }, [{ text: 'Grüße 👋 "\\' }]);
    assert.equal(e.system, 'Be brief.');
    assert.deepEqual(e.turns, [{ role: 'user', text: 'Grüße 👋 "\\' }]);
    assert.equal(e.maxTokens, 123);
    if (cx.client.name !== 'anthropic-v1') assert.equal(e.temperature, 0.5);
    // Responses have no stop sequences, on either side.
    if (cx.client.surface !== 'responses' && cx.dialect !== 'responses') assert.deepEqual(e.stop, ['STOP']);
  },

  async conversation(cx) {
    const talk = cx.client.talk({ model: cx.model('echo') });
    const first = await talk.say([{ text: 'One' }], cx.how);
    const e = JSON.parse((await talk.say([{ text: 'Two' }], cx.how)).text);
    assert.deepEqual(e.turns.map((t) => [t.role, t.text]), [['user', 'One'], ['assistant', first.text], ['user', 'Two']]);
  },

  async image(cx) {
    const e = await cx.echo({}, [{ text: 'What is this?' }, { image: pixel, type: 'image/png' }]);
    assert.equal(e.turns[0].text, 'What is this?');
    assert.deepEqual(e.turns[0].files.map((f) => [f.type, f.bytes]), [['image/png', pixel.length]]);
  },

  async pdf(cx) {
    const e = await cx.echo({}, [{ text: 'Read this.' }, { pdf, name: 'paper.pdf' }]);
    assert.deepEqual(e.turns[0].files.map((f) => [f.type, f.bytes]), [['application/pdf', pdf.length]]);
  },

  async 'image by URL'(cx) {
    const imageURL = 'https://images.example.com/cat.png';
    if (['converse', 'gemini'].includes(cx.dialect)) { // they take bytes only, and the gateway finds no cat there
      await assert.rejects(cx.echo({}, [{ text: 'Look' }, { imageURL }]));
      return;
    }
    const e = await cx.echo({}, [{ text: 'Look' }, { imageURL }]);
    assert.deepEqual(e.turns[0].files.map((f) => f.url), [imageURL]);
  },

  async tools(cx) {
    const talk = cx.client.talk({ model: cx.model('tools'), tools: weather });
    const a = await talk.say([{ text: 'Weather in Paris and Oslo?' }], cx.how);
    assert.equal(a.finish, 'tool-calls');
    assert.equal(a.text, 'I look it up.');
    assert.deepEqual(a.calls.map((c) => [c.name, c.input]), [['weather', paris], ['weather', oslo]]);
    assert.equal(new Set(a.calls.map((c) => c.id)).size, 2);
    const b = await talk.results([{ call: a.calls[0], text: 'sun' }, { call: a.calls[1], text: 'snow' }], cx.how);
    assert.equal(b.finish, 'stop');
    assert.match(b.text, /^2 results: .*sun.* and .*snow/);
  },

  async 'tools without arguments'(cx) {
    const talk = cx.client.talk({ model: cx.model('noargs'), tools: { now: { description: 'The time', schema: { type: 'object', properties: {} } } } });
    const a = await talk.say([{ text: 'What time is it?' }], cx.how);
    assert.deepEqual(a.calls.map((c) => [c.name, c.input]), [['now', {}]]);
    assert.equal((await talk.results([{ call: a.calls[0], text: 'noon' }], cx.how)).text, 'Done.');
  },

  async 'a tool that failed'(cx) {
    const talk = cx.client.talk({ model: cx.model('tools'), tools: weather });
    const a = await talk.say([{ text: 'Weather?' }], cx.how);
    const b = await talk.results(a.calls.map((call) => ({ call, text: 'no such city', failed: true })), cx.how);
    assert.match(b.text, /no such city.* and .*no such city/);
  },

  async 'tool choice'(cx) {
    for (const [choice, want] of [['required', ['required', 'weather']], ['weather', ['weather']], ['auto', ['auto', undefined, '']]]) {
      const a = await cx.client.talk({ model: cx.model('caller'), tools: weather, choice }).say([{ text: 'Go' }], cx.how);
      const e = a.calls[0].input;
      assert.deepEqual(e.tools, ['weather']);
      assert.ok(want.includes(e.choice), `${choice} came as ${e.choice}`);
    }
    const none = await cx.echo({ tools: weather, choice: 'none' }, [{ text: 'Go' }]);
    assert.ok(none.choice === 'none' || !none.tools, JSON.stringify(none)); // Bedrock is told of no tools
  },

  async 'structured output'(cx) {
    const a = await cx.client.talk({ model: cx.model('json'), schema: place }).say([{ text: 'Where is it warm?' }], cx.how);
    assert.deepEqual(JSON.parse(a.text), { city: 'Paris', degrees: 21 });
    assert.equal(a.finish, 'stop');
  },

  async 'reasoning in a tool loop'(cx) {
    const talk = cx.client.talk({ model: cx.model('think'), tools: weather });
    const a = await talk.say([{ text: 'Weather?' }], cx.how);
    assert.equal(a.reasoning, 'The user wants the weather.');
    assert.deepEqual(a.calls.map((c) => c.input), [paris]);
    if (cx.dialect !== 'converse') assert.equal(a.usage.reasoning, 15);
    assert.equal(a.usage.output, 25);
    const b = await talk.results([{ call: a.calls[0], text: 'sun' }], cx.how);
    assert.equal(b.text, 'The signature came back.'); // else the provider refuses
  },

  async 'reasoning in a conversation'(cx) {
    const talk = cx.client.talk({ model: cx.model('muse') });
    const a = await talk.say([{ text: 'Think.' }], cx.how);
    assert.deepEqual([a.reasoning, a.text, a.finish], ['Let me think about it.', 'I have thought.', 'stop']);
    assert.equal((await talk.say([{ text: 'And?' }], cx.how)).text, 'The signature came back.');
  },

  async 'finish reasons'(cx) {
    const long = await cx.client.talk({ model: cx.model('long'), maxTokens: 5 }).say([{ text: 'Talk' }], cx.how);
    assert.deepEqual([long.text, long.finish], ['It goes on and', 'length']);
    const filtered = await cx.client.talk({ model: cx.model('filtered') }).say([{ text: 'Talk' }], cx.how);
    assert.equal(filtered.finish, 'content-filter');
  },

  async metadata(cx) {
    const a = await cx.client.talk({ model: cx.model('text'), gateway: { tags: ['conformance'], user: 'somebody' } }).say([{ text: 'Hi' }], cx.how);
    assert.match(a.metadata?.generationId ?? '', /^gen_[0-9A-Za-z]{26}$/);
    assert.match(String(a.metadata.cost), /^\d+(\.\d+)?$/);
    assert.equal(a.metadata.routing.finalProvider, cx.dialect);
    assert.deepEqual(a.metadata.routing.modelAttempts.flatMap((m) => m.providerAttempts.map((p) => [p.provider, p.success])), [[cx.dialect, true]]);
  },

  async 'errors of the provider'(cx) {
    for (const [model, statuses] of Object.entries({
      'fail-rejected': [400], 'fail-rate-limited': [429], 'fail-overloaded': [503, 529, 502],
      'fail-server-error': [500, 502, 503], 'fail-bad-key': [500, 502, 503, 424], 'fail-secret-in-errors': [500, 502, 503, 424],
    })) {
      const err = await refused(cx.client.talk({ model: cx.model(model) }).say([{ text: marker() }], cx.how));
      assert.ok(statuses.includes(statusOf(err)), `${model}: ${statusOf(err)} ${err.stack}`);
      const said = `${err.message} ${err.responseBody ?? ''} ${JSON.stringify(err.error ?? '')}`;
      assert.ok(!said.includes('sk-upstream'), `a credential is in ${said}`);
    }
  },

  async 'retry-after'(cx) {
    const err = await refused(cx.client.talk({ model: cx.model('fail-rate-limited') }).say([{ text: marker() }], cx.how));
    const headers = err.headers ?? err.responseHeaders ?? err.cause?.responseHeaders;
    const after = headers?.get ? headers.get('retry-after') : headers?.['retry-after'];
    assert.equal(after, '1', `${err.stack} ${JSON.stringify(headers)}`);
  },

  async 'a failure nobody sees'(cx) {
    const text = marker();
    const a = await cx.client.talk({ model: cx.model('flaky') }).say([{ text }], cx.how);
    assert.equal(a.text, 'Hello from the provider.');
    assert.equal(await asked(cx.model('flaky'), text, 2), 2);
  },

  async 'an answer that breaks off'(cx) {
    for (const model of ['fail-cut', 'fail-short', 'fail-garbage', 'fail-wrong-type']) {
      await refused(cx.client.talk({ model: cx.model(model) }).say([{ text: marker() }], cx.how), model);
    }
    // Compatible servers may leave out [DONE], not more.
    if (!(cx.how.stream && (cx.dialect === 'chat' || cx.dialect === 'compatible'))) {
      await refused(cx.client.talk({ model: cx.model('fail-no-end') }).say([{ text: marker() }], cx.how), 'fail-no-end');
    }
    if (cx.how.stream) await refused(cx.client.talk({ model: cx.model('fail-error-in-stream') }).say([{ text: marker() }], cx.how), 'error in stream');
  },

  async 'an answer byte by byte'(cx) {
    const a = await cx.client.talk({ model: cx.model('fail-drip') }).say([{ text: marker() }], cx.how);
    assert.equal(a.text, 'Hello from the provider.');
  },

  async abort(cx) {
    const text = marker();
    const controller = new AbortController();
    const model = cx.how.stream ? 'slow' : 'fail-hang-in-head';
    const call = cx.client.talk({ model: cx.model(model) }).say([{ text }], { ...cx.how, signal: controller.signal, onDelta: () => controller.abort() });
    if (!cx.how.stream) {
      await asked(cx.model(model), text, 1);
      controller.abort();
    }
    await refused(call, 'abort');
    assert.equal((await endOf(cx.model(model), text)).canceled, true);
  },
};

/** The error a call ends with. */
export async function refused(call, what = 'it') {
  const err = await call.then((v) => assert.fail(`${what} was answered: ${JSON.stringify(v)}`), (e) => e);
  if (err instanceof assert.AssertionError) throw err;
  return err;
}

/** The HTTP status of an error of any of the clients. */
export const statusOf = (err) => err.status ?? err.statusCode ?? err.lastError?.statusCode ?? err.cause?.statusCode;

export { pixel, weather };
