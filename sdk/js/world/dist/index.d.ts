/** createWorld returns the World that the environment describes. It connects when the app listens. */
export declare function createWorld(): {
    /** start connects to the daemon; it waits for the app's server by itself. */
    start(): Promise<void>;
    /** close ends the connection. What is being delivered goes on, and is delivered again if it cannot end. */
    close(): Promise<void>;
    writeToStream: (name: string, run: string | Promise<string | undefined> | undefined, chunk: string | Uint8Array<ArrayBufferLike>) => Promise<void>;
    writeToStreamMulti: (name: string, run: string | Promise<string | undefined> | undefined, chunks: (string | Uint8Array<ArrayBufferLike>)[]) => Promise<void>;
    closeStream: (name: string, run: string | Promise<string | undefined> | undefined) => Promise<void>;
    readFromStream: (name: string, startIndex?: number) => Promise<ReadableStream<Uint8Array<ArrayBufferLike>>>;
    listStreamsByRunId: (run: string) => Promise<string[]>;
    getStreamChunks: (name: string, run: string, o?: {
        limit?: number;
        cursor?: string;
    }) => Promise<object>;
    getStreamInfo: (name: string, run: string) => Promise<object>;
    specVersion: number;
    capabilities: {
        hookRetention: {
            active: boolean;
        };
        maxConcurrency: boolean;
        deploymentAffinity: boolean;
    };
    getDeploymentId: () => Promise<string>;
    queue: (name: string, payload: Record<string, unknown>, o?: import("./queue.ts").PublishOptions | undefined) => Promise<{
        messageId: string;
    }>;
    queueBatch: (name: string, messages: {
        message: Record<string, unknown>;
        opts?: import("./queue.ts").PublishOptions;
    }[]) => Promise<object[]>;
    createQueueHandler: (prefix: string, handle: import("./queue.ts").Handler) => (req: Request) => Promise<Response>;
    resolveLatestDeploymentId: () => Promise<string>;
    runs: {
        get: (id: string, p?: import("./storage.ts").Data) => Promise<{
            [x: string]: any;
        }>;
        getMany: (ids: readonly string[], p?: import("./storage.ts").Data) => Promise<({
            [x: string]: any;
        } | null)[]>;
        list: (p?: import("./storage.ts").Data & {
            workflowName?: string;
            status?: string | string[];
            pagination?: import("./events.ts").Pagination;
        }) => Promise<import("./events.ts").Page<{
            [x: string]: any;
        }>>;
        waitForTerminalStatus: (id: string, p?: import("./storage.ts").Data & {
            timeoutMs?: number;
            signal?: AbortSignal;
        }) => Promise<{
            [x: string]: any;
        }>;
        experimentalSetAttributes: (id: string, changes: object[], o?: {
            allowReservedAttributes?: boolean;
        }) => Promise<{
            [x: string]: any;
        }>;
        cancelMany: ({ runIds, cancelReason }: {
            runIds: string[];
            cancelReason?: string;
        }) => Promise<{
            [x: string]: any;
        }>;
    };
    steps: {
        get: (run: string | undefined, id: string, p?: import("./storage.ts").Data) => Promise<{
            [x: string]: any;
        }>;
        list: (p: import("./storage.ts").Data & {
            runId: string;
            pagination?: import("./events.ts").Pagination;
        }) => Promise<import("./events.ts").Page<{
            [x: string]: any;
        }>>;
    };
    hooks: {
        get: (id: string, p?: import("./storage.ts").Data) => Promise<{
            [x: string]: any;
        }>;
        getByToken: (token: string, p?: import("./storage.ts").Data) => Promise<{
            [x: string]: any;
        }>;
        list: (p?: import("./storage.ts").Data & {
            runId?: string;
            pagination?: import("./events.ts").Pagination;
        }) => Promise<import("./events.ts").Page<{
            [x: string]: any;
        }>>;
    };
    events: {
        create: (run: string | null, e: import("./events.ts").EventRequest, p?: import("./events.ts").CreateParams) => Promise<{
            [x: string]: any;
        }>;
        createBatch: (run: string, events: {
            event: import("./events.ts").EventRequest;
            occurredAt?: Date;
        }[], p?: {
            resolveData?: string;
        }) => Promise<{
            [x: string]: any;
        }>;
        get: (run: string, id: string, p?: {
            resolveData?: string;
        }) => Promise<{
            [x: string]: any;
        }>;
        list: (p: {
            runId: string;
            pagination?: import("./events.ts").Pagination;
            resolveData?: string;
        }) => Promise<import("./events.ts").Page<{
            [x: string]: any;
        }>>;
        listByCorrelationId: (p: {
            correlationId: string;
            runId: string;
            pagination?: import("./events.ts").Pagination;
            resolveData?: string;
        }) => Promise<import("./events.ts").Page<{
            [x: string]: any;
        }>>;
    };
    streams: {
        write: (run: string | Promise<string | undefined> | undefined, name: string, chunk: string | Uint8Array<ArrayBufferLike>) => Promise<void>;
        writeMulti(run: string | Promise<string | undefined> | undefined, name: string, chunks: (string | Uint8Array<ArrayBufferLike>)[]): Promise<void>;
        close: (run: string | Promise<string | undefined> | undefined, name: string) => Promise<void>;
        get(run: string | Promise<string | undefined> | undefined, name: string, startIndex?: number): Promise<ReadableStream<Uint8Array>>;
        list: (run: string) => Promise<string[]>;
        getChunks: (run: string, name: string, o?: {
            limit? /** start connects to the daemon; it waits for the app's server by itself. */: number;
            cursor?: string;
        }) => Promise<object>;
        getInfo: (run: string, name: string) => Promise<object>;
    };
};
export default createWorld;
