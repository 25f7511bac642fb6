// Streams of runs: by run and name here; the 4.x line's methods are made of these.
import { api, query } from "./client.js";
import { errorOf, transportError, WorldError } from "./errors.js";
const maxChunks = 1000; // of one request
const at = encodeURIComponent;
const bytes = (c) => (typeof c === 'string' ? Buffer.from(c) : c);
/** streams is World.streams. */
export function streams(client) {
    const path = async (run, name) => {
        const id = await run;
        return id ? `${api}/v2/runs/${at(id)}/stream/${at(name)}` : `${api}/v2/stream/${at(name)}`;
    };
    const put = async (run, name, body, headers, again = false) => {
        await client().call('PUT', await path(run, name), { body, headers, type: 'application/octet-stream', again });
    };
    return {
        write: (run, name, chunk) => put(run, name, bytes(chunk)),
        async writeMulti(run, name, chunks) {
            for (let i = 0; i < chunks.length; i += maxChunks) {
                const parts = [];
                for (const c of chunks.slice(i, i + maxChunks)) {
                    const b = bytes(c);
                    const size = Buffer.allocUnsafe(4);
                    size.writeUInt32BE(b.length);
                    parts.push(size, b);
                }
                await put(run, name, Buffer.concat(parts), { 'x-stream-multi': 'true' });
            }
        },
        close: (run, name) => put(run, name, new Uint8Array(), { 'x-stream-done': 'true' }, true),
        async get(run, name, startIndex) {
            const url = `${await path(run, name)}${query({ startIndex })}`;
            let res;
            try {
                res = await client().open('GET', url);
            }
            catch (err) {
                throw transportError(`read stream ${name}`, err);
            }
            if (res.statusCode !== 200) {
                const pieces = [];
                for await (const piece of res)
                    pieces.push(piece);
                const { message, status, code } = errorOf(`read stream ${name}`, res.statusCode ?? 0, Buffer.concat(pieces));
                throw new WorldError('StreamError', message, { status, code });
            }
            const chunks = res[Symbol.asyncIterator]();
            res.on('error', () => { }); // when nobody reads: who reads gets it from chunks
            return new ReadableStream({
                // A connection that breaks is an error, and not the end: who reads comes again at its index.
                async pull(to) {
                    const { done, value } = await chunks.next();
                    if (done)
                        to.close();
                    else
                        to.enqueue(new Uint8Array(value.buffer, value.byteOffset, value.length));
                },
                // Aborting the request instead would end the connection also when all has come, and the
                // connection may be another request's by then.
                cancel() {
                    res.destroy();
                },
            });
        },
        list: (run) => client().value('GET', `${api}/v2/runs/${at(run)}/streams`),
        getChunks: (run, name, o = {}) => client().value('GET', `${api}/v2/runs/${at(run)}/streams/${at(name)}/chunks${query({ limit: o.limit, cursor: o.cursor })}`),
        getInfo: (run, name) => client().value('GET', `${api}/v2/runs/${at(run)}/streams/${at(name)}/info`),
    };
}
/** flat are the methods of the 4.x line. It reads streams by their names alone. */
export function flat(s) {
    return {
        writeToStream: (name, run, chunk) => s.write(run, name, chunk),
        writeToStreamMulti: (name, run, chunks) => s.writeMulti(run, name, chunks),
        closeStream: (name, run) => s.close(run, name),
        readFromStream: (name, startIndex) => s.get(undefined, name, startIndex),
        listStreamsByRunId: (run) => s.list(run),
        getStreamChunks: (name, run, o) => s.getChunks(run, name, o),
        getStreamInfo: (name, run) => s.getInfo(run, name),
    };
}
