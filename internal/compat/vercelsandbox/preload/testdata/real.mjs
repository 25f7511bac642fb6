// All ways to a daemon that really listens.
import https from 'node:https';
import tls from 'node:tls';

const out = {};
const run = async (name, f) => {
  try {
    out[name] = await f();
  } catch (e) {
    out[name] = `failed: ${e.message}: ${e.cause?.message ?? e.cause?.code ?? ''}`;
  }
};
const text = async (response) => `${response.status} ${await response.text()}`;

await run('api', async () => text(await fetch('https://vercel.com/api/echo?a=b', { method: 'POST', body: 'text', headers: { authorization: 'Bearer t' } })));
await run('request', async () => text(await fetch(new Request('https://vercel.com/api/echo', { method: 'POST', body: 'text' }))));
await run('stream', async () => {
  const body = new ReadableStream({
    start(c) {
      c.enqueue(new TextEncoder().encode('in '));
      c.enqueue(new TextEncoder().encode('parts'));
      c.close();
    },
  });
  return text(await fetch(new Request('https://vercel.com/api/echo', { method: 'POST', body, duplex: 'half' })));
});
await run('aborted', () => fetch('https://vercel.com/api/echo', { signal: AbortSignal.abort(new Error('left')) }));
await run('abortedLater', async () => {
  const left = new AbortController();
  const response = await fetch('https://vercel.com/api/hang', { signal: left.signal });
  left.abort();
  return response.text().then(() => 'whole', () => 'broken off');
});
await run('health', async () => text(await fetch(`https://${new URL(process.env.CAY_VERCEL_URL).hostname}/health`)));
await run('gateway', async () => text(await fetch('https://ai-gateway.vercel.sh/v4/ai/language-model', { method: 'POST', body: 'text', headers: { authorization: 'Bearer t' } })));
await run('preview', async () => text(await fetch('https://abc-1.vercel.run/echo')));
await run('redirect', async () => {
  const response = await fetch('https://abc-1.vercel.run/redirect');
  return `${response.url} ${await text(response)}`;
});
const get = (url) => new Promise((resolve, reject) => {
  https.get(url, (response) => {
    let all = '';
    response.on('data', (d) => { all += d; });
    response.on('end', () => resolve(`${response.statusCode} ${all}`));
  }).on('error', reject);
});
await run('https', () => get('https://abc-2.vercel.run/echo'));
await run('gatewayHTTPS', () => get('https://ai-gateway.vercel.sh/echo'));
await run('tls', () => new Promise((resolve, reject) => {
  const socket = tls.connect(443, 'abc-3.vercel.run', () => socket.write('GET /echo HTTP/1.1\r\nHost: abc-3.vercel.run\r\nConnection: close\r\n\r\n'));
  let all = '';
  socket.on('data', (d) => { all += d; });
  socket.on('end', () => resolve(all.split('\r\n\r\n')[1]));
  socket.on('error', reject);
}));
await run('websocket', () => new Promise((resolve, reject) => {
  if (!globalThis.WebSocket) return resolve('none');
  const socket = new WebSocket('wss://abc-4.vercel.run/socket');
  socket.onmessage = (e) => resolve(e.data);
  socket.onerror = (e) => reject(new Error(e.message, { cause: e.error }));
}));
console.log(JSON.stringify(out));
process.exit(0); // the WebSocket is still open
