// Reads answers with the transports of the official clients, over connections that are
// cut at any chunk, and compares the messages that come of it with those of answers
// that nothing happened to.
//
//   node transports.mjs <world.json
import assert from 'node:assert/strict';
import { text } from 'node:stream/consumers';
import * as v5 from 'ai-v5';
import * as v6 from 'ai';
import * as v7 from 'ai-v7';
import { WorkflowChatTransport as WorkflowTransportV6 } from '@workflow/ai';
import { WorkflowChatTransport as WorkflowTransportV7 } from '@ai-sdk/workflow/client';

const world = JSON.parse(await text(process.stdin)); // {url, seed, answers: [[chunk]]}
let state = world.seed;
const random = (n) => (state = (state * 48271) % 0x7fffffff) % n;
console.error = () => {}; // where the transports tell of each cut

/** A fetch whose answers break off after some chunks. */
function cuttingFetch(counts) {
  return async (url, init) => {
    const response = await fetch(url, init);
    if (!response.ok || !response.body) return response;
    counts.connections++;
    let left = random(4) === 0 ? Infinity : 1 + random(12);
    const decoder = new TextDecoder();
    let pending = '';
    const cut = new TransformStream({
      transform(bytes, out) {
        pending += decoder.decode(bytes, { stream: true });
        for (let end; (end = pending.indexOf('\n\n')) >= 0; pending = pending.slice(end + 2)) {
          const event = pending.slice(0, end + 2);
          if (event.startsWith('data: {') && left-- <= 0) {
            counts.cuts++;
            out.error(new TypeError('network error'));
            return;
          }
          if (event.includes('reset-step')) counts.resets++;
          out.enqueue(new TextEncoder().encode(event));
        }
      },
    });
    return new Response(response.body.pipeThrough(cut), { headers: response.headers });
  };
}

/** The message that a stream of chunks gives. */
async function messageOf(ai, stream, seen = () => {}) {
  let last;
  const watched = stream.pipeThrough(new TransformStream({
    transform(chunk, out) {
      seen(chunk);
      out.enqueue(chunk);
    },
  }));
  const onError = (e) => { throw e; };
  for await (const m of ai.readUIMessageStream({ stream: watched, onError, terminateOnError: true })) last = m;
  return JSON.parse(JSON.stringify(last ?? null)); // null: nothing was said
}

const streamOf = (chunks) => new ReadableStream({
  start(c) {
    for (const chunk of chunks) c.enqueue(chunk);
    c.close();
  },
});

const user = (i) => [{ id: `m${i}`, role: 'user', parts: [{ type: 'text', text: String(i) }] }];
const prepareSendMessagesRequest = ({ id, messages, trigger, messageId }) => ({
  headers: { 'content-type': 'application/json' },
  body: { id, messages, trigger, messageId },
});

/** The chunks of a stream from an index on, at most some. */
async function read(api, run, from, most = Infinity) {
  const response = await fetch(`${api}/${run}/stream?startIndex=${from}`);
  assert.equal(response.status, 200);
  const stop = new AbortController();
  const chunks = [];
  if (most === 0) { await response.body.cancel(); return chunks; }
  for await (const part of response.body.pipeThrough(new TextDecoderStream()).pipeThrough(byEvent())) {
    if (!part.startsWith('data: {')) continue;
    chunks.push(JSON.parse(part.slice(6)));
    if (chunks.length === most) break;
  }
  return chunks;
}

function byEvent() {
  let pending = '';
  return new TransformStream({
    transform(s, out) {
      const events = (pending + s).split('\n\n');
      pending = events.pop();
      for (const e of events) out.enqueue(e);
    },
  });
}

const counts = { connections: 0, cuts: 0, resets: 0, rereads: 0, reads: 0 };

async function check(i) {
  const clean = world.answers[i];
  for (const [name, ai, Transport] of [['v6', v6, WorkflowTransportV6], ['v7', v7, WorkflowTransportV7]]) {
    const api = `${world.url}/${name}`;
    const want = await messageOf(ai, streamOf(clean));
    let run;
    const transport = new Transport({
      api, prepareSendMessagesRequest, maxConsecutiveErrors: 1000, fetch: cuttingFetch(counts),
      onChatSendMessage: (response) => { run = response.headers.get('x-workflow-run-id'); },
    });
    let again = false;
    const seen = (chunk) => { again ||= chunk.type === 'data-reset-step'; };
    let got = await messageOf(ai, await transport.sendMessages({ chatId: `c${i}`, messages: user(i), trigger: 'submit-message' }), seen);
    for (let n = 0; again; n++) { // what a page does that is told
      assert(name === 'v6' && n < 10, 'data-reset-step');
      counts.rereads++;
      again = false;
      const whole = new Transport({ api, maxConsecutiveErrors: 1000 });
      got = await messageOf(ai, await whole.reconnectToStream({ chatId: run }), seen);
    }
    assert.deepEqual(got, want, `answer ${i} as ${name} has it`);

    // When it is over: cut at each chunk.
    const all = await read(api, run, 0);
    for (let cut = 0; cut <= all.length; cut++) {
      const two = [...all.slice(0, cut), ...(await read(api, run, cut))];
      assert.deepEqual(await messageOf(ai, streamOf(two)), want, `answer ${i}, ${name}, cut at ${cut}`);
      counts.reads++;
    }
    // The SDK's own transport, of all versions.
    for (const old of name === 'v6' ? [v5, v6] : [v7]) {
      const plain = new old.DefaultChatTransport({ api });
      assert.deepEqual(
        await messageOf(old, await plain.reconnectToStream({ chatId: run })),
        await messageOf(old, streamOf(clean)), `answer ${i} by DefaultChatTransport`,
      );
    }
    // Who begins near the end sees what comes from there on, and does not fail.
    for (const back of [1, 2, 5, 9]) {
      const tail = new Transport({ api, initialStartIndex: -back });
      await messageOf(ai, await tail.reconnectToStream({ chatId: run }));
    }
  }
}

const next = world.answers.keys();
await Promise.all(Array.from({ length: 4 }, async () => {
  for (const i of next) await check(i);
}));
console.log(JSON.stringify(counts));
