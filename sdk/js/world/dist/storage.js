// Runs, steps and hooks as the daemon has them.
import { encode } from "./cbor.js";
import { api, query } from "./client.js";
import { isNotFound, WorldError } from "./errors.js";
import { behavior, paged } from "./events.js";
// How long one request waits for the end of a run, in ms: the daemon's bound.
const longestWait = 60_000;
const at = encodeURIComponent;
/** found turns the absence of a run into the error that the runtime knows. */
async function found(id, answer) {
    try {
        return await answer;
    }
    catch (err) {
        if (isNotFound(err))
            throw new WorldError('WorkflowRunNotFoundError', `Workflow run "${id}" not found`, { runId: id, cause: err });
        throw err;
    }
}
/** coded returns a run with the code of its error where the 4.x line looks for it. */
function coded(run) {
    const { error, errorCode } = run;
    return errorCode && error && typeof error === 'object' && !(error instanceof Uint8Array) ? { ...run, error: { ...error, code: errorCode } } : run;
}
/** runs is World.runs. */
export function runs(client) {
    const one = async (id, path, signal) => coded(await found(id, client().value('GET', `${api}/v2/runs/${at(id)}${path}`, { signal })));
    const get = (id, p) => one(id, query({ remoteRefBehavior: behavior(p) }));
    return {
        get,
        getMany: (ids, p) => Promise.all(ids.map((id) => get(id, p).catch((err) => {
            if (err.name === 'WorkflowRunNotFoundError')
                return null;
            throw err;
        }))),
        list: async (p = {}) => {
            const q = query({ workflowName: p.workflowName, ...paged(p.pagination), remoteRefBehavior: behavior(p) });
            const statuses = [p.status ?? []].flat().map((s) => `&status=${at(s)}`);
            const page = await client().value('GET', `${api}/v2/runs${q}${statuses.join('')}`);
            return { ...page, data: page.data.map(coded) };
        },
        waitForTerminalStatus: (id, p = {}) => {
            const waitMs = Math.max(0, Math.min(p.timeoutMs ?? 0, longestWait));
            return one(id, `/status${query({ waitMs, remoteRefBehavior: behavior(p) })}`, p.signal);
        },
        experimentalSetAttributes: (id, changes, o = {}) => found(id, client().value('POST', `${api}/v2/runs/${at(id)}/attributes`, {
            type: 'application/cbor', body: encode({ changes, ...(o.allowReservedAttributes && { allowReservedAttributes: true }) }), again: true,
        })),
        cancelMany: ({ runIds, cancelReason }) => client().value('POST', `${api}/v4/runs/cancel`, { type: 'application/cbor', body: encode({ runIds, cancelReason }), again: true }),
    };
}
/** steps is World.steps. */
export function steps(client) {
    return {
        get: (run, id, p) => {
            if (!run)
                throw new WorldError('WorkflowWorldError', `step ${id}: the id of its run is needed`, { status: 400 });
            return client().value('GET', `${api}/v2/runs/${at(run)}/steps/${at(id)}${query({ remoteRefBehavior: behavior(p) })}`);
        },
        list: (p) => client().value('GET', `${api}/v2/runs/${at(p.runId)}/steps${query({ ...paged(p.pagination), remoteRefBehavior: behavior(p) })}`),
    };
}
/** hooks is World.hooks. */
export function hooks(client) {
    const one = async (what, path) => {
        try {
            return await client().value('GET', `${api}${path}`);
        }
        catch (err) {
            if (isNotFound(err))
                throw new WorldError('HookNotFoundError', `Hook not found: ${what}`, { token: what, cause: err });
            throw err;
        }
    };
    return {
        get: (id, p) => one(id, `/v2/hooks/${at(id)}${query({ remoteRefBehavior: behavior(p) })}`),
        getByToken: (token, p) => one(token, `/v2/hooks/by-token${query({ token, remoteRefBehavior: behavior(p) })}`),
        list: (p = {}) => client().value('GET', `${api}/v2/hooks${query({ runId: p.runId, ...paged(p.pagination), remoteRefBehavior: behavior(p) })}`),
    };
}
