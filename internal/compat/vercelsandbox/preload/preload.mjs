// Points programs written for Vercel Sandbox at a cay daemon, without a change to them:
//
//   export CAY_VERCEL_URL=http://127.0.0.1:7070 NODE_OPTIONS=--import=file:///path/of/this.mjs
//
// Two things of the process are replaced, for these names and no others:
//
//   fetch        https://vercel.com/api/, https://vercel.com/.well-known/ and https://api.vercel.com/
//                are the daemon's; its terminals' health probe, too.
//                https://ai-gateway.vercel.sh/ is the daemon's AI gateway, which has an address
//                of its own: $CAY_VERCEL_GATEWAY_URL. https://vercel-workflow.com/ and
//                https://*.vercel-queue.com/ are the daemon's, below /vercel/workflow and /vercel/queue.
//   tls.connect  *.vercel.run is the daemon's listener, which serves previews by that name, and so
//                is oidc.vercel.com, a daemon whose public_url that is. ai-gateway.vercel.sh is the
//                gateway's listener. All of Node's clients come by here: fetch, WebSocket, https,
//                and packages such as ws and undici. Connections to vercel-workflow.com and
//                *.vercel-queue.com are refused, since the daemon serves these names by other paths.
//
// In front of this text are workflow.mjs, which finds the server of apps that have workflows, and
// repeat.mjs, which repeats what apps send while the daemon starts anew.
import { syncBuiltinESMExports } from 'node:module';
import net from 'node:net';
import tls from 'node:tls';

const written = ''; // the daemon that serves this file writes its address here
const writtenGateway = ''; // and here that of its AI gateway, or off
const gatewayName = 'ai-gateway.vercel.sh';
const loaded = Symbol.for('cay.vercel');

if (!globalThis[loaded]) {
  globalThis[loaded] = true;
  const daemon = address('CAY_VERCEL_URL', process.env.CAY_VERCEL_URL || written || process.env.CAY_URL, 'a cay daemon, such as http://127.0.0.1:7070');
  const gateway = gatewayOf(process.env.CAY_VERCEL_GATEWAY_URL || writtenGateway || process.env.CAY_GATEWAY_URL);
  replaceFetch(daemon, gateway, watchServers(daemon));
  replaceConnect(daemon, gateway);
}

function gatewayOf(text) {
  if (!text || text === 'off') return { missing: text ? 'off' : 'unknown' };
  return address('CAY_VERCEL_GATEWAY_URL', text, 'the AI gateway of a cay daemon, such as http://127.0.0.1:7071, or to off');
}

// noGateway is what a program is told that calls a model where there is no gateway. The hosted
// service is no answer: it would get the daemon's token.
function noGateway(gateway, daemon) {
  return new Error(gateway.missing === 'off'
    ? `cay: ${gatewayName} leads to the AI gateway of ${daemon.base}, which is off; start the daemon with --gateway-listen, and this program again`
    : `cay: ${gatewayName} leads to the AI gateway of ${daemon.base}, whose address is not set; set CAY_VERCEL_GATEWAY_URL to it, such as http://127.0.0.1:7071`);
}

// address reads the value of a variable, which is to be the address of something.
function address(variable, text, wanted) {
  let url;
  try {
    url = new URL(text);
  } catch {} // said below
  if (!url || !/^https?:$/.test(url.protocol) || url.search || url.hash || url.username || url.password) {
    throw new Error(`cay: ${variable} is ${JSON.stringify(text)}; set it to the address of ${wanted}`);
  }
  return {
    base: url.origin + url.pathname.replace(/\/+$/, ''),
    origin: url.origin,
    name: url.hostname,
    host: url.hostname.replace(/^\[|\]$/g, ''), // of an IPv6 address
    port: Number(url.port) || (url.protocol === 'https:' ? 443 : 80),
    secure: url.protocol === 'https:',
  };
}

function replaceFetch(daemon, gateway, usedWorkflows) {
  const original = globalThis.fetch;
  const repeats = new Repeats(original, `${daemon.base}/vercel/workflow`);
  globalThis.fetch = function fetch(input, init) {
    const request = input instanceof Request;
    let url;
    try {
      url = new URL(request ? input.url : input);
    } catch {
      return original(input, init); // which says what is wrong with it
    }
    const models = url.protocol === 'https:' && !url.port && url.hostname === gatewayName;
    if (models && gateway.missing) return Promise.reject(noGateway(gateway, daemon)); // which clients do not repeat
    const to = models ? gateway.base + url.pathname + url.search : rewritten(url, daemon);
    if (!to) return original(input, init);
    if (isWorkflow(url.hostname)) {
      const method = (init?.method ?? (request ? input.method : 'GET')).toUpperCase();
      usedWorkflows(method, url);
      const sent = request ? undefined : repeats.send(method, url, to, init);
      if (sent) return sent;
    } else init = withStep(init, request ? input.headers : undefined);
    return original(request ? new Request(to, input) : to, init);
  };
}

// rewritten returns where on the daemon a URL leads, undefined if that is not ours to say.
function rewritten(url, daemon) {
  if (url.protocol !== 'https:' || url.port) return;
  const rest = url.pathname + url.search;
  switch (url.hostname) {
    case 'vercel.com':
      if (/^\/(api|\.well-known)\//.test(rest)) return daemon.base + rest;
      return;
    case 'api.vercel.com':
      return `${daemon.base}/api${rest}`;
    case daemon.name: // clients ask port 443 of a terminal's host, whatever its port
      if (url.pathname === '/health' && url.origin !== daemon.origin) return daemon.base + rest;
  }
  if (isWorkflow(url.hostname)) return `${daemon.base}/vercel/${url.hostname.includes('queue') ? 'queue' : 'workflow'}${rest}`;
}

const isWorkflow = (name) => typeof name === 'string' && /^(vercel-workflow\.com|[a-z0-9-]+\.vercel-queue\.com)\.?$/i.test(name);

const isOurs = (name) => typeof name === 'string' && /^([a-z0-9-]+\.vercel\.run|oidc\.vercel\.com)\.?$/i.test(name);

const isGateway = (name) => typeof name === 'string' && name.toLowerCase().replace(/\.$/, '') === gatewayName;

function replaceConnect(daemon, gateway) {
  const serverOf = (name) => (isGateway(name) ? gateway : isOurs(name) ? daemon : undefined);
  const original = tls.connect;
  tls.connect = function connect(...args) {
    const options = optionsOf(args);
    if (isWorkflow(options.socket ? options.servername : options.host)) {
      throw new Error(`cay: ${options.servername ?? options.host} leads to ${daemon.base} for fetch alone; set WORKFLOW_EVENTS_TRANSPORT=http, and neither WORKFLOW_STREAMS_TRANSPORT nor WORKFLOW_NODE_HTTP`);
    }
    const server = serverOf(options.socket ? options.servername : options.host);
    if (!server || (options.path && !options.socket)) return original.apply(this, args);
    if (server.missing) throw noGateway(server, daemon);
    if (options.socket) {
      throw new Error(`cay: ${options.servername} leads to ${server.base} and cannot be reached through a proxy; except it there (NO_PROXY)`);
    }
    const then = args.findLast((a) => typeof a === 'function');
    if (server.secure) {
      const own = { ...options, host: server.host, port: server.port, servername: net.isIP(server.host) ? '' : server.host };
      delete own.lookup;
      delete own.session; // of another name
      return original.call(this, own, then);
    }
    return plain(server, options, then);
  };
  syncBuiltinESMExports();
}

// optionsOf merges the forms in which tls.connect takes its arguments.
function optionsOf(args) {
  const options = {};
  if (typeof args[0] === 'number' || (typeof args[0] === 'string' && /^\d+$/.test(args[0]))) options.port = Number(args[0]);
  else if (typeof args[0] === 'string') options.path = args[0];
  if (typeof args[1] === 'string') options.host = args[1];
  return Object.assign(options, ...args.filter((a) => a !== null && typeof a === 'object'));
}

// plain returns a connection without TLS that its user takes for one with: the
// server has none, and the operator has chosen so.
function plain(server, options, then) {
  const { timeout, signal, noDelay, keepAlive, keepAliveInitialDelay, highWaterMark, allowHalfOpen } = options;
  const socket = net.connect({
    host: server.host, port: server.port, timeout, signal, noDelay, keepAlive, keepAliveInitialDelay, highWaterMark, allowHalfOpen,
  });
  socket.encrypted = socket.authorized = true;
  socket.once('connect', () => socket.emit('secureConnect'));
  if (then) socket.once('secureConnect', then);
  return socket;
}
