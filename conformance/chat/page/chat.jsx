// A chat page as one writes it with useChat: messages, calls of tools with their input
// and output, buttons to approve them, what went wrong, and a way to stop. It goes on
// with an answer after a reload.
import { useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';

const query = new URLSearchParams(location.search);
const chat = query.get('chat') ?? 'c1';

// What the page keeps over a reload: the conversation, and the run that answers.
const kept = {
  get: (name) => JSON.parse(localStorage.getItem(`${name}:${chat}`) ?? 'null'),
  set: (name, value) => localStorage.setItem(`${name}:${chat}`, JSON.stringify(value)),
  drop: (name) => localStorage.removeItem(`${name}:${chat}`),
};
if (query.get('run')) kept.set('run', query.get('run')); // another tab's

// Whether the answer being given goes on with a message that was there before, as after
// an approval. Clients begin such a message anew when they resume, so it is sent again:
// the program knows it, and gives the same answer.
const goesOn = () => kept.get('run') != null && kept.get('messages')?.at(-1).role === 'assistant';

// Decided once: a page that comes to say so later resumes what it reads already.
const resumes = kept.get('run') != null && !goesOn();

// A page that does nothing about answers that are given again.
const plain = query.has('plain');

export function open({ useChat, transports, lastAssistantMessageIsCompleteWithApprovalResponses, api }) {
  const transport = new transports[query.get('transport') ?? 'workflow']({
    api,
    maxConsecutiveErrors: 50, // the program that serves may be starting again
    fetch: patient,
    prepareSendMessagesRequest: ({ id, messages, trigger, messageId }) => ({
      headers: { 'content-type': 'application/json' },
      body: { id, messages, trigger, messageId },
    }),
    prepareReconnectToStreamRequest: ({ id, api: usual }) => ({
      api: kept.get('run') ? `${api}/${kept.get('run')}/stream` : usual,
    }),
    onChatSendMessage: (response, { messages }) => {
      kept.set('run', response.headers.get('x-workflow-run-id'));
      kept.set('messages', messages);
    },
    onChatEnd: () => kept.drop('run'),
  });

  function Chat() {
    const [input, setInput] = useState('');
    const [again, setAgain] = useState(0);
    const [files, setFiles] = useState();
    const { messages, sendMessage, regenerate, setMessages, resumeStream, status, stop, error, addToolApprovalResponse } = useChat({
      id: chat,
      messages: kept.get('messages') ?? [],
      resume: resumes,
      transport,
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses, // AI SDK 5 has no approvals
      onFinish: ({ messages, isAbort, isDisconnect, isError }) => {
        if (!isAbort && !isDisconnect && !isError) kept.set('messages', messages);
      },
      onData: async (part) => {
        if (part.type !== 'data-reset-step' || plain) return;
        // The answer is being given again: read it from its beginning.
        setAgain((n) => n + 1);
        await stop();
        setMessages(kept.get('messages'));
        await (goesOn() ? sendMessage() : resumeStream());
      },
    });
    useEffect(() => {
      if (goesOn()) sendMessage();
    }, []);
    const halt = async () => {
      const run = kept.get('run');
      await stop();
      await fetch(`${api}/${run}`, { method: 'DELETE' });
      kept.drop('run');
    };
    return (
      <main>
        <output id="status" data-again={again}>{status}</output>
        {messages.map((m) => (
          <article key={m.id} data-role={m.role} data-id={m.id}>
            {m.parts.map((p, i) => <Part key={i} part={p} answer={addToolApprovalResponse} />)}
            {m.role === 'user' && (
              <button onClick={() => sendMessage({ text: input, messageId: m.id })}>Send instead</button>
            )}
          </article>
        ))}
        {error && <p role="alert">{error.message}</p>}
        <form onSubmit={(e) => { e.preventDefault(); sendMessage({ text: input, files }); setInput(''); setFiles(undefined); }}>
          <input aria-label="Message" value={input} onChange={(e) => setInput(e.target.value)} />
          <input aria-label="Files" type="file" multiple onChange={(e) => setFiles(e.target.files)} />
          <button>Send</button>
        </form>
        <button onClick={halt}>Stop</button>
        <button onClick={() => regenerate()}>Again</button>
      </main>
    );
  }
  createRoot(document.getElementById('root')).render(<Chat />);
}

// While the program is not there, ask again.
async function patient(url, init) {
  for (let n = 0; ; n++) {
    try {
      return await fetch(url, init);
    } catch (e) {
      if (init?.signal?.aborted || init?.method === 'POST' || n === 200) throw e;
      await new Promise((done) => setTimeout(done, 50));
    }
  }
}

function Part({ part: p, answer }) {
  if (p.type === 'text') return <p className="text" data-state={p.state}>{p.text}</p>;
  if (p.type === 'file') return <p className="file">{p.filename ?? p.mediaType}</p>;
  if (p.type === 'reasoning') return <p className="reasoning">{p.text}</p>;
  if (!p.type.startsWith('tool-') && p.type !== 'dynamic-tool') return null;
  return (
    <section className="tool" data-tool={p.toolName ?? p.type.slice(5)} data-state={p.state}>
      <code className="input">{JSON.stringify(p.input)}</code>
      {p.state === 'approval-requested' && (
        <>
          <button onClick={() => answer({ id: p.approval.id, approved: true })}>Approve</button>
          <button onClick={() => answer({ id: p.approval.id, approved: false, reason: 'Not that one.' })}>Deny</button>
        </>
      )}
      {p.output !== undefined && <code className="output">{JSON.stringify(p.output)}</code>}
      {p.errorText && <code className="failed">{p.errorText}</code>}
    </section>
  );
}
