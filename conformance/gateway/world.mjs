import { readFileSync } from 'node:fs';

// What the Go test that started this process tells about its daemon and the
// providers behind it.
//
//   url       of the gateway
//   key       that clients have
//   spent     a key whose budget is used up
//   narrow    a key that may call models of the provider chat only
//   control   URL of what the providers have seen
//   dialects  names of the providers, each speaking another wire format
//   direct    whether there is no gateway, and url is that of the providers: to see
//             that these do what the clients expect
//   recorded  for each dialect, the recorded answers it plays: see replay.mjs
export const world = JSON.parse(readFileSync(process.env.CAY_WORLD, 'utf8'));

async function seen(verb, query) {
  const answer = await fetch(`${world.control}/${verb}?${new URLSearchParams(query)}`);
  if (!answer.ok) throw new Error(`${verb}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

/** How the last request for a model with a text in it ended at the provider: {canceled}. It waits for the end. */
export const endOf = (model, text) => seen('end', { model, text });

/** How often a provider was asked for a model with a text in it. It waits until that is n times. */
export const asked = async (model, text, n) => (await seen('asked', { model, text, n })).times;
