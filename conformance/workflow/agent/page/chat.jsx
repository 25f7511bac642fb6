// The page of examples/workflow-js, with the transport of AI SDK 7.
import { useChat } from '@ai-sdk/react';
import { WorkflowChatTransport } from '@ai-sdk/workflow/client';
import { useState } from 'react';
import { createRoot } from 'react-dom/client';

const kept = (name) => JSON.parse(localStorage.getItem(name) ?? 'null');
const keep = (name, value) => localStorage.setItem(name, JSON.stringify(value));

const transport = new WorkflowChatTransport({
  api: '/api/chat',
  maxConsecutiveErrors: 50, // the app may be starting again
  onChatSendMessage: (response, { messages }) => {
    keep('run', response.headers.get('x-workflow-run-id'));
    keep('messages', messages);
  },
  onChatEnd: () => localStorage.removeItem('run'),
  prepareReconnectToStreamRequest: () => ({ api: `/api/chat/${kept('run')}/stream` }),
});
const resume = kept('run') !== null; // decided once, not at each render

function Chat() {
  const [input, setInput] = useState('What is the sum of the primes below 1000?');
  const { messages, sendMessage, status, error } = useChat({
    messages: kept('messages') ?? [],
    resume,
    transport,
    onFinish: ({ messages, isAbort, isDisconnect, isError }) => {
      if (!isAbort && !isDisconnect && !isError) keep('messages', messages);
    },
  });
  const send = (event) => {
    event.preventDefault();
    sendMessage({ text: input });
    setInput('');
  };
  return (
    <main>
      <h1>An agent that runs code</h1>
      {messages.map((m) => (
        <section key={m.id} data-role={m.role}>
          <strong>{m.role === 'user' ? 'You' : 'Agent'}</strong>
          {m.parts.map((part, i) => <Part key={i} of={part} />)}
        </section>
      ))}
      {error && <p role="alert">{error.message}</p>}
      <form onSubmit={send}>
        <input aria-label="Question" value={input} onChange={(e) => setInput(e.target.value)} required />
        <button disabled={status !== 'ready' && status !== 'error'}>Send</button>
      </form>
      <p role="status">{status}</p>
    </main>
  );
}

function Part({ of: part }) {
  if (part.type === 'text') return <p>{part.text}</p>;
  if (!part.type.startsWith('tool-')) return null;
  return (
    <details open>
      <summary>{part.type.slice('tool-'.length)}</summary>
      {part.input?.code && <pre>{part.input.code}</pre>}
      {part.output !== undefined && <pre>{String(part.output)}</pre>}
    </details>
  );
}

createRoot(document.getElementById('chat')).render(<Chat />);
