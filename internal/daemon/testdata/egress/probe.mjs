// Asks for URLs as a guest program would and says what came of each: see
// probe.py, whose input and output it shares.

import dgram from 'node:dgram';
import dns from 'node:dns';
import http from 'node:http';
import http2 from 'node:http2';
import https from 'node:https';
import net from 'node:net';
import tls from 'node:tls';

const TIMEOUT = 10000; // milliseconds
const LOST = 3000; // milliseconds after which a datagram is

function explain(e) {
  const parts = [];
  for (; e; e = e.cause) {
    parts.push(`${e.code ?? e.name}: ${e.message}`);
    for (const inner of e.errors ?? []) parts.push(`${inner.code}: ${inner.message}`);
  }
  return parts.join('; ');
}

const issuerOf = (socket) => {
  const cert = socket.getPeerCertificate?.();
  return cert?.issuer ? JSON.stringify(cert.issuer) : undefined;
};

// What people use, where nothing about it has to be special.
async function byFetch(p) {
  const r = await fetch(p.url, {
    method: p.method ?? (p.body === undefined ? 'GET' : 'POST'),
    headers: p.headers, body: p.body, redirect: 'manual', signal: AbortSignal.timeout(TIMEOUT),
  });
  return { status: r.status, proto: 'h1', headers: Object.fromEntries(r.headers), body: await r.text() };
}

function byRequest(p) {
  const u = new URL(p.url);
  return new Promise((resolve, reject) => {
    const req = (u.protocol === 'https:' ? https : http).request({
      host: p.at ?? u.hostname.replace(/^\[|\]$/g, ''), port: u.port || undefined, servername: net.isIP(u.hostname) ? '' : u.hostname,
      checkServerIdentity: (_, cert) => tls.checkServerIdentity(u.hostname, cert),
      path: u.pathname + u.search, method: p.method ?? (p.body === undefined ? 'GET' : 'POST'),
      headers: { host: u.host, ...p.headers }, agent: false, timeout: TIMEOUT,
    }, (r) => {
      const issuer = issuerOf(r.socket);
      const chunks = [];
      r.on('data', (c) => chunks.push(c));
      r.on('error', reject);
      r.on('end', () => resolve({
        status: r.statusCode, proto: 'h1', headers: r.headers, issuer, body: Buffer.concat(chunks).toString(), trailer: r.trailers['x-sum'],
      }));
    });
    req.on('timeout', () => req.destroy(new Error('timed out')));
    req.on('error', reject);
    req.end(p.body);
  });
}

function byHTTP2(p) {
  const u = new URL(p.url);
  return new Promise((resolve, reject) => {
    const session = http2.connect(u.origin, { createConnection: p.at && (() => tls.connect({
      host: p.at, port: u.port || 443, servername: u.hostname, ALPNProtocols: ['h2'],
    })) });
    session.setTimeout(TIMEOUT, () => session.destroy(new Error('timed out')));
    session.on('error', reject);
    const { host, ...headers } = p.headers ?? {};
    const req = session.request({
      ':path': u.pathname + u.search, ':method': p.method ?? (p.body === undefined ? 'GET' : 'POST'),
      ...(host ? { ':authority': host } : {}), ...headers,
    });
    const out = { proto: 'h2', body: '' };
    req.on('response', (h) => { out.status = h[':status']; out.headers = { ...h }; out.issuer = issuerOf(session.socket); });
    req.on('trailers', (t) => { out.trailer = t['x-sum']; });
    req.setEncoding('utf8');
    req.on('data', (d) => { out.body += d; });
    req.on('error', reject);
    req.on('end', () => { session.close(); resolve(out); });
    req.end(p.body);
  });
}

function byWebSocket(p) {
  return new Promise((resolve, reject) => {
    const ws = new WebSocket(p.url);
    ws.onopen = () => ws.send(p.body);
    ws.onmessage = (e) => { resolve({ status: 101, body: String(e.data) }); ws.close(); };
    ws.onerror = (e) => reject(e.error ?? new Error('the WebSocket failed'));
    ws.onclose = () => reject(new Error('the WebSocket was closed'));
  });
}

function converse(socket, p, event) {
  return new Promise((resolve, reject) => {
    let got = '';
    const want = p.read ?? p.body?.length ?? 0;
    const end = () => { socket.destroy(); resolve({ status: 0, body: got, ...(got ? {} : { error: 'the connection ended' }) }); };
    socket.on(event, () => { if (p.body) socket.write(p.body); });
    socket.on('data', (d) => { got += d; if (got.length >= want) end(); });
    socket.on('end', end);
    socket.on('error', reject);
    socket.setTimeout(TIMEOUT, () => socket.destroy(new Error('timed out')));
  });
}

function byUDP(p, u) {
  return new Promise((resolve, reject) => {
    const s = dgram.createSocket('udp4');
    const timer = setTimeout(() => s.emit('error', new Error('timed out')), LOST);
    const end = (f, v) => { clearTimeout(timer); s.close(); f(v); };
    s.on('message', (m) => end(resolve, { status: 0, body: m.toString() }));
    s.on('error', (e) => end(reject, e));
    s.connect(Number(u.port), p.at ?? u.hostname, () => s.send(p.body));
  });
}

async function byDNS(p, u) {
  const r = new dns.promises.Resolver({ timeout: TIMEOUT, tries: 1 });
  r.setServers([u.host]);
  const found = await r.resolve(u.pathname.slice(1), u.search.slice(1) || 'A');
  return { status: 0, body: `NOERROR ${found.length} answers ${found.join(' ')}` };
}

function ask(p) {
  const u = new URL(p.url);
  switch (u.protocol) {
    case 'http:': case 'https:':
      if (p.proto === 'h2') return byHTTP2(p);
      return p.at || p.plain || p.headers?.host ? byRequest(p) : byFetch(p);
    case 'ws:': case 'wss:': return byWebSocket(p);
    case 'udp:': return byUDP(p, u);
    case 'dns:': return byDNS(p, u);
    case 'tls:': return converse(tls.connect({ host: p.at ?? u.hostname, port: u.port, servername: u.hostname }), p, 'secureConnect');
    case 'tcp:': return converse(net.connect({ host: p.at ?? u.hostname, port: u.port }), p, 'connect');
  }
  throw new Error(`cannot ask ${p.url}`);
}

const results = [];
for (const p of JSON.parse(process.argv[3])) {
  const begun = performance.now();
  try {
    results.push(await ask(p));
  } catch (e) {
    results.push({ status: 0, error: explain(e) });
  }
  results.at(-1).seconds = (performance.now() - begun) / 1000;
}
process.stdout.write(JSON.stringify(results), () => process.exit(0));
