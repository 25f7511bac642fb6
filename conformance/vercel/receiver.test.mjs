// The SDK's own receiver of forwarded requests believes issuers at one name only.
// The daemon of this program is the issuer under that name, which leads to it.
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { Case, sh, unique } from './case.mjs';
import { credentials, load } from './sdk.mjs';
import { requestsFor, world } from './world.mjs';

const { fetch } = globalThis;
globalThis.fetch = (url, init) => fetch(String(url).replace(/^https:\/\/oidc\.vercel\.com\//, `${world.url}/`), init);

describe('receiver', () => {
  for (const alias of ['sandbox-v2', 'sandbox-v3']) {
    test(`${alias}: knows who a request is from`, async (t) => {
      const sdk = await load(alias);
      const path = `/${unique('forwarded')}/x?y=z`;
      const forwardURL = 'https://files.example.com/base';
      const box = await new Case(sdk, t).fresh({ name: unique('sender'), networkPolicy: { allow: { 'api.example.com': [{ forwardURL }] } } });
      await sh(box, `curl -sSf -H 'x-own: kept' https://api.example.com${path}`);
      const [{ header }] = await requestsFor(`/base${path}`);
      const headers = Object.fromEntries(Object.entries(header).map(([name, values]) => [name, values.join(', ')]));

      const seen = [];
      const receive = sdk.defineSandboxProxy((request, meta) => {
        seen.push({ url: request.url, own: request.headers.get('x-own'), token: request.headers.get('vercel-sandbox-oidc-token'), ...meta });
        return new Response('received');
      });
      const answer = await receive(new Request(`${forwardURL}${path}`, { headers }));
      assert.deepEqual([answer.status, await answer.text()], [200, 'received']);
      const [{ sandboxId, ...said }] = seen;
      assert.deepEqual(said, {
        url: `https://api.example.com${path}`, own: 'kept', token: null, host: 'files.example.com',
        teamId: credentials.teamId, projectId: credentials.projectId, sandboxName: box.name,
      });
      assert.match(sandboxId, /^s/);

      // Nobody else is to be believed with the same token, and a changed one never.
      assert.equal((await receive(new Request(`https://other.example.org/base${path}`, { headers }))).status, 403);
      const name = Object.keys(headers).find((n) => n.toLowerCase() === 'vercel-sandbox-oidc-token');
      assert.equal((await receive(new Request(`${forwardURL}${path}`, { headers: { ...headers, [name]: `${headers[name].slice(0, -6)}AAAAAA` } }))).status, 403);
      assert.equal(seen.length, 1);
    });
  }
});
