'use client';
import { type FormEvent, useEffect, useState } from 'react';
import type { Progress } from '../workflows/steps';

type State = { status: string; passed?: boolean; attempts?: number; error?: string };

export default function Page() {
  const [run, setRun] = useState('');
  const [progress, setProgress] = useState<Progress[]>([]);
  const [state, setState] = useState<State>();
  const [error, setError] = useState('');

  // The address has the run, so that a reload comes back to it.
  useEffect(() => setRun(new URLSearchParams(location.search).get('run') ?? ''), []);

  useEffect(() => {
    if (!run) return;
    const gone = new AbortController();
    follow(run, gone.signal, (part) => setProgress((all) => [...all, part]), setState).catch((e) => {
      if (!gone.signal.aborted) setError(e.message);
    });
    return () => {
      gone.abort();
      setProgress([]);
      setState(undefined);
    };
  }, [run]);

  async function submit(event: FormEvent<HTMLFormElement>) {
    event.preventDefault();
    setError('');
    const task = new FormData(event.currentTarget).get('task');
    const response = await fetch('/api/runs', { method: 'POST', body: JSON.stringify({ task }) });
    const answer = await response.json().catch(() => ({ error: response.statusText }));
    if (!response.ok) return setError(answer.error);
    history.replaceState(null, '', `?run=${answer.id}`);
    setRun(answer.id);
  }

  return (
    <main>
      <h1>Code that passes its tests</h1>
      <form onSubmit={submit}>
        <label htmlFor="task">What should the module do?</label>
        <textarea id="task" name="task" required maxLength={4000} defaultValue="Export isPalindrome(text), which ignores case, spaces and punctuation." />
        <button>Write it</button>
      </form>
      {error && <p className="error" role="alert">{error}</p>}
      {run && <p>Run <code>{run}</code>: <span role="status">{outcome(state)}</span></p>}
      <ol>
        {progress.map((part, i) => (
          <li key={i}>
            Attempt {part.attempt} {part.does}
            {(part.code ?? part.tests ?? part.output) && <pre><code>{part.code ?? part.tests ?? part.output}</code></pre>}
          </li>
        ))}
      </ol>
    </main>
  );
}

function outcome(state?: State) {
  if (!state || !/completed|failed|cancelled/.test(state.status)) return state?.status ?? '…';
  if (state.status !== 'completed') return `${state.status} ${state.error ?? ''}`;
  return `${state.passed ? 'passed' : 'failed'} at attempt ${state.attempts}`;
}

/** Reads what a run tells until the run ends, also when the app is started anew in between. */
async function follow(run: string, signal: AbortSignal, next: (part: Progress) => void, ended: (state: State) => void) {
  for (let from = 0; ; ) {
    try {
      const response = await fetch(`/api/runs/${run}/progress?from=${from}`, { signal });
      if (response.ok && response.body) {
        let text = '';
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        for (let part = await reader.read(); !part.done; part = await reader.read()) {
          const lines = (text + part.value).split('\n');
          text = lines.pop() ?? '';
          from += lines.length;
          for (const line of lines) next(JSON.parse(line));
        }
      }
      const state = await fetch(`/api/runs/${run}`, { signal });
      if (state.status === 404) throw Object.assign(new Error('There is no such run.'), { final: true });
      if (state.ok) {
        const found = await state.json();
        ended(found);
        if (/completed|failed|cancelled/.test(found.status)) return;
      }
    } catch (e) {
      if (signal.aborted || (e as { final?: boolean }).final) throw e;
    }
    await new Promise((resolve) => setTimeout(resolve, 1000)); // the app is away
  }
}
