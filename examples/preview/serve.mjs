// A development server: it serves the files beside it, and tells open pages,
// over a WebSocket, to load again when one of them changes. Node alone, so that
// nothing has to be installed.
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { watch } from 'node:fs';
import { createServer } from 'node:http';
import { extname, join, normalize } from 'node:path';

const root = import.meta.dirname;
const port = Number(process.env.PORT ?? 3000);
const types = { '.html': 'text/html', '.css': 'text/css', '.js': 'text/javascript', '.svg': 'image/svg+xml' };
const pages = new Set(); // sockets of open pages

const client = `<script type="module">
  const live = new WebSocket('/live');
  live.onopen = () => document.documentElement.dataset.live = 'open';
  live.onmessage = () => location.reload();
</script>`;

const server = createServer(async (req, res) => {
  const { pathname } = new URL(req.url, 'http://server');
  const file = join(root, normalize(pathname === '/' ? '/index.html' : pathname));
  try {
    let body = await readFile(file);
    if (extname(file) === '.html') body = String(body).replace('</body>', client + '</body>');
    res.writeHead(200, { 'content-type': types[extname(file)] ?? 'application/octet-stream', 'cache-control': 'no-store' });
    res.end(body);
  } catch {
    res.writeHead(404, { 'content-type': 'text/plain' }).end('not found\n');
  }
});

// RFC 6455, the little of it a server that only talks needs.
server.on('upgrade', (req, socket) => {
  const accept = createHash('sha1').update(req.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11').digest('base64');
  socket.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`);
  pages.add(socket);
  socket.on('close', () => pages.delete(socket)).on('error', () => socket.destroy());
  socket.resume();
});

let changed; // one change of a file is several events
watch(root, () => {
  clearTimeout(changed);
  changed = setTimeout(() => {
    for (const page of pages) page.write(Buffer.from([0x81, 6, ...Buffer.from('reload')]));
  }, 50);
});

// On localhost, as development servers do.
server.listen(port, 'localhost', () => console.log(`listening on http://localhost:${port}`));
