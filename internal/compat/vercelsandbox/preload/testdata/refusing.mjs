// A fetch that is refused three times for each address, then breaks a connection, then answers.
globalThis.calls = {};
const fail = (code) => Promise.reject(Object.assign(new TypeError('fetch failed'), { cause: { code } }));
globalThis.fetch = (url) => {
  const n = (globalThis.calls[url] = (globalThis.calls[url] ?? 0) + 1);
  if (n <= 3) return fail('ECONNREFUSED');
  if (n === 4) return fail('ECONNRESET');
  return Promise.resolve(new Response('', { status: 201 }));
};
