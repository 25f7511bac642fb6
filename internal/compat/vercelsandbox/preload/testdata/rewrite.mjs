// What becomes of calls, with testdata/recorder.mjs as the network.
import { AsyncLocalStorage } from 'node:async_hooks';
import { createRequire } from 'node:module';
import tls, { connect } from 'node:tls';

const seen = {};
for (const url of JSON.parse(process.argv[2])) {
  seen[url] = (await fetch(url)).called;
}
const init = { dispatcher: {}, signal: {} };
const passed = (await fetch('https://vercel.com/api/v2/user', init)).init;
const request = await fetch(new Request('https://vercel.com/api/v2/user', { method: 'DELETE' }));
// The context of a step, as the Workflow SDK keeps it.
const steps = (globalThis[Symbol.for('WORKFLOW_STEP_CONTEXT_STORAGE')] = new AsyncLocalStorage());
const inStep = async (context, ...args) => {
  const { headers } = (await steps.run(context, () => fetch(...args))).init ?? {};
  return headers ? Object.fromEntries(new Headers(headers)) : {};
};
const context = { workflowMetadata: { workflowRunId: 'wrun_1' }, stepMetadata: { stepId: 'step_2' } };
const sandboxes = 'https://vercel.com/api/v3/sandboxes';
const stepHeaders = [
  await inStep(context, sandboxes, { method: 'POST', headers: { a: '1' } }),
  await inStep(context, new Request('https://ai-gateway.vercel.sh/v3/ai/language-model', { headers: { b: '2' } })),
  await inStep(context, 'https://example.com/', { headers: { c: '3' } }),
  await inStep(context, 'https://vercel-workflow.com/api/v2/runs', { headers: { d: '4' } }),
  await inStep({}, sandboxes, { headers: { e: '5' } }),
  await inStep({ ...context, stepMetadata: { stepId: 'a\nb' } }, sandboxes),
];
const to = (...args) => connect(...args).connected?.at(0)?.host ?? connect(...args).connected?.at(1);
const said = (options) => {
  try {
    return connect(options);
  } catch (e) {
    return e.message;
  }
};
const proxied = ['abc.vercel.run', 'ai-gateway.vercel.sh'].map((servername) => said({ socket: {}, servername }));
const refused = ['vercel-workflow.com', 'iad1.vercel-queue.com'].map((host) => said({ host, port: 443 }));
console.log(JSON.stringify({
  seen,
  stepHeaders,
  sameInit: passed === init,
  request: [request.called, request.method],
  connect: {
    other: to({ host: 'example.com', port: 443 }), parent: to({ host: 'vercel.run', port: 443 }), deep: to({ host: 'a.b.vercel.run', port: 443 }),
    suffix: to({ host: 'a.vercel.run.example.com', port: 443 }), evil: to({ host: 'evilvercel.run', port: 443 }),
    issuer: to({ host: 'oidc.vercel.com', port: 443 }), api: to({ host: 'api.vercel.com', port: 443 }),
    preview: to({ host: 'abc-1.vercel.run', port: 443 }), upper: to({ host: 'ABC.Vercel.run.', port: '443' }),
    positional: to(443, 'abc.vercel.run'), positionalOptions: to(443, 'abc.vercel.run', { servername: 'abc.vercel.run' }, () => {}),
    gateway: to({ host: 'ai-gateway.vercel.sh', port: 443 }), gatewayUpper: to(443, 'AI-Gateway.Vercel.sh.'),
    belowGateway: to({ host: 'x.ai-gateway.vercel.sh', port: 443 }), gatewayEvil: to({ host: 'evil-ai-gateway.vercel.sh', port: 443 }),
    socket: connect({ socket: {}, servername: 'example.com' }).connected[0].servername,
  },
  own: connect({ host: 'abc.vercel.run', port: 443, servername: 'abc.vercel.run', ca: 'c', session: 's', lookup: () => {} }).connected?.[0],
  models: connect({ host: 'ai-gateway.vercel.sh', port: 443, servername: 'ai-gateway.vercel.sh', session: 's' }).connected?.[0],
  same: tls.connect === connect && createRequire(import.meta.url)('tls').connect === connect,
  proxied,
  refused,
}));
