// Reads chats of a page, one a line, and writes what convertToModelMessages makes of
// each, in the form of convert_test.go.
//
//   node convert.mjs ai|ai-v7 <chats >messages
import { createInterface } from 'node:readline';

const { convertToModelMessages } = await import(process.argv[2]);

// Cay leaves out calls of earlier turns that nothing came of. So does the SDK if it is
// told to, but for those that were approved.
async function convert(messages) {
  const lastUser = messages.findLastIndex((m) => m.role === 'user');
  const past = messages.slice(0, Math.max(0, lastUser)).map((m) => ({
    ...m,
    parts: m.parts.filter((p) => !(p.state === 'approval-responded' && p.approval.approved)),
  }));
  return [
    ...(await convertToModelMessages(past, { ignoreIncompleteToolCalls: true })),
    ...(await convertToModelMessages(messages.slice(Math.max(0, lastUser)))),
  ];
}

function url(u) {
  const data = /^data:([^;,]*)[^,]*,(.*)$/.exec(String(u));
  return data ? { data: data[2].replace(/=+$/, '') } : { url: String(u) };
}

function file(data) {
  if (data?.type === 'reference') return { reference: data.reference };
  return url(data?.type === 'url' ? data.url : data);
}

function output(o) {
  switch (o.type) {
    case 'execution-denied':
      return { type: o.type, text: o.reason ?? '' };
    case 'text':
    case 'error-text':
      return { type: o.type, text: o.value };
    default:
      return { type: o.type, json: o.value };
  }
}

function part(p) {
  const options = p.providerOptions && { options: p.providerOptions };
  switch (p.type) {
    case 'text':
    case 'reasoning':
      return { type: p.type, text: p.text, ...options };
    case 'file':
    case 'reasoning-file':
      return { type: p.type, mediaType: p.mediaType, name: p.filename ?? '', ...file(p.data), ...options };
    case 'custom':
      return { type: p.type, kind: p.kind, ...options };
    case 'tool-call':
      return { type: p.type, call: p.toolCallId, tool: p.toolName, input: p.input ?? {}, byProvider: p.providerExecuted ?? false, ...options };
    case 'tool-result':
      return { type: p.type, call: p.toolCallId, tool: p.toolName, output: output(p.output), ...options };
    case 'tool-approval-request':
      return { type: p.type, approval: p.approvalId, call: p.toolCallId, signature: p.signature ?? '' };
    case 'tool-approval-response':
      return { type: p.type, approval: p.approvalId, approved: p.approved, reason: p.reason ?? '' };
  }
  throw new Error(`a part of the type ${p.type}`);
}

// The SDK leaves empty texts out later.
const says = (p) => p.type !== 'text' || p.text !== '' || p.options != null;

for await (const line of createInterface({ input: process.stdin })) {
  const messages = await convert(JSON.parse(line));
  console.log(JSON.stringify(messages
    .map((m) => m.role === 'system'
      ? { role: m.role, parts: [{ type: 'text', text: m.content }], ...(m.providerOptions && { options: m.providerOptions }) }
      : { role: m.role, parts: m.content.map(part).filter(says) })
    .filter((m) => m.parts.length > 0)));
}
