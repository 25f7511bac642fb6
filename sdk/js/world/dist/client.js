// HTTP to the daemon.
import { createHmac } from 'node:crypto';
import * as http from 'node:http';
import * as https from 'node:https';
import { decode } from "./cbor.js";
import { errorOf, transportError, WorldError } from "./errors.js";
/** api is where the daemon serves what the SDK's own client of Vercel's service asks for. */
export const api = '/vercel/workflow/api';
export const queues = '/vercel/queue/api/v3';
const tries = 6;
const firstPause = 100; // ms, doubled each time
const failed = new Set([500, 502, 503, 504]); // of the daemon, or of a proxy before it
/** Client asks one daemon. */
export class Client {
    token;
    lib;
    agent;
    base;
    constructor(url, token) {
        this.token = token;
        this.base = new URL(url);
        this.lib = this.base.protocol === 'https:' ? https : http;
        this.agent = new this.lib.Agent({ keepAlive: true, keepAliveMsecs: 10_000, maxFreeSockets: 32 });
    }
    /** sign returns what only holders of the token can say of a text. */
    sign(text) {
        return createHmac('sha256', this.token).update(text).digest('hex');
    }
    close() {
        this.agent.destroy();
    }
    /** open sends a request and returns the answer once its head is there. */
    open(method, path, r = {}) {
        const { promise, resolve, reject } = withResolvers();
        const headers = { ...r.headers, authorization: `Bearer ${this.token}` };
        if (r.type)
            headers['content-type'] = r.type;
        const body = typeof r.body === 'string' ? Buffer.from(r.body) : r.body;
        if (body || (method !== 'GET' && method !== 'DELETE'))
            headers['content-length'] = body?.length ?? 0;
        const req = this.lib.request({
            protocol: this.base.protocol, hostname: this.base.hostname.replace(/^\[|\]$/g, ''), port: this.base.port,
            path: this.base.pathname.replace(/\/$/, '') + path, method, headers, agent: this.agent, signal: r.signal,
        }, resolve);
        req.on('error', reject);
        req.end(body);
        return promise;
    }
    /** call sends a request and returns the answer. Answers that are errors are thrown. */
    async call(method, path, r = {}) {
        const what = `${method} ${path.split('?')[0]}`;
        const again = r.again ?? method === 'GET';
        for (let n = 1;; n++) {
            let sent = false;
            try {
                const res = await this.open(method, path, r);
                sent = true;
                const status = res.statusCode ?? 0;
                const body = await collect(res);
                if (status >= 200 && status < 300)
                    return { headers: res.headers, body };
                const err = errorOf(what, status, body, res.headers['retry-after']);
                if (!failed.has(status) || !again || n >= tries)
                    throw err;
            }
            catch (err) {
                if (err instanceof WorldError || r.signal?.aborted)
                    throw err;
                const never = !sent && refused.has(err.code ?? ''); // nobody has read it
                if (!(again || never) || n >= tries)
                    throw transportError(what, err);
            }
            await pause(firstPause * 2 ** (n - 1), r.signal);
        }
    }
    /** value is call for answers that are CBOR, or JSON. */
    async value(method, path, r = {}) {
        const { headers, body } = await this.call(method, path, r);
        try {
            return (headers['content-type']?.includes('json') ? JSON.parse(body.toString()) : decode(body));
        }
        catch (err) {
            throw new WorldError('WorkflowWorldError', `${method} ${path.split('?')[0]}: the answer is not understood: ${err.message}`, { code: 'PARSE_ERROR' });
        }
    }
}
const refused = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH']);
async function collect(res) {
    const pieces = [];
    for await (const piece of res)
        pieces.push(piece);
    return pieces.length === 1 ? pieces[0] : Buffer.concat(pieces);
}
/** query is the query of a URL; what is undefined is left out. */
export function query(fields) {
    const q = new URLSearchParams();
    for (const [k, v] of Object.entries(fields))
        if (v !== undefined)
            q.set(k, String(v));
    const s = q.toString();
    return s && `?${s}`;
}
export function pause(ms, signal) {
    return new Promise((resolve, reject) => {
        if (signal?.aborted)
            return reject(signal.reason);
        const stop = () => {
            clearTimeout(timer);
            reject(signal.reason);
        };
        const timer = setTimeout(() => {
            signal?.removeEventListener('abort', stop);
            resolve();
        }, ms);
        signal?.addEventListener('abort', stop, { once: true });
    });
}
/** withResolvers is Promise.withResolvers, which Node 20 has not. */
export function withResolvers() {
    let resolve;
    let reject;
    const promise = new Promise((a, b) => {
        resolve = a;
        reject = b;
    });
    return { promise, resolve, reject };
}
