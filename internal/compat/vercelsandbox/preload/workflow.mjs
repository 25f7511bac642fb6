// Apps of the Workflow SDK: their events and messages are the daemon's, and the daemon delivers
// messages to them by HTTP. This part finds the server of the process that takes deliveries, tells
// the daemon its address, and lets nobody but the daemon deliver.
//
// It does something only in processes whose World is "vercel" and that have a deployment id, which
// "cay vercel env" sets. A server of such a process that does not serve the SDK's routes sees one
// POST to flowPath, with the query that the SDK has for health checks, and is left alone.
import { realpathSync } from 'node:fs';
import { Server } from 'node:net';
import { Server as TLSServer } from 'node:tls';

const flowPath = '/.well-known/workflow/v1/flow';
const secretHeader = 'x-cay-delivery';
const receiptHeader = 'ce-vqsreceipthandle';
const maxWorking = 10_000; // receipts that the daemon takes
const extendEvery = 65_000; // ms; the SDK extends the lease of what it works on each minute
const requestTimeout = 60_000; // ms without a byte
const maxAnswer = 64 << 10; // bytes that are kept of an answer

// isTool: the program is the SDK's command line or its pages, whose server takes no deliveries and
// prints a stack of calls for a health check.
const isTool = (() => {
  try {
    return /[\\/]node_modules[\\/]@workflow[\\/](cli|web)[\\/]/.test(realpathSync(process.argv[1]));
  } catch {} // there is no program, or it is no file
})();

// deployment returns the id under which this process takes deliveries, undefined if it takes none.
// It is asked anew each time: frameworks read .env files after this module was loaded.
function deployment() {
  if (isTool) return;
  const world = process.env.WORKFLOW_TARGET_WORLD || 'vercel';
  if (world === 'vercel' || world === '@workflow/world-vercel') return process.env.VERCEL_DEPLOYMENT_ID || undefined;
}

// secret returns what the daemon shows with each delivery. The first process of an app makes it and
// its children inherit it, so that whichever process of a cluster, or behind a development server's
// proxy, gets a delivery knows it.
function secret() {
  return (process.env.CAY_DELIVERY_SECRET ||= crypto.randomUUID() + crypto.randomUUID());
}

// isDelivery reports whether a request's target may lead to the SDK's routes for deliveries. Frameworks
// differ in how they read paths: below these names only spellings that all of them read alike are let by.
function isDelivery(target) {
  if (!/%|workflow/i.test(target)) return false; // nearly all requests end here
  let path = target.replace(/[?#].*$/s, '');
  const webhook = /^\/\.well-known\/workflow\/v1\/webhook\/[^/\\]+$/.test(path);
  for (let i = 0; i < 3; i++) { // escaped escapes, too
    path = path.replace(/%([0-9a-f]{2})/gi, (_, hex) => String.fromCharCode(parseInt(hex, 16)));
  }
  const dots = /[\\/]\.{1,2}([\\/]|$)/.test(path);
  if (webhook && !dots) return false; // whatever else a token is made of
  if (/\.well-known.*workflow/is.test(path) && (dots || /[\\\t\r\n]|\/\//.test(path))) return true;
  return /\/\.well-known\/workflow\/v1\/(flow|step)(?![a-z0-9_-])/i.test(path);
}

// isHealthCheck reports whether a request to such a route asks with the SDK's health check. It has
// nothing that could be taken for a delivery: no body, and no header of one.
function isHealthCheck({ url, headers, httpVersionMajor }) {
  return httpVersionMajor === 1 && /^[^#]*[?&]__health([=&#]|$)/.test(url)
    && !headers['transfer-encoding'] && !Number(headers['content-length'] ?? 0)
    && !Object.keys(headers).some((name) => name.startsWith('ce-'));
}

// isSecret compares in a time that does not depend on where the two differ.
function isSecret(value) {
  const wanted = secret();
  if (typeof value !== 'string' || value.length !== wanted.length) return false;
  let differences = 0;
  for (let i = 0; i < wanted.length; i++) differences |= value.charCodeAt(i) ^ wanted.charCodeAt(i);
  return differences === 0;
}

// Deliveries are those that this process works on. The daemon asks for them after it was away: the
// outcome of others was lost, and they are due at once.
class Deliveries {
  #working = new Map(); // by receipt: a response, and when the SDK last showed that it works on it

  // begins takes up a request that the daemon has made. A delivery goes on when its connection ends.
  begins(request, response) {
    const receipt = request.headers[receiptHeader];
    if (!receipt) return;
    this.#working.set(receipt, { response, at: Date.now() });
    response.once('close', () => { if (response.writableEnded) this.#working.delete(receipt); });
    if (this.#working.size > maxWorking) this.receipts();
  }

  // uses sees a request of the SDK to the queue. The SDK acknowledges deliveries when it has done
  // with them, and extends the leases of the others.
  uses(method, path) {
    const receipt = /\/lease\/([^/?]+)$/.exec(path)?.[1];
    const delivery = this.#working.get(receipt); // whose characters need no escapes
    if (!delivery) return;
    if (method === 'DELETE') this.#working.delete(receipt);
    else delivery.at = Date.now();
  }

  // receipts returns those of the deliveries that this process works on. A delivery whose connection
  // has ended and whose lease nobody extends has ended without an answer.
  receipts() {
    for (const [receipt, { response, at }] of this.#working) {
      if (response.writableEnded || (response.destroyed && Date.now() - at > extendEvery)) this.#working.delete(receipt);
    }
    return [...this.#working.keys()].slice(-maxWorking);
  }
}

function refuse(request, response, daemon) {
  response.statusCode = 401;
  response.setHeader('content-type', 'text/plain; charset=utf-8');
  if (request.httpVersionMajor === 1) response.setHeader('connection', 'close'); // unread bodies end with it
  response.end(`cay: only the daemon at ${daemon.base} delivers to workflows of this app; the header ${secretHeader} of this request is missing or wrong\n`);
}

// The Workflow SDK, of both lines, keeps the context of the step that runs in one AsyncLocalStorage
// for all its copies in a process.
const stepStorage = Symbol.for('WORKFLOW_STEP_CONTEXT_STORAGE');

// withStep returns the options of a call to the daemon with headers that name the step that makes
// the call, and its run. Outside of steps they are init itself. headers are those of the request if
// init has none.
function withStep(init, headers) {
  const context = globalThis[stepStorage]?.getStore?.();
  const run = context?.workflowMetadata?.workflowRunId;
  const step = context?.stepMetadata?.stepId;
  if (![run, step].every((id) => typeof id === 'string' && /^[\w-]{1,128}$/.test(id))) return init;
  const all = new Headers(init?.headers ?? headers);
  all.set('x-cay-workflow-run', run);
  all.set('x-cay-workflow-step', step);
  return { ...init, headers: all };
}

// watchServers starts to look for the app among the servers of this process. It returns a function
// that is to be called for each request of the process to the daemon about workflows.
function watchServers(daemon) {
  const deliveries = new Deliveries();
  const app = new App(daemon, deliveries);
  if (deployment()) secret(); // before there are children
  const { emit } = Server.prototype;
  Server.prototype.emit = function (event, ...args) {
    if ((event === 'request' || event === 'checkContinue') && isDelivery(args[0].url) && deployment()) {
      if (isSecret(args[0].headers[secretHeader])) {
        deliveries.begins(args[0], args[1]);
      } else if (!isHealthCheck(args[0])) {
        refuse(args[0], args[1], daemon);
        return true;
      }
    }
    const heard = Reflect.apply(emit, this, [event, ...args]);
    if (event === 'listening') app.listens(this);
    if (event === 'close') app.closed(this);
    return heard;
  };
  return (method, url) => {
    if (url.hostname.includes('queue')) deliveries.uses(method, url.pathname);
    app.used();
  };
}

// App is what this process is to the daemon.
class App {
  #daemon;
  #servers = new Map(); // of HTTP, that listen: to one of asking, again, asked, app
  #registration; // of the last server that turned out to be the app
  #usedAt = 0;
  #deliveries;

  constructor(daemon, deliveries) {
    this.#daemon = daemon;
    this.#deliveries = deliveries;
  }

  listens(server) {
    const at = server.address();
    if (!deployment() || !server.listenerCount('request') || typeof at !== 'object' || !at) return; // a socket file is not for the daemon
    void this.#ask(server);
  }

  // used asks servers again that were not the app: development servers learn of routes later.
  used() {
    if (Date.now() - this.#usedAt < 1000) return;
    this.#usedAt = Date.now();
    for (const [server, state] of this.#servers) {
      if (state === 'asked') void this.#ask(server);
      if (state === 'asking') this.#servers.set(server, 'again');
    }
  }

  closed(server) {
    if (this.#servers.get(server) !== 'app') {
      this.#servers.delete(server);
      return;
    }
    this.#servers.delete(server);
    this.#registration.move([...this.#servers.keys()].findLast((s) => this.#servers.get(s) === 'app'));
  }

  // #ask asks a server whether it takes deliveries, until it says yes or no.
  async #ask(server) {
    this.#servers.set(server, 'asking');
    let takes = await takesDeliveries(server);
    for (let wait = 250; takes === undefined && server.listening; wait = Math.min(2 * wait, 30_000)) {
      await pause(wait);
      takes = await takesDeliveries(server);
    }
    if (!server.listening || !this.#servers.has(server)) return;
    const again = !takes && this.#servers.get(server) === 'again';
    this.#servers.set(server, takes ? 'app' : 'asked');
    if (again) return this.#ask(server);
    if (!takes) return;
    this.#registration ??= new Registration(this.#daemon, deployment(), this.#deliveries);
    this.#registration.move(server);
  }
}

// takesDeliveries asks a server of this process with the SDK's health check. It returns undefined
// while the server cannot tell, as when it is still starting.
async function takesDeliveries(server) {
  const url = new URL(`${addressOf(server, '127.0.0.1')}${flowPath}?__health`);
  try {
    const answer = await request(url, { method: 'POST', headers: { [secretHeader]: secret(), 'content-length': 0 }, rejectUnauthorized: false, agent: false, idle: true });
    if (answer.status >= 500) return;
    return answer.status === 200 && /"healthy"\s*:\s*true|endpoint is healthy/.test(answer.text); // the latter before 4.2
  } catch {} // it does not answer yet, or not any more
}

// addressOf returns the URL at which a server listens; where it listens on all addresses, at host.
function addressOf(server, host) {
  const { address, port } = server.address() ?? { address: host, port: 0 };
  const name = address === '::' || address === '0.0.0.0' ? host : address;
  return `${server instanceof TLSServer ? 'https' : 'http'}://${name.includes(':') ? `[${name}]` : name}:${port}`;
}

const isLoopback = (host) => host === '::1' || host === 'localhost' || /^127\./.test(host);

// Registration tells the daemon at which address a deployment takes deliveries. It keeps that
// connection open: when the connection ends, the daemon may have been started anew, and is told again.
class Registration {
  #daemon;
  #path;
  #server; // undefined while the app does not listen
  #changed = deferred(); // of #server
  #running; // a promise while the daemon is kept told
  #agent;
  #url; // what the daemon was told last
  #silent = true; // whether nothing was said of a daemon that does not answer
  #deliveries;
  #known = false; // whether the daemon was told before

  constructor(daemon, id, deliveries) {
    this.#daemon = daemon;
    this.#deliveries = deliveries;
    this.#path = `${daemon.base}/v1/workflows/deployments/${encodeURIComponent(id)}`;
  }

  // move says which server takes deliveries from now on; undefined if there is none.
  move(server) {
    this.#server = server;
    this.#changed.resolve();
    this.#running ??= this.#keep().finally(() => {
      this.#running = undefined;
      if (this.#server) this.move(this.#server);
    });
  }

  async #keep() {
    const { Agent } = await import(this.#daemon.secure ? 'node:https' : 'node:http');
    this.#agent = new Agent({ keepAlive: true, maxSockets: 1 });
    for (let failures = 0; this.#server;) {
      this.#changed = deferred();
      let said;
      try {
        const socket = await this.#put();
        if (!this.#silent) tell(`${this.#daemon.base} knows again that this app is at ${this.#url}`);
        this.#silent = true;
        const since = Date.now();
        await Promise.race([ended(socket), this.#changed.promise]);
        failures = Date.now() - since < 10_000 ? failures + 1 : 0;
        if (failures < 2) continue; // at once
      } catch (e) {
        failures++;
        said = e;
      }
      if (said && this.#silent && (said.refused || failures > 5)) {
        tell(`workflows of this app wait: ${said.message}`);
        this.#silent = false;
      }
      await Promise.race([pause(said?.refused ? 30_000 : Math.min(100 * 2 ** failures, 2000)), this.#changed.promise]);
    }
    await this.#delete();
    this.#agent.destroy();
  }

  // #put returns the connection on which the daemon was told.
  async #put() {
    // Other processes may work on deliveries of the same address: then the daemon waits for all.
    const alone = !process.env.CAY_APP_URL && !(await import('node:cluster')).default.isWorker;
    const headers = { authorization: authorization(), 'content-type': 'application/json' };
    const answer = await request(new URL(this.#path), { method: 'PUT', headers, agent: this.#agent, idle: true }, (socket) => {
      this.#url = process.env.CAY_APP_URL || addressOf(this.#server, (socket.localAddress ?? '127.0.0.1').replace(/^::ffff:/, ''));
      if (!process.env.CAY_APP_URL && isLoopback(this.#server.address()?.address ?? '') && !isLoopback((socket.remoteAddress ?? '127.0.0.1').replace(/^::ffff:/, ''))) {
        throw refusal(`the app listens on ${this.#url}, where the daemon at ${this.#daemon.base} does not reach it; let it listen on 0.0.0.0, or set CAY_APP_URL to an address at which the daemon does`);
      }
      return JSON.stringify({ url: this.#url, secret: secret(), working: this.#known && alone ? this.#deliveries.receipts() : undefined });
    });
    if (answer.status === 404) throw refusal(`the daemon at ${this.#daemon.base} does not know workflows of the Workflow SDK; it is an older version than this preload`);
    if (answer.status >= 400 && answer.status < 500) throw refusal(`the daemon at ${this.#daemon.base} refuses ${this.#url}: ${answer.status} ${messageOf(answer.text)}`);
    if (answer.status >= 300) throw new Error(`the daemon at ${this.#daemon.base} answers ${answer.status} ${messageOf(answer.text)}`);
    this.#known = true;
    return answer.socket;
  }

  // #delete tells the daemon that the app is gone, if it can; the daemon finds out without that, too.
  async #delete() {
    if (!this.#url || (await import('node:cluster')).default.isWorker) return; // others listen there
    const url = new URL(`${this.#path}?url=${encodeURIComponent(this.#url)}`);
    await request(url, { method: 'DELETE', headers: { authorization: authorization() }, agent: this.#agent, timeout: 1000 }).catch(() => {});
  }
}

const authorization = () => `Bearer ${process.env.VERCEL_OIDC_TOKEN || process.env.VERCEL_TOKEN || process.env.CAY_TOKEN || ''}`;

const refusal = (text) => Object.assign(new Error(text), { refused: true });

const tell = (text) => process.stderr.write(`cay: ${text}\n`);

function messageOf(text) {
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.slice(0, 500).trim();
  }
}

function deferred() {
  const d = {};
  d.promise = new Promise((resolve, reject) => Object.assign(d, { resolve, reject }));
  return d;
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms).unref());

const ended = (socket) => new Promise((resolve) => (socket.destroyed ? resolve() : socket.once('close', resolve)));

// request makes one by Node's own client, since fetch is replaced. body is made when the connection
// stands. idle says that the process need not go on for it.
async function request(url, { idle, timeout = requestTimeout, ...options }, body) {
  const { request: start } = await import(url.protocol === 'https:' ? 'node:https' : 'node:http');
  return new Promise((resolve, reject) => {
    const r = start(url, { ...options, timeout });
    r.on('error', (e) => reject(e.refused ? e : new Error(`${url.origin} does not answer: ${e.code ?? e.message}`)));
    r.on('timeout', () => r.destroy(new Error(`nothing in ${timeout} ms`)));
    let socket;
    r.on('socket', (s) => {
      socket = s;
      if (idle) socket.unref();
      const send = () => {
        try {
          r.end(body?.(socket));
        } catch (e) {
          r.destroy(e);
        }
      };
      if (!body || !socket.connecting) send();
      else socket.once('connect', send);
    });
    r.on('response', (response) => {
      let text = '';
      response.setEncoding('utf8');
      response.on('data', (part) => { if (text.length < maxAnswer) text += part; });
      response.on('error', reject);
      response.on('end', () => resolve({ status: response.statusCode, text, socket }));
    });
  });
}
