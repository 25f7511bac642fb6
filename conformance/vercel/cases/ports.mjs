import assert from 'node:assert/strict';
import { request, WebSocket } from 'undici';
import { awaitOutput } from '../case.mjs';
import { world } from '../world.mjs';

const server = `
const http = require('node:http');
const ports = process.argv.slice(2);
let left = ports.length;
for (const port of ports) http.createServer((req, res) => {
  if (req.url === '/events') {
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    res.write('data: first\\n\\n');
    req.on('close', () => res.end());
    return;
  }
  let body = '';
  req.on('data', (part) => body += part).on('end', () => {
    res.writeHead(200, { 'x-port': port });
    res.end(JSON.stringify({ port, method: req.method, url: req.url, body, key: req.headers['x-key'] }));
  });
}).on('upgrade', (req, socket) => {
  const accept = require('node:crypto').createHash('sha1').update(req.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest('base64');
  socket.write('HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Accept: ' + accept + '\\r\\n\\r\\n');
  socket.on('data', (frame) => { // a short one, masked; it goes back as it came, unmasked
    const [mask, body] = [frame.subarray(2, 6), frame.subarray(6)];
    socket.write(Buffer.concat([Buffer.from([frame[0], body.length]), body.map((b, i) => b ^ mask[i % 4])]));
  });
}).listen(port, () => { if (--left === 0) console.log('listening'); });
`;

// Starts the server on ports and waits until it listens.
async function serve(box, ports) {
  await box.writeFiles([{ path: '/tmp/server.js', content: server }]);
  const command = await box.runCommand({ cmd: 'node', args: ['/tmp/server.js', ...ports.map(String)], detached: true });
  await awaitOutput(command, 'listening');
  return command;
}

export default ({ all, from, sdk }) => {
  all('domain: a server can be reached', async (c) => {
    const box = await c.fresh({ ports: [3000, 4000] });
    assert.match(box.domain(3000), /^https:\/\/[a-z0-9-]+\.vercel\.run$/);
    await serve(box, [3000, 4000]);
    for (const port of [3000, 4000]) {
      const answer = await fetch(box.domain(port));
      assert.equal(answer.headers.get('x-port'), `${port}`);
      assert.equal((await answer.json()).port, `${port}`);
    }
    const answer = await fetch(`${box.domain(3000)}/a/path?q=1`, { method: 'POST', body: 'hello', headers: { 'x-key': 'v' } });
    assert.deepEqual(await answer.json(), { port: '3000', method: 'POST', url: '/a/path?q=1', body: 'hello', key: 'v' });
    for (const { url, port, subdomain } of box.routes) {
      const { host, hostname } = new URL(url);
      assert.ok(hostname.startsWith(`${subdomain}.`), url);
      // Not every machine resolves names below localhost.
      const direct = await request(world.url, { headers: { host } });
      assert.equal((await direct.body.json()).port, `${port}`);
    }
  });

  all('domain: events come while they are made', async (c) => {
    const box = await c.fresh({ ports: [3000] });
    await serve(box, [3000]);
    const controller = new AbortController();
    const answer = await fetch(`${box.domain(3000)}/events`, { signal: controller.signal });
    const { value } = await answer.body.getReader().read();
    assert.equal(Buffer.from(value).toString(), 'data: first\n\n');
    controller.abort();
  });

  all('domain: a WebSocket', async (c) => {
    const box = await c.fresh({ ports: [3000] });
    await serve(box, [3000]);
    const socket = new WebSocket(box.domain(3000).replace('https:', 'wss:'));
    await new Promise((resolve, reject) => Object.assign(socket, { onopen: resolve, onerror: reject }));
    const answer = new Promise((resolve, reject) => Object.assign(socket, { onmessage: resolve, onclose: reject }));
    socket.send('over and back');
    assert.equal((await answer).data, 'over and back');
    socket.close();
  });

  all('domain: nothing listens', async (c) => {
    const box = await c.fresh({ ports: [3000] });
    assert.equal((await fetch(box.domain(3000))).status, 502);
  });

  all('ports: fifteen', async (c) => {
    const ports = Array.from({ length: 15 }, (_, i) => 3000 + i);
    const box = await c.fresh({ ports });
    assert.deepEqual(box.routes.map((r) => r.port).sort(), ports);
    assert.equal(new Set(box.routes.map((r) => r.subdomain)).size, 15);
  });

  from(2)('update: ports change at once', async (c) => {
    const box = await c.fresh({ ports: [3000] });
    await serve(box, [3000, 4000]);
    const before = box.domain(3000);
    await box.update({ ports: [4000] });
    assert.deepEqual(box.routes.map((r) => r.port), [4000]);
    assert.throws(() => box.domain(3000), /3000/);
    assert.equal((await (await fetch(box.domain(4000))).json()).port, '4000');
    assert.ok(!(await fetch(before)).ok);
    await box.update({ ports: [] });
    assert.deepEqual((await sdk.get(box)).routes, []);
  });

  from(2)('domain: after a resume', async (c) => {
    const box = await c.fresh({ ports: [3000], persistent: true });
    await box.stop();
    await serve(box, [3000]);
    assert.equal((await (await fetch(box.domain(3000))).json()).port, '3000');
  });
};
