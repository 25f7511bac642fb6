// Streams of runs: by run and name here; the 4.x line's methods are made of these.
import { api, query, type Client } from './client.ts';
import { errorOf, transportError, WorldError } from './errors.ts';

type Chunk = string | Uint8Array;
type Run = string | undefined | Promise<string | undefined>;

const maxChunks = 1000; // of one request
const at = encodeURIComponent;

const bytes = (c: Chunk): Uint8Array => (typeof c === 'string' ? Buffer.from(c) : c);

/** streams is World.streams. */
export function streams(client: () => Client) {
  const path = async (run: Run, name: string): Promise<string> => {
    const id = await run;
    return id ? `${api}/v2/runs/${at(id)}/stream/${at(name)}` : `${api}/v2/stream/${at(name)}`;
  };
  const put = async (run: Run, name: string, body: Uint8Array, headers?: Record<string, string>, again = false): Promise<void> => {
    await client().call('PUT', await path(run, name), { body, headers, type: 'application/octet-stream', again });
  };
  return {
    write: (run: Run, name: string, chunk: Chunk) => put(run, name, bytes(chunk)),
    async writeMulti(run: Run, name: string, chunks: Chunk[]): Promise<void> {
      for (let i = 0; i < chunks.length; i += maxChunks) {
        const parts: Uint8Array[] = [];
        for (const c of chunks.slice(i, i + maxChunks)) {
          const b = bytes(c);
          const size = Buffer.allocUnsafe(4);
          size.writeUInt32BE(b.length);
          parts.push(size, b);
        }
        await put(run, name, Buffer.concat(parts), { 'x-stream-multi': 'true' });
      }
    },
    close: (run: Run, name: string) => put(run, name, new Uint8Array(), { 'x-stream-done': 'true' }, true),
    async get(run: Run, name: string, startIndex?: number): Promise<ReadableStream<Uint8Array>> {
      const url = `${await path(run, name)}${query({ startIndex })}`;
      let res;
      try {
        res = await client().open('GET', url);
      } catch (err) {
        throw transportError(`read stream ${name}`, err);
      }
      if (res.statusCode !== 200) {
        const pieces: Buffer[] = [];
        for await (const piece of res) pieces.push(piece as Buffer);
        const { message, status, code } = errorOf(`read stream ${name}`, res.statusCode ?? 0, Buffer.concat(pieces));
        throw new WorldError('StreamError', message, { status, code });
      }
      const chunks = res[Symbol.asyncIterator]();
      res.on('error', () => {}); // when nobody reads: who reads gets it from chunks
      return new ReadableStream<Uint8Array>({
        // A connection that breaks is an error, and not the end: who reads comes again at its index.
        async pull(to) {
          const { done, value } = await chunks.next();
          if (done) to.close();
          else to.enqueue(new Uint8Array(value.buffer, value.byteOffset, value.length));
        },
        // Aborting the request instead would end the connection also when all has come, and the
        // connection may be another request's by then.
        cancel() {
          res.destroy();
        },
      });
    },
    list: (run: string): Promise<string[]> => client().value('GET', `${api}/v2/runs/${at(run)}/streams`),
    getChunks: (run: string, name: string, o: { limit?: number; cursor?: string } = {}) =>
      client().value<object>('GET', `${api}/v2/runs/${at(run)}/streams/${at(name)}/chunks${query({ limit: o.limit, cursor: o.cursor })}`),
    getInfo: (run: string, name: string) => client().value<object>('GET', `${api}/v2/runs/${at(run)}/streams/${at(name)}/info`),
  };
}

/** flat are the methods of the 4.x line. It reads streams by their names alone. */
export function flat(s: ReturnType<typeof streams>) {
  return {
    writeToStream: (name: string, run: Run, chunk: Chunk) => s.write(run, name, chunk),
    writeToStreamMulti: (name: string, run: Run, chunks: Chunk[]) => s.writeMulti(run, name, chunks),
    closeStream: (name: string, run: Run) => s.close(run, name),
    readFromStream: (name: string, startIndex?: number) => s.get(undefined, name, startIndex),
    listStreamsByRunId: (run: string) => s.list(run),
    getStreamChunks: (name: string, run: string, o?: { limit?: number; cursor?: string }) => s.getChunks(run, name, o),
    getStreamInfo: (name: string, run: string) => s.getInfo(run, name),
  };
}
