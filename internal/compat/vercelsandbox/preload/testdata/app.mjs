// A server that answers as one of the SDK's routes does, or one that knows nothing of them. It
// prints a line of JSON for each thing that happens, and does what lines of its input say.
import cluster from 'node:cluster';
import http from 'node:http';
import readline from 'node:readline';

const say = (what) => console.log(JSON.stringify(what));
const [kind] = process.argv.slice(2);
let starting = kind === 'starting' ? 2 : 0; // health checks that it cannot answer yet
let knows = kind !== 'other';
const held = []; // answers to deliveries, which wait for a line

function serve() {
  const server = http.createServer((request, response) => {
    const { pathname, searchParams } = new URL(request.url.replace(/^\/+/, '/'), 'http://app');
    say({ event: 'request', url: request.url });
    if (starting-- > 0) response.statusCode = 503;
    else if (!knows) response.statusCode = 404;
    else if (searchParams.has('__health')) response.write(JSON.stringify({ healthy: true, endpoint: pathname }));
    if (request.headers['ce-vqsreceipthandle']) held.push(response);
    else response.end();
  });
  server.listen(0, '127.0.0.1', () => say({ event: 'listening', url: `http://127.0.0.1:${server.address().port}`, secret: process.env.CAY_DELIVERY_SECRET }));
  return server;
}

if (kind === 'cluster' && cluster.isPrimary) {
  const workers = [cluster.fork(), cluster.fork()];
  readline.createInterface({ input: process.stdin }).on('line', () => workers.pop().disconnect()).on('close', () => process.exit());
} else {
  let server = serve();
  if (kind !== 'cluster') {
    const does = {
      move: () => server.close(() => { server = serve(); }),
      close: () => server.close(),
      answer: () => held.shift().end(),
      acknowledge: (receipt) => fetch(`https://iad1.vercel-queue.com/api/v3/topic/t/consumer/default/lease/${receipt}`, { method: 'DELETE' }),
      use: async () => {
        knows = true;
        await fetch('https://vercel-workflow.com/api/v2/runs').catch((e) => say({ event: e.message }));
      },
    };
    readline.createInterface({ input: process.stdin }).on('line', (line) => {
      const [name, ...args] = line.split(' ');
      return does[name](...args);
    }).on('close', () => process.exit());
  }
}
