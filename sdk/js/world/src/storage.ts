// Runs, steps and hooks as the daemon has them.
import { encode } from './cbor.ts';
import { api, query, type Client } from './client.ts';
import { isNotFound, WorldError } from './errors.ts';
import { behavior, paged, type Page, type Pagination } from './events.ts';

type Fields = Record<string, any>;
export interface Data {
  resolveData?: string;
}

// How long one request waits for the end of a run, in ms: the daemon's bound.
const longestWait = 60_000;

const at = encodeURIComponent;

/** found turns the absence of a run into the error that the runtime knows. */
async function found<T>(id: string, answer: Promise<T>): Promise<T> {
  try {
    return await answer;
  } catch (err) {
    if (isNotFound(err)) throw new WorldError('WorkflowRunNotFoundError', `Workflow run "${id}" not found`, { runId: id, cause: err });
    throw err;
  }
}

/** coded returns a run with the code of its error where the 4.x line looks for it. */
function coded(run: Fields): Fields {
  const { error, errorCode } = run;
  return errorCode && error && typeof error === 'object' && !(error instanceof Uint8Array) ? { ...run, error: { ...error, code: errorCode } } : run;
}

/** runs is World.runs. */
export function runs(client: () => Client) {
  const one = async (id: string, path: string, signal?: AbortSignal): Promise<Fields> =>
    coded(await found(id, client().value<Fields>('GET', `${api}/v2/runs/${at(id)}${path}`, { signal })));
  const get = (id: string, p?: Data): Promise<Fields> => one(id, query({ remoteRefBehavior: behavior(p) }));
  return {
    get,
    getMany: (ids: readonly string[], p?: Data): Promise<(Fields | null)[]> =>
      Promise.all(
        ids.map((id) =>
          get(id, p).catch((err) => {
            if (err.name === 'WorkflowRunNotFoundError') return null;
            throw err;
          }),
        ),
      ),
    list: async (p: Data & { workflowName?: string; status?: string | string[]; pagination?: Pagination } = {}): Promise<Page<Fields>> => {
      const q = query({ workflowName: p.workflowName, ...paged(p.pagination), remoteRefBehavior: behavior(p) });
      const statuses = [p.status ?? []].flat().map((s) => `&status=${at(s)}`);
      const page = await client().value<Page<Fields>>('GET', `${api}/v2/runs${q}${statuses.join('')}`);
      return { ...page, data: page.data.map(coded) };
    },
    waitForTerminalStatus: (id: string, p: Data & { timeoutMs?: number; signal?: AbortSignal } = {}): Promise<Fields> => {
      const waitMs = Math.max(0, Math.min(p.timeoutMs ?? 0, longestWait));
      return one(id, `/status${query({ waitMs, remoteRefBehavior: behavior(p) })}`, p.signal);
    },
    experimentalSetAttributes: (id: string, changes: object[], o: { allowReservedAttributes?: boolean } = {}): Promise<Fields> =>
      found(id, client().value('POST', `${api}/v2/runs/${at(id)}/attributes`, {
        type: 'application/cbor', body: encode({ changes, ...(o.allowReservedAttributes && { allowReservedAttributes: true }) }), again: true,
      })),
    cancelMany: ({ runIds, cancelReason }: { runIds: string[]; cancelReason?: string }): Promise<Fields> =>
      client().value('POST', `${api}/v4/runs/cancel`, { type: 'application/cbor', body: encode({ runIds, cancelReason }), again: true }),
  };
}

/** steps is World.steps. */
export function steps(client: () => Client) {
  return {
    get: (run: string | undefined, id: string, p?: Data): Promise<Fields> => {
      if (!run) throw new WorldError('WorkflowWorldError', `step ${id}: the id of its run is needed`, { status: 400 });
      return client().value('GET', `${api}/v2/runs/${at(run)}/steps/${at(id)}${query({ remoteRefBehavior: behavior(p) })}`);
    },
    list: (p: Data & { runId: string; pagination?: Pagination }): Promise<Page<Fields>> =>
      client().value('GET', `${api}/v2/runs/${at(p.runId)}/steps${query({ ...paged(p.pagination), remoteRefBehavior: behavior(p) })}`),
  };
}

/** hooks is World.hooks. */
export function hooks(client: () => Client) {
  const one = async (what: string, path: string): Promise<Fields> => {
    try {
      return await client().value('GET', `${api}${path}`);
    } catch (err) {
      if (isNotFound(err)) throw new WorldError('HookNotFoundError', `Hook not found: ${what}`, { token: what, cause: err });
      throw err;
    }
  };
  return {
    get: (id: string, p?: Data) => one(id, `/v2/hooks/${at(id)}${query({ remoteRefBehavior: behavior(p) })}`),
    getByToken: (token: string, p?: Data) => one(token, `/v2/hooks/by-token${query({ token, remoteRefBehavior: behavior(p) })}`),
    list: (p: Data & { runId?: string; pagination?: Pagination } = {}): Promise<Page<Fields>> =>
      client().value('GET', `${api}/v2/hooks${query({ runId: p.runId, ...paged(p.pagination), remoteRefBehavior: behavior(p) })}`),
  };
}
