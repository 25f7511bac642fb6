// Appends an event, as the Workflow SDK does, and sends a message.
const outcome = (p) => p.then((r) => String(r.status), (e) => e.cause?.code ?? e.message);
const post = (url) => fetch(url, { method: 'POST', body: new Uint8Array(3), headers: new Headers() });
const event = await outcome(post('https://vercel-workflow.com/api/v4/runs/wrun_1/events/hook_received'));
const message = await outcome(post('https://iad1.vercel-queue.com/api/v3/topic/t'));
const cancel = await outcome(post('https://vercel-workflow.com/api/v4/runs/cancel'));
console.log(JSON.stringify({ event, message, cancel, calls: Object.values(globalThis.calls) }));
