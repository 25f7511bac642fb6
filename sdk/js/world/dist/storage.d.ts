import { type Client } from './client.ts';
import { type Page, type Pagination } from './events.ts';
type Fields = Record<string, any>;
export interface Data {
    resolveData?: string;
}
/** runs is World.runs. */
export declare function runs(client: () => Client): {
    get: (id: string, p?: Data) => Promise<Fields>;
    getMany: (ids: readonly string[], p?: Data) => Promise<(Fields | null)[]>;
    list: (p?: Data & {
        workflowName?: string;
        status?: string | string[];
        pagination?: Pagination;
    }) => Promise<Page<Fields>>;
    waitForTerminalStatus: (id: string, p?: Data & {
        timeoutMs?: number;
        signal?: AbortSignal;
    }) => Promise<Fields>;
    experimentalSetAttributes: (id: string, changes: object[], o?: {
        allowReservedAttributes?: boolean;
    }) => Promise<Fields>;
    cancelMany: ({ runIds, cancelReason }: {
        runIds: string[];
        cancelReason?: string;
    }) => Promise<Fields>;
};
/** steps is World.steps. */
export declare function steps(client: () => Client): {
    get: (run: string | undefined, id: string, p?: Data) => Promise<Fields>;
    list: (p: Data & {
        runId: string;
        pagination?: Pagination;
    }) => Promise<Page<Fields>>;
};
/** hooks is World.hooks. */
export declare function hooks(client: () => Client): {
    get: (id: string, p?: Data) => Promise<Fields>;
    getByToken: (token: string, p?: Data) => Promise<Fields>;
    list: (p?: Data & {
        runId?: string;
        pagination?: Pagination;
    }) => Promise<Page<Fields>>;
};
export {};
