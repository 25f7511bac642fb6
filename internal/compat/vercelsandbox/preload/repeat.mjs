// Writes to streams and messages of workflows outlive a restart of the daemon: they are sent again,
// with their bytes, until the daemon answers. The SDK either does not repeat them or repeats them
// without their bytes.
//
// Events are sent again only if they cannot have arrived: the SDK knows which of them it may repeat.
//
// Nothing is doubled. A message gets an idempotency key, if it has none. A write that may have arrived
// is repeated with the length that the stream had before it, and the daemon looks for the write
// behind that length. For this, the writes of a process to a stream go out one after the other.
const repeatFor = 60_000; // ms
const maxStreams = 10_000; // whose lengths are known

const refused = /^(ECONNREFUSED|ENOTFOUND|EAI_AGAIN|E(HOST|NET)(UNREACH|DOWN)|UND_ERR_CONNECT_TIMEOUT)$/; // before a request went out
const broken = /^(ECONN(RESET|ABORTED)|EPIPE|UND_ERR_SOCKET)$/;

const isOf = (codes, e) => {
  for (let i = 0; e && i < 8; i++, e = e.cause) if (codes.test(e.code)) return true;
  return false;
};

// ofStream returns the path of the stream that a request writes to, undefined if it writes to none.
const ofStream = (method, path) => (method === 'PUT' ? /^\/api\/(v2\/runs\/[^/]+\/stream\/[^/]+)$/.exec(path)?.[1] : undefined);

const isEvent = (method, path) => method === 'POST' && /^\/api\/v4\/runs\/[^/]+\/events(\/[^/]+)?$/.test(path);

const isMessage = (method, path) => method === 'POST' && /^\/api\/v3\/topic\/[^/]+$/.test(path);

// Repeats sends what is to be sent again.
class Repeats {
  #fetch;
  #base; // of the API, on the daemon
  #streams = new Map(); // by path: { length, last } a promise of the last write

  constructor(fetch, base) {
    this.#fetch = fetch;
    this.#base = base;
  }

  // send returns a promise of the answer to a request that is to be repeated, undefined if it is not.
  send(method, url, to, init) {
    const body = init?.body;
    if (!(body === undefined || body === null || typeof body === 'string' || body instanceof Uint8Array)) return;
    if (isEvent(method, url.pathname)) return this.#until(to, init, undefined, true);
    const { dispatcher, ...rest } = init ?? {}; // which loses the bytes
    rest.headers = new Headers(rest.headers);
    if (isMessage(method, url.pathname)) {
      if (!rest.headers.has('vqs-idempotency-key')) rest.headers.set('vqs-idempotency-key', `cay-${crypto.randomUUID()}`);
      return this.#until(to, rest);
    }
    const stream = ofStream(method, url.pathname);
    if (stream) return this.#write(stream, to, rest);
  }

  // #until sends a request until it is answered. again is called before a request that may have been
  // received is sent another time; a request that is careful is not sent again then.
  async #until(to, init, again, careful) {
    const end = Date.now() + repeatFor;
    for (let wait = 50; ; wait = Math.min(2 * wait, 1000)) {
      try {
        const answer = await this.#fetch(to, init);
        if (careful || answer.status !== 503 || Date.now() + wait > end) return answer;
        await answer.arrayBuffer(); // its database is away, or it ends
      } catch (e) {
        if (!isOf(refused, e) && (careful || !isOf(broken, e)) || Date.now() + wait > end) throw e;
      }
      again?.();
      await new Promise((resolve) => setTimeout(resolve, wait));
      init?.signal?.throwIfAborted();
    }
  }

  async #write(path, to, init) {
    const stream = this.#streams.get(path) ?? {};
    this.#streams.delete(path);
    this.#streams.set(path, stream); // as the newest
    if (this.#streams.size > maxStreams) this.#streams.delete(this.#streams.keys().next().value);
    const before = stream.last;
    const done = deferred();
    stream.last = done.promise;
    await before;
    try {
      stream.length ??= await this.#length(path, init);
      const answer = await this.#until(to, init, () => init.headers.set('x-cay-after', stream.length));
      const length = Number(answer.headers.get('x-cay-length') ?? NaN);
      stream.length = answer.ok && length >= 0 ? length : undefined;
      if (answer.ok && init.headers.get('x-stream-done') === 'true' && stream.last === done.promise) this.#streams.delete(path);
      return answer;
    } catch (e) {
      stream.length = undefined; // whether the write has arrived is unknown
      throw e;
    } finally {
      done.resolve();
    }
  }

  // #length asks for the number of chunks of a stream.
  async #length(path, { headers, signal }) {
    const asking = new Headers();
    for (const name of ['authorization', 'user-agent']) if (headers.has(name)) asking.set(name, headers.get(name));
    const answer = await this.#until(`${this.#base}/api/${path.replace('/stream/', '/streams/')}/info`, { headers: asking, signal });
    await answer.arrayBuffer();
    return Number(answer.headers.get('x-cay-length') ?? 0); // a run that is not there yet has no streams
  }
}
