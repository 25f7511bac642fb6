// The connection over which the daemon hands this process the messages of its deployment.
import { randomBytes } from 'node:crypto';
import { App, flowPath, stepPath } from "./app.js";
import { Frames } from "./cbor.js";
import { pause } from "./client.js";
import { attemptHeader, messageHeader, secretHeader } from "./queue.js";
const firstPause = 50; // ms, doubled each time
const lastPause = 5_000;
const silence = 30_000; // ms; the daemon sends something every 10 s
const extendEvery = 60_000; // ms
const visibility = 300; // s, of a lease
const stepTopic = /^__([a-z][a-z0-9]*_)?wkf_step_/;
/** Deliveries keeps a connection to the daemon, and hands what comes over it to the app. */
export class Deliveries {
    client;
    deployment;
    instance = randomBytes(16).toString('hex');
    working = new Map(); // by receipt
    app = new App();
    ended = new AbortController();
    running;
    constructor(client, deployment) {
        this.client = client;
        this.deployment = deployment;
    }
    /**
     * secret is what the app's handler demands of deliveries. All processes of a deployment have the
     * same: a server that workers share hands a request to any of them.
     */
    secret() {
        return this.client().sign(`delivery to ${this.deployment()}`);
    }
    /** start connects once a server of this process handles workflows. It returns at once. */
    start() {
        if (this.ended.signal.aborted)
            return;
        if (!this.running)
            this.running = this.run();
        else if (!this.app.found)
            this.app.again();
    }
    async close() {
        this.ended.abort(new Error('the World is closed'));
        await this.running;
        for (const timer of this.working.values())
            clearInterval(timer);
        this.app.close();
    }
    async run() {
        const { signal } = this.ended;
        let failures = 0;
        while (!signal.aborted) {
            try {
                await this.app.find(signal);
                await this.connection(signal, () => {
                    if (failures > 0)
                        console.error(`cay: connected to ${this.client().base.origin} again`);
                    failures = 0;
                });
            }
            catch (err) {
                if (signal.aborted)
                    return;
                if (failures === 0)
                    console.error(`cay: no workflow is delivered to deployment ${this.deployment()}: ${err.message}; trying again`);
            }
            const wait = pause(Math.min(firstPause * 2 ** failures, lastPause), signal).catch(() => undefined);
            failures++;
            await wait;
        }
    }
    /** connection takes deliveries until the connection ends. */
    async connection(signal, opened) {
        const one = new AbortController();
        const stop = () => one.abort(signal.reason);
        signal.addEventListener('abort', stop, { once: true });
        let res;
        try {
            res = await this.client().open('POST', `/v1/workflows/deployments/${encodeURIComponent(this.deployment())}/deliveries`, {
                type: 'application/json',
                body: JSON.stringify({ instance: this.instance, working: [...this.working.keys()] }),
                signal: one.signal,
            });
            if (res.statusCode !== 200)
                throw new Error(`${this.client().base.origin} answers ${res.statusCode} ${await text(res)}`);
            opened();
            res.socket.unref(); // the app's server is what keeps the process
            await this.take(res);
        }
        finally {
            signal.removeEventListener('abort', stop);
            one.abort();
            res?.destroy();
        }
    }
    take(res) {
        return new Promise((resolve, reject) => {
            const frames = new Frames();
            const quiet = setTimeout(() => reject(new Error(`the daemon has said nothing for ${silence / 1000} s`)), silence);
            quiet.unref();
            const end = (err) => {
                clearTimeout(quiet);
                if (err)
                    reject(err);
                else
                    resolve();
            };
            res.on('data', (piece) => {
                quiet.refresh();
                try {
                    for (const f of frames.push(piece))
                        if (f.meta.receipt)
                            void this.deliver(f);
                }
                catch (err) {
                    end(err);
                }
            });
            res.on('end', () => end());
            res.on('error', end);
            res.on('close', () => end(new Error('the connection broke')));
        });
    }
    /** deliver has the app handle one message, and tells the daemon how that went. */
    async deliver({ meta, body }) {
        const receipt = meta.receipt;
        if (this.working.has(receipt))
            return;
        const extend = setInterval(() => void this.extend(meta.topic, receipt), extendEvery);
        extend.unref();
        this.working.set(receipt, extend);
        try {
            await this.settle(receipt, await this.handle(meta, body));
        }
        finally {
            clearInterval(extend);
            this.working.delete(receipt);
        }
    }
    async handle(meta, body) {
        try {
            const url = (await this.app.find(this.ended.signal)) + (stepTopic.test(meta.topic) ? stepPath : flowPath);
            const { status, body: said } = await this.app.post(url, { 'content-type': meta.type, [secretHeader]: this.secret(), [messageHeader]: meta.id, [attemptHeader]: String(meta.attempt) }, body);
            if (status >= 200 && status < 300)
                return {};
            let error = `POST ${url} answers ${status}: ${said.slice(0, 2000)}`;
            let retryAfter;
            try {
                ({ error, retryAfter } = { error, ...JSON.parse(said) });
            }
            catch {
                // Not of the World's handler.
            }
            console.error(`cay: a delivery failed (message ${meta.id}, attempt ${meta.attempt}): ${error}`);
            return { error, ...(retryAfter !== undefined && { retry_after: retryAfter }) };
        }
        catch (err) {
            this.app.lost();
            return { error: `the app's server does not answer: ${err.message}` };
        }
    }
    async settle(receipt, outcome) {
        try {
            await this.client().call('POST', `/v1/workflows/deployments/${encodeURIComponent(this.deployment())}/deliveries/${encodeURIComponent(receipt)}`, {
                type: 'application/json',
                body: JSON.stringify(outcome),
                again: true,
            });
        }
        catch (err) {
            if (err.status === 404)
                return; // it was another's by then
            console.error(`cay: the daemon could not be told how a delivery went, and will deliver it again: ${err.message}`);
        }
    }
    async extend(topic, receipt) {
        try {
            await this.client().call('PATCH', `/vercel/queue/api/v3/topic/${encodeURIComponent(topic)}/consumer/default/lease/${encodeURIComponent(receipt)}`, {
                type: 'application/json',
                body: JSON.stringify({ visibilityTimeoutSeconds: visibility }),
                again: true,
            });
        }
        catch (err) {
            if (err.status !== 404)
                console.error(`cay: a lease could not be extended: ${err.message}`);
        }
    }
}
async function text(res) {
    let s = '';
    for await (const piece of res)
        s += piece;
    try {
        return JSON.parse(s).error?.message ?? s;
    }
    catch {
        return s;
    }
}
