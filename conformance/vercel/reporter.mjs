// A reporter of node:test that writes one line of JSON per case, for the Go test
// that started node: {name, ok, skip, ms, error}.
export default async function* (events) {
  for await (const { type, data } of events) {
    if (type !== 'test:pass' && type !== 'test:fail') continue;
    const error = data.details?.error;
    if (data.details?.type === 'suite' && error?.failureType !== 'hookFailed') continue; // its cases say it
    if (/does not match/.test(data.skip)) continue; // left out by --test-name-pattern
    const cause = error?.cause ?? error;
    yield JSON.stringify({
      name: data.name,
      ok: type === 'test:pass',
      skip: data.skip === undefined ? undefined : String(data.skip),
      ms: Math.round(data.details?.duration_ms ?? 0),
      error: type === 'test:fail' ? describe(cause) : undefined,
    }) + '\n';
  }
}

// What an error of a client says is often in fields that are not in its message.
function describe(err) {
  if (!(err instanceof Error) && typeof err?.stack !== 'string') return String(err);
  const parts = [err.stack];
  if (err.response?.status) parts.push(`status ${err.response.status} of ${err.response.url}`);
  if (err.text) parts.push(`body ${err.text}`);
  if (err.cause) parts.push(`cause ${err.cause.stack ?? err.cause}`);
  return parts.join('\n');
}
