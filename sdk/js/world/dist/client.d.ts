import * as http from 'node:http';
/** api is where the daemon serves what the SDK's own client of Vercel's service asks for. */
export declare const api = "/vercel/workflow/api";
export declare const queues = "/vercel/queue/api/v3";
export interface Request {
    body?: Uint8Array | string;
    type?: string;
    headers?: Record<string, string>;
    /** may be sent again when no answer has come, or the daemon has failed; by default reads alone */
    again?: boolean;
    signal?: AbortSignal;
}
export interface Answer {
    headers: http.IncomingHttpHeaders;
    body: Buffer;
}
/** Client asks one daemon. */
export declare class Client {
    private readonly token;
    private readonly lib;
    private readonly agent;
    readonly base: URL;
    constructor(url: string, token: string);
    /** sign returns what only holders of the token can say of a text. */
    sign(text: string): string;
    close(): void;
    /** open sends a request and returns the answer once its head is there. */
    open(method: string, path: string, r?: Request): Promise<http.IncomingMessage>;
    /** call sends a request and returns the answer. Answers that are errors are thrown. */
    call(method: string, path: string, r?: Request): Promise<Answer>;
    /** value is call for answers that are CBOR, or JSON. */
    value<T>(method: string, path: string, r?: Request): Promise<T>;
}
/** query is the query of a URL; what is undefined is left out. */
export declare function query(fields: Record<string, string | number | undefined>): string;
export declare function pause(ms: number, signal?: AbortSignal): Promise<void>;
/** withResolvers is Promise.withResolvers, which Node 20 has not. */
export declare function withResolvers<T>(): {
    promise: Promise<T>;
    resolve: (v: T) => void;
    reject: (e: unknown) => void;
};
