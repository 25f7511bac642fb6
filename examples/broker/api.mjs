// An API that wants a key, and the name server that knows where it is: the
// outside world of this example. It prints the ports of both.
import { createSocket } from 'node:dgram';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';

const [name, directory, key] = process.argv.slice(2);

const api = createServer({ key: readFileSync(`${directory}/api.key`), cert: readFileSync(`${directory}/api.pem`) }, (req, res) => {
  const known = req.headers.authorization === `Bearer ${key}`;
  console.error(`api: ${req.method} ${req.url}, ${known ? 'with the right key' : 'without a key'}`);
  res.writeHead(known ? 200 : 401, { 'content-type': 'application/json' });
  res.end(JSON.stringify(known ? { answer: 42 } : { error: 'no key' }) + '\n');
});

// Answers every question for an IPv4 address with 127.0.0.1, others with nothing.
const dns = createSocket('udp4', (query, from) => {
  let end = 12;
  while (query[end] !== 0) end += query[end] + 1;
  end += 5; // the root, the type and the class
  const wantsAddress = query.readUInt16BE(end - 4) === 1;
  const header = Buffer.from(query.subarray(0, 12));
  header.writeUInt16BE(0x8180, 2);
  header.writeUInt16BE(wantsAddress ? 1 : 0, 6);
  header.fill(0, 8);
  const answer = Buffer.from('c00c00010001000000050004' + '7f000001', 'hex');
  dns.send(Buffer.concat([header, query.subarray(12, end), ...(wantsAddress ? [answer] : [])]), from.port, from.address);
});

dns.bind(0, '127.0.0.1', () => api.listen(0, '127.0.0.1', () => {
  console.log(`${dns.address().port} ${api.address().port}`);
}));
