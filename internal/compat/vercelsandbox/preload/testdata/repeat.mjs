// Writes to a stream from two places at once, and sends messages, as the Workflow SDK does.
const api = 'https://vercel-workflow.com/api';
const write = async (text, headers) => {
  const answer = await fetch(`${api}/v2/runs/wrun_1/stream/strm_1`, { method: 'PUT', body: text === undefined ? undefined : new TextEncoder().encode(text), headers, dispatcher: { dispatch: () => { throw new Error('the bytes would be lost'); } } });
  await answer.text();
  return answer.status;
};
const send = async (text, headers) => {
  const answer = await fetch('https://iad1.vercel-queue.com/api/v3/topic/t', { method: 'POST', body: text, headers: new Headers(headers) });
  await answer.text();
  return answer.status;
};
const writer = async (name) => {
  const statuses = [];
  for (let i = 0; i < 4; i++) statuses.push(await write(i % 2 ? 'same' : name));
  return statuses;
};
const statuses = (await Promise.all([writer('a'), writer('b')])).flat();
statuses.push(await write(undefined, { 'x-stream-done': 'true' }));
for (let i = 0; i < 3; i++) statuses.push(await send(`message ${i}`, i === 2 ? { 'vqs-idempotency-key': 'own' } : {}));
const left = await fetch(`${api}/v2/runs/wrun_1/stream/left`, { method: 'PUT', body: 'x', signal: AbortSignal.timeout(100) }).catch((e) => e.name);
const other = await fetch(`${api}/v2/runs/wrun_1/attributes`, { method: 'POST', body: 'x' }).catch((e) => e.cause?.code ?? e.message);
console.log(JSON.stringify({ statuses, left, other }));
