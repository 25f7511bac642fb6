import assert from 'node:assert/strict';
import { createRemoteJWKSet, jwtVerify } from 'jose';
import { refused, sh, unique } from '../case.mjs';
import { requestsFor, world } from '../world.mjs';

// What comes of asking for a URL: the status, or what curl says.
async function ask(box, url, ...args) {
  const done = await box.runCommand('curl', ['-sS', '-m', '20', '-o', '/tmp/answer', '-w', '%{http_code}', ...args, url]);
  return done.exitCode === 0 ? done.stdout() : `no answer (curl ${done.exitCode})`;
}
const blocked = /^(no answer|403$)/;
const body = async (box) => JSON.parse(await sh(box, 'cat /tmp/answer'));

export default ({ all, from, sdk }) => {
  // Sets a policy in the way the version has, and returns what it is then.
  const set = async (box, policy) => {
    const said = await box.updateNetworkPolicy(policy);
    assert.deepEqual(said, sdk.session(box).networkPolicy);
    return said;
  };

  all('network: open unless it is said', async (c) => {
    const box = await c.box();
    assert.equal(await ask(box, 'http://api.example.com/'), '200');
    assert.equal(await ask(box, 'http://other.example.org/'), '200');
    assert.match(await ask(box, 'http://169.254.169.254/latest/meta-data'), blocked);
    assert.match(await ask(box, 'http://internal.example.com/'), blocked);
  });

  all('network: deny-all and back', async (c) => {
    const box = await c.fresh({ networkPolicy: 'deny-all' });
    assert.match(await ask(box, 'http://api.example.com/'), blocked);
    assert.equal(await set(box, 'allow-all'), 'allow-all');
    assert.equal(await ask(box, 'http://api.example.com/'), '200');
    assert.equal(await set(box, 'deny-all'), 'deny-all');
    assert.match(await ask(box, 'http://api.example.com/'), blocked);
    assert.equal((await sdk.get(box)).networkPolicy, 'deny-all');
  });

  all('network: a list of names', async (c) => {
    const policy = { allow: ['api.example.com', '*.example.org'] };
    const box = await c.fresh({ networkPolicy: policy });
    assert.deepEqual(box.networkPolicy, policy);
    assert.deepEqual((await sdk.get(box)).networkPolicy, policy);
    assert.equal(await ask(box, 'http://api.example.com/'), '200');
    assert.equal(await ask(box, 'http://other.example.org/'), '200');
    assert.match(await ask(box, 'http://files.example.com/'), blocked);
    assert.match(await ask(box, 'http://93.184.0.11/'), blocked);
  });

  all('network: a map of names without rules', async (c) => {
    const box = await c.fresh();
    assert.deepEqual(await set(box, { allow: { 'api.example.com': [], 'files.example.com': [] } }), { allow: ['api.example.com', 'files.example.com'] });
    assert.equal(await ask(box, 'http://files.example.com/'), '200');
    assert.match(await ask(box, 'http://other.example.org/'), blocked);
  });

  all('network: subnets', async (c) => {
    const policy = { allow: ['files.example.com', 'api.example.com'], subnets: { allow: ['93.185.0.0/16'], deny: ['93.184.0.10/32'] } };
    const box = await c.fresh({ networkPolicy: policy });
    assert.deepEqual(box.networkPolicy, policy);
    assert.equal(await ask(box, 'http://93.185.0.40/'), '200');
    assert.equal(await ask(box, 'http://files.example.com/'), '200');
    assert.match(await ask(box, 'http://api.example.com/'), blocked); // its address is denied
    assert.match(await ask(box, 'http://cdn.example.com/'), blocked);
  });

  all('network: everything but a subnet', async (c) => {
    const box = await c.fresh({ networkPolicy: { allow: ['*'], subnets: { deny: ['93.184.0.11/32'] } } });
    assert.equal(await ask(box, 'http://api.example.com/'), '200');
    assert.match(await ask(box, 'http://files.example.com/'), blocked);
  });

  all('network: a policy that allows nothing', async (c) => {
    const box = await c.fresh({ networkPolicy: { allow: [] } });
    assert.match(await ask(box, 'http://api.example.com/'), blocked);
  });

  all('network: headers are put in, and never shown', async (c) => {
    const policy = (value) => ({ allow: { 'api.example.com': [{ transform: [{ headers: { authorization: value, 'x-more': 'also' } }] }], '*': [] } });
    const box = await c.fresh({ networkPolicy: policy('Bearer first-secret') });
    const redacted = policy('<redacted>');
    redacted.allow['api.example.com'][0].transform[0].headers['x-more'] = '<redacted>';
    for (const seen of [box.networkPolicy, (await sdk.get(box)).networkPolicy]) {
      assert.deepEqual(lowerHeaders(seen), redacted);
      assert.doesNotMatch(JSON.stringify(seen), /first-secret/);
    }
    assert.equal(await ask(box, 'https://api.example.com/', '-H', 'authorization: placeholder'), '200');
    const { header } = await body(box);
    assert.deepEqual([header.Authorization, header['X-More']], [['Bearer first-secret'], ['also']]);
    assert.doesNotMatch(await sh(box, 'env; cat /proc/*/cmdline 2>/dev/null | tr "\\0" " "'), /first-secret/);

    await set(box, policy('Bearer second-secret'));
    await ask(box, 'https://api.example.com/');
    assert.deepEqual((await body(box)).header.Authorization, ['Bearer second-secret']);
    await ask(box, 'http://other.example.org/');
    assert.equal((await body(box)).header.Authorization, undefined);
  });

  from(2)('network: rules match what they say', async (c) => {
    const transform = [{ headers: { 'x-rule': 'matched' } }];
    const matches = [
      { path: { startsWith: '/start/' } }, { path: { exact: '/exact' } }, { path: { regex: '^/re[0-9]+$' } }, { method: ['PUT', 'PATCH'] },
      { queryString: [{ key: { exact: 'q' }, value: { startsWith: 'v' } }] }, { headers: [{ key: { exact: 'x-tenant' }, value: { regex: '^a' } }] },
      { path: { exact: '/both' }, method: ['POST'] },
    ];
    const policy = { allow: { 'api.example.com': matches.map((match) => ({ match, transform })) } };
    const box = await c.fresh({ networkPolicy: policy });
    assert.deepEqual(lowerHeaders(box.networkPolicy), { allow: { 'api.example.com': matches.map((match) => ({ match, transform: [{ headers: { 'x-rule': '<redacted>' } }] })) } });
    const cases = [
      ['/start/x', true], ['/starting', false], ['/exact', true], ['/exact/', false], ['/re77', true], ['/re', false],
      ['/m', true, '-X', 'PATCH'], ['/m', false, '-X', 'POST'], ['/q?q=very', true], ['/q?q=no', false],
      ['/h', true, '-H', 'X-Tenant: acme'], ['/h', false, '-H', 'X-Tenant: bcme'], ['/both', true, '-X', 'POST'], ['/both', false],
    ];
    for (const [path, matched, ...args] of cases) {
      assert.equal(await ask(box, `https://api.example.com${path}`, ...args), '200', path);
      assert.equal((await body(box)).header['X-Rule']?.[0], matched ? 'matched' : undefined, `${path} ${args}`);
    }
  });

  from(2)('network: requests are forwarded, with proof of who sent them', async (c) => {
    const path = `/${unique('forwarded')}`;
    const policy = { allow: { 'api.example.com': [{ match: { path: { startsWith: path } }, forwardURL: 'https://files.example.com/base' }] } };
    const box = await c.fresh();
    await box.update({ networkPolicy: policy });
    assert.deepEqual(box.networkPolicy, policy);
    assert.equal(await ask(box, `https://api.example.com${path}/x?y=z`, '-H', 'authorization: Bearer of-the-guest'), '200');
    const [request] = await requestsFor(`/base${path}/x?y=z`);
    const of = (name) => Object.entries(request.header).find(([n]) => n.toLowerCase() === name)?.[1][0];
    assert.equal(request.server, 'files');
    assert.deepEqual(
      ['host', 'scheme', 'port'].map((part) => of(`vercel-forwarded-${part}`)).concat(of('authorization')),
      ['api.example.com', 'https', '443', 'Bearer of-the-guest'],
    );
    assert.match(of('vercel-forwarded-path'), new RegExp(`^${path}/x`));
    const token = of('vercel-sandbox-oidc-token');
    const issuer = JSON.parse(Buffer.from(token.split('.')[1], 'base64url')).iss;
    const { payload, protectedHeader } = await jwtVerify(token, createRemoteJWKSet(new URL(`${issuer}/.well-known/jwks`)), {
      algorithms: ['RS256'], audience: 'https://files.example.com/base', issuer,
    });
    assert.equal(protectedHeader.alg, 'RS256');
    assert.deepEqual([payload.team_id, payload.project_id, payload.sandbox_name], [world.teamId, world.projectId, box.name]);
    assert.match(payload.sandbox_id, /^s/);

    // The vendor's receiver takes tokens of the vendor's own issuer alone.
    const receive = sdk.defineSandboxProxy(() => new Response('taken'));
    const forwarded = new Request('https://files.example.com/base', {
      headers: { ...Object.fromEntries(['host', 'scheme', 'port', 'path'].map((n) => [`vercel-forwarded-${n}`, of(`vercel-forwarded-${n}`)])), 'vercel-sandbox-oidc-token': token },
    });
    assert.equal((await receive(forwarded)).status, issuer.startsWith('https://oidc.vercel.com') ? 200 : 403);
  });

  from(3)('network: requests are answered', async (c) => {
    const response = { statusCode: 418, headers: { 'x-answer': 'policy' }, body: 'short and stout', contentType: 'text/plain' };
    const box = await c.fresh({ networkPolicy: { allow: { 'api.example.com': [{ match: { path: { startsWith: '/open' } }, transform: [{ headers: { 'x-open': 'yes' } }] }, { response }] } } });
    assert.equal(await ask(box, 'https://api.example.com/closed', '-D', '/tmp/headers'), '418');
    assert.equal(await sh(box, 'cat /tmp/answer'), 'short and stout');
    assert.match(await sh(box, 'cat /tmp/headers'), /x-answer: policy/i);
    assert.equal(await ask(box, 'https://api.example.com/open'), '200');
    assert.deepEqual(Object.keys(box.networkPolicy.allow), ['api.example.com']); // the response form has no answers
  });

  from(2)('update: the policy holds for the session that runs and for later ones', async (c) => {
    const box = await c.fresh({ persistent: true });
    await box.update({ networkPolicy: { allow: ['files.example.com'] } });
    assert.deepEqual(box.networkPolicy, { allow: ['files.example.com'] });
    assert.match(await ask(box, 'http://api.example.com/'), blocked);
    await box.stop();
    await box.update({ networkPolicy: { allow: ['api.example.com'] } });
    assert.equal(await ask(box, 'http://api.example.com/'), '200');
    assert.match(await ask(box, 'http://files.example.com/'), blocked);
  });

  all('network: what is wrong is refused', async (c) => {
    const box = await c.box();
    for (const policy of [{ allow: ['not a name'] }, { subnets: { allow: ['10.0.0.0/33'] } }, { allow: ['http://api.example.com'] }]) {
      await refused(box.updateNetworkPolicy(policy), 400, 'bad_request');
      await refused(c.fresh({ networkPolicy: policy }), 400, 'bad_request');
    }
    assert.equal(sdk.session(await sdk.get(box)).networkPolicy, 'allow-all');
  });
};

// Header names are told in a case of the server's.
function lowerHeaders(value) {
  if (Array.isArray(value)) return value.map(lowerHeaders);
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).map(([k, v]) => [
    k, k === 'headers' && !Array.isArray(v) ? Object.fromEntries(Object.entries(v).map(([n, x]) => [n.toLowerCase(), x])) : lowerHeaders(v),
  ]));
}
