import { type Client } from './client.ts';
type Fields = Record<string, any>;
export interface EventRequest {
    eventType: string;
    correlationId?: string;
    specVersion?: number;
    eventData?: Fields;
}
export interface CreateParams {
    occurredAt?: Date;
    sinceCursor?: string;
    resumeId?: string;
    skipPreload?: boolean;
}
export interface Pagination {
    limit?: number;
    cursor?: string | null;
    sortOrder?: 'asc' | 'desc';
}
export interface Page<T> {
    data: T[];
    cursor: string | null;
    hasMore: boolean;
}
/** Events are World.events. */
export declare class Events {
    private readonly client;
    constructor(client: () => Client);
    create: (run: string | null, e: EventRequest, p?: CreateParams) => Promise<Fields>;
    createBatch: (run: string, events: {
        event: EventRequest;
        occurredAt?: Date;
    }[], p?: {
        resolveData?: string;
    }) => Promise<Fields>;
    get: (run: string, id: string, p?: {
        resolveData?: string;
    }) => Promise<Fields>;
    list: (p: {
        runId: string;
        pagination?: Pagination;
        resolveData?: string;
    }) => Promise<Page<Fields>>;
    listByCorrelationId: (p: {
        correlationId: string;
        runId: string;
        pagination?: Pagination;
        resolveData?: string;
    }) => Promise<Page<Fields>>;
    private read;
}
export declare const behavior: (p?: {
    resolveData?: string;
}) => string;
export declare const paged: (p?: Pagination) => Record<string, string | number | undefined>;
export {};
