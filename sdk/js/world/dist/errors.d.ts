/** WorldError is any error of a World; its name says which of the SDK's it is. */
export declare class WorldError extends Error {
    status?: number;
    code?: string;
    /** seconds */
    retryAfter?: number;
    [more: string]: unknown;
    constructor(name: string, message: string, more?: object);
}
/** errorOf is the error of an answer of the daemon. */
export declare function errorOf(what: string, status: number, body: Uint8Array, retryAfter?: string): WorldError;
export declare const isNotFound: (e: unknown) => boolean;
/** transportError says that no answer has come. */
export declare function transportError(what: string, cause: unknown): WorldError;
