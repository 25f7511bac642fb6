// Files that the browser is to keep. Large ones go through a file that the browser has for this origin, and not
// through its memory: it reads that file while it saves it.
import { ApiError, send, type Query } from './api';

/** small is what is kept in memory at most, in bytes; without files of its own a browser takes up to most. */
const small = 16 << 20;
const most = 1 << 30;

const directory = 'downloads';
/** stale is how old a file is that nobody reads any more, in ms. */
const stale = 3_600_000;

/** files is the directory for downloads, undefined where the browser has none: without TLS, or in a private window. */
async function files(): Promise<FileSystemDirectoryHandle | undefined> {
  try {
    const root = await navigator.storage.getDirectory();
    const dir = await root.getDirectoryHandle(directory, { create: true });
    return 'createWritable' in FileSystemFileHandle.prototype ? dir : undefined;
  } catch {
    return undefined;
  }
}

/** forgetDownloads removes what was downloaded from the browser's own files; with an age, what is older. */
export async function forgetDownloads(age = 0): Promise<void> {
  const dir = await files();
  if (!dir) return;
  for await (const name of (dir as unknown as { keys(): AsyncIterable<string> }).keys()) {
    if (Date.now() - Number(name.split('-')[0]) >= age) await dir.removeEntry(name).catch(() => {}); // another page uses it
  }
}

/** save has the browser keep an answer as a file. It says how much has come, and of how much if that is known. */
export async function save(to: string, query: Query, name: string, onProgress?: (got: number, whole?: number) => void, signal?: AbortSignal): Promise<void> {
  const answer = await send('GET', to, { query, signal });
  const whole = Number(answer.headers.get('Content-Length')) || undefined;
  let got = 0;
  const counted = answer.body!.pipeThrough(
    new TransformStream<Uint8Array, Uint8Array>({
      transform(chunk, out) {
        got += chunk.length;
        onProgress?.(got, whole);
        out.enqueue(chunk);
      },
    }),
  );
  let blob: Blob;
  const dir = whole !== undefined && whole <= small ? undefined : await files();
  if (dir) {
    await forgetDownloads(stale);
    const file = await dir.getFileHandle(`${Date.now()}-${Math.random().toString(36).slice(2)}`, { create: true });
    try {
      await counted.pipeTo(await file.createWritable());
    } catch (e) {
      await dir.removeEntry(file.name).catch(() => {});
      throw signal?.aborted ? new ApiError('canceled', 'The download was given up') : new ApiError('unavailable', 'The download broke off', e instanceof Error ? e.message : '');
    }
    blob = await file.getFile();
  } else {
    if ((whole ?? 0) > most) {
      void counted.cancel();
      throw new ApiError('too_large', 'This browser would hold all of the file in memory', 'use cay sandbox copy, or open this page over TLS or at localhost');
    }
    try {
      blob = await new Response(counted).blob();
    } catch {
      throw signal?.aborted ? new ApiError('canceled', 'The download was given up') : new ApiError('unavailable', 'The download broke off');
    }
  }
  // Never as what it is: a page of this origin would be made of it.
  const url = URL.createObjectURL(blob.slice(0, blob.size, 'application/octet-stream'));
  const a = document.createElement('a');
  a.href = url;
  a.download = name;
  a.click();
  window.setTimeout(() => URL.revokeObjectURL(url), stale);
}
