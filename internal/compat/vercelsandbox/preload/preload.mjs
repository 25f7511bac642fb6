// Points programs written for Vercel Sandbox at a cay daemon, without a change to them:
//
//   export CAY_VERCEL_URL=http://127.0.0.1:7070 NODE_OPTIONS=--import=file:///path/of/this.mjs
//
// Two things of the process are replaced, for these names and no others:
//
//   fetch        https://vercel.com/api/, https://vercel.com/.well-known/ and https://api.vercel.com/
//                are the daemon's; so is the health probe of its terminals.
//   tls.connect  *.vercel.run is the daemon's listener, which serves previews by that name, and so
//                is oidc.vercel.com, a daemon whose public_url that is. All of Node's clients come
//                by here: fetch, WebSocket, https, and packages such as ws.
import { syncBuiltinESMExports } from 'node:module';
import net from 'node:net';
import tls from 'node:tls';

const written = ''; // the daemon that serves this file writes its address here
const loaded = Symbol.for('cay.vercel');

if (!globalThis[loaded]) {
  globalThis[loaded] = true;
  const daemon = address(process.env.CAY_VERCEL_URL || written || process.env.CAY_URL);
  replaceFetch(daemon);
  replaceConnect(daemon);
}

function address(text) {
  let url;
  try {
    url = new URL(text);
  } catch {} // said below
  if (!url || !/^https?:$/.test(url.protocol) || url.search || url.hash || url.username || url.password) {
    throw new Error(`cay: CAY_VERCEL_URL is ${JSON.stringify(text)}; set it to the address of a cay daemon, such as http://127.0.0.1:7070`);
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

function replaceFetch(daemon) {
  const original = globalThis.fetch;
  globalThis.fetch = function fetch(input, init) {
    const request = input instanceof Request;
    let url;
    try {
      url = new URL(request ? input.url : input);
    } catch {
      return original(input, init); // which says what is wrong with it
    }
    const to = rewritten(url, daemon);
    if (!to) return original(input, init);
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
}

const isOurs = (name) => typeof name === 'string' && /^([a-z0-9-]+\.vercel\.run|oidc\.vercel\.com)\.?$/i.test(name);

function replaceConnect(daemon) {
  const original = tls.connect;
  tls.connect = function connect(...args) {
    const options = optionsOf(args);
    if (options.socket && isOurs(options.servername)) {
      throw new Error(`cay: ${options.servername} leads to ${daemon.base} and cannot be reached through a proxy; except it there (NO_PROXY)`);
    }
    if (options.socket || options.path || !isOurs(options.host)) return original.apply(this, args);
    const then = args.findLast((a) => typeof a === 'function');
    if (daemon.secure) {
      const own = { ...options, host: daemon.host, port: daemon.port, servername: net.isIP(daemon.host) ? '' : daemon.host };
      delete own.lookup;
      delete own.session; // of another name
      return original.call(this, own, then);
    }
    return plain(daemon, options, then);
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
// daemon serves none, and the operator has chosen so.
function plain(daemon, options, then) {
  const { timeout, signal, noDelay, keepAlive, keepAliveInitialDelay, highWaterMark, allowHalfOpen } = options;
  const socket = net.connect({
    host: daemon.host, port: daemon.port, timeout, signal, noDelay, keepAlive, keepAliveInitialDelay, highWaterMark, allowHalfOpen,
  });
  socket.encrypted = socket.authorized = true;
  socket.once('connect', () => socket.emit('secureConnect'));
  if (then) socket.once('secureConnect', then);
  return socket;
}
