// The log of events, the one thing that is written of a run.
import { decode, frame, Frames } from "./cbor.js";
import { api, query } from "./client.js";
import { isNotFound, WorldError } from "./errors.js";
const frames = 'application/vnd.workflow.v4-frames';
// The field of an event's data that is its payload.
const payloads = {
    run_created: 'input', run_started: 'input', run_completed: 'output', run_failed: 'error',
    step_created: 'input', step_started: 'input', step_completed: 'result', step_failed: 'error', step_retrying: 'error',
    hook_created: 'metadata', hook_received: 'payload',
};
// Fields that have another name on the wire.
const renamed = {
    token: 'hookToken', tokenRetentionUntil: 'hookTokenRetentionUntil', isWebhook: 'hookIsWebhook', isSystem: 'hookIsSystem',
};
const dates = new Set(['resumeAt', 'retryAfter', 'tokenRetentionUntil']);
// Results that the runtime reads payloads of.
const whole = new Set(['run_created', 'run_started', 'step_started']);
// If the daemon gets one of these events twice it counts another attempt.
const once = new Set(['step_started', 'step_retrying', 'hook_received']);
// The cursor before the first event.
const beginning = `eid:evnt_${'0'.repeat(26)}`;
const dated = (v) => (typeof v === 'string' || typeof v === 'number' ? new Date(v) : v);
function wire(e, p, resolve) {
    const meta = {
        eventType: e.eventType,
        specVersion: e.specVersion ?? 2,
        correlationId: e.correlationId || undefined,
        occurredAt: p.occurredAt ?? new Date(),
        sinceCursor: p.sinceCursor,
        resumeId: p.resumeId,
        remoteRefBehavior: resolve ? 'resolve' : 'lazy',
    };
    const field = payloads[e.eventType];
    let body;
    for (const [name, value] of Object.entries(e.eventData ?? {})) {
        if (value === undefined || value === null)
            continue;
        if (name === field) {
            if (value instanceof Uint8Array)
                body = value;
            else if (name === 'error')
                meta.error = value; // of the 4.x line
            else
                throw new TypeError(`eventData.${name} of ${e.eventType} must be a Uint8Array`);
        }
        else
            meta[renamed[name] ?? name] = dates.has(name) ? dated(value) : value;
    }
    return frame(meta, body);
}
/** Events are World.events. */
export class Events {
    client;
    constructor(client) {
        this.client = client;
    }
    create = async (run, e, p = {}) => {
        if (run === null)
            throw new WorldError('WorkflowWorldError', `${e.eventType} needs the id of its run`, { status: 400 });
        const preload = e.eventType === 'run_started' && !p.skipPreload;
        try {
            return await this.client().value('POST', `${api}/v4/runs/${encodeURIComponent(run)}/events/${e.eventType}`, {
                type: frames,
                body: wire(e, preload ? { ...p, sinceCursor: beginning } : p, whole.has(e.eventType)),
                again: !once.has(e.eventType) || p.resumeId !== undefined,
            });
        }
        catch (err) {
            const ofHook = e.eventType === 'hook_received' || e.eventType === 'hook_disposed';
            if (ofHook && isNotFound(err))
                throw new WorldError('HookNotFoundError', `hook ${e.correlationId} not found`, { token: e.correlationId, cause: err });
            throw err;
        }
    };
    createBatch = async (run, events, p = {}) => {
        const parts = events.map(({ event, occurredAt }) => wire(event, { occurredAt }, p.resolveData === 'all'));
        return this.client().value('POST', `${api}/v4/runs/${encodeURIComponent(run)}/events/batch`, {
            type: frames,
            body: Buffer.concat(parts),
            again: events.every(({ event }) => !once.has(event.eventType)),
        });
    };
    get = async (run, id, p = {}) => {
        const { data } = await this.read(`/v4/runs/${encodeURIComponent(run)}/events/${encodeURIComponent(id)}${query({ remoteRefBehavior: behavior(p) })}`);
        if (!data[0])
            throw new WorldError('WorkflowWorldError', `run ${run} has no event ${id}`, { status: 404 });
        return data[0];
    };
    list = (p) => this.read(`/v4/runs/${encodeURIComponent(p.runId)}/events${query({ ...paged(p.pagination), remoteRefBehavior: behavior(p) })}`);
    listByCorrelationId = (p) => this.read(`/v4/events${query({ correlationId: p.correlationId, runId: p.runId, ...paged(p.pagination), remoteRefBehavior: behavior(p) })}`);
    async read(path) {
        const { body } = await this.client().call('GET', api + path);
        const data = [];
        let end = {};
        const found = new Frames();
        for (const { meta, body: payload } of found.push(body)) {
            if (meta._end)
                end = meta;
            else {
                const field = payloads[meta.eventType];
                if (payload.length > 0 && field)
                    meta.eventData[field] = payloadOf(field, payload);
                data.push(meta);
            }
        }
        if (found.rest > 0)
            throw new WorldError('WorkflowWorldError', 'the list of events was cut short', { code: 'TRANSPORT' });
        return { data, cursor: end.next ?? null, hasMore: end.hasMore ?? false };
    }
}
// An error of the 4.x line is a structure, not bytes that begin with the four letters of a format.
function payloadOf(field, payload) {
    if (field === 'error' && !/^[a-z0-9]{4}$/.test(Buffer.from(payload.subarray(0, 4)).toString('latin1')))
        return decode(payload);
    return new Uint8Array(payload.buffer, payload.byteOffset, payload.length);
}
export const behavior = (p) => (p?.resolveData === 'none' ? 'lazy' : 'resolve');
export const paged = (p = {}) => ({
    limit: p.limit, cursor: p.cursor ?? undefined, sortOrder: p.sortOrder,
});
