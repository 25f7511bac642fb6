import { type Client } from './client.ts';
type Chunk = string | Uint8Array;
type Run = string | undefined | Promise<string | undefined>;
/** streams is World.streams. */
export declare function streams(client: () => Client): {
    write: (run: Run, name: string, chunk: Chunk) => Promise<void>;
    writeMulti(run: Run, name: string, chunks: Chunk[]): Promise<void>;
    close: (run: Run, name: string) => Promise<void>;
    get(run: Run, name: string, startIndex?: number): Promise<ReadableStream<Uint8Array>>;
    list: (run: string) => Promise<string[]>;
    getChunks: (run: string, name: string, o?: {
        limit?: number;
        cursor?: string;
    }) => Promise<object>;
    getInfo: (run: string, name: string) => Promise<object>;
};
/** flat are the methods of the 4.x line. It reads streams by their names alone. */
export declare function flat(s: ReturnType<typeof streams>): {
    writeToStream: (name: string, run: Run, chunk: Chunk) => Promise<void>;
    writeToStreamMulti: (name: string, run: Run, chunks: Chunk[]) => Promise<void>;
    closeStream: (name: string, run: Run) => Promise<void>;
    readFromStream: (name: string, startIndex?: number) => Promise<ReadableStream<Uint8Array<ArrayBufferLike>>>;
    listStreamsByRunId: (run: string) => Promise<string[]>;
    getStreamChunks: (name: string, run: string, o?: {
        limit?: number;
        cursor?: string;
    }) => Promise<object>;
    getStreamInfo: (name: string, run: string) => Promise<object>;
};
export {};
