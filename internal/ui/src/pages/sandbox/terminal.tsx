// A shell in the sandbox. Which one is part of the address, so that it is there again after a reload.
import { useEffect, useState } from 'preact/hooks';
import { get, path, post } from '../../api';
import { Terminal } from '../../components/terminal';
import { complain } from '../../components/toast';
import { place, setQuery } from '../../router';
import type { Command, Sandbox } from '../../types';
import { Asleep } from './asleep';

const shell = ['sh', '-c', 'if command -v bash >/dev/null; then exec bash -l; fi; exec sh -l'];

export function TerminalTab({ sandbox: s }: { sandbox: Sandbox }) {
  if (s.status !== 'running') return <Asleep sandbox={s} what="A terminal" />;
  return <Shell key={s.session_id} sandbox={s} />;
}

function Shell({ sandbox: s }: { sandbox: Sandbox }) {
  const cmd = place.value.query.get('cmd');
  const [state, set] = useState({ state: 'connecting', note: '' });
  const [busy, setBusy] = useState(false);
  const at = path('sandboxes', s.id, 'commands');
  const start = async () => {
    setBusy(true);
    try {
      const c = await post<Command>(at, { argv: shell, pty: { cols: 100, rows: 30 }, env: { TERM: 'xterm-256color' } });
      setQuery({ cmd: c.id });
    } catch (e) {
      complain(e);
    }
    setBusy(false);
  };
  useEffect(() => {
    if (!cmd) {
      void start();
      return;
    }
    // One of an earlier session is gone.
    get<Command>(`${at}/${cmd}`).catch(() => setQuery({ cmd: '' }));
  }, [cmd]);
  const words: Record<string, string> = {
    connecting: 'Connecting',
    open: 'Connected',
    waiting: 'The connection broke off; trying again',
    exited: 'The shell has ended',
    failed: 'Failed',
  };
  return (
    <div class="terminal-tab">
      {cmd ? <Terminal key={cmd} sandbox={s.id} command={cmd} onState={(state, note) => set({ state, note })} /> : <div class="term-box" />}
      <div class="log-foot">
        <span class={`dim ${state.state}`} role="status">
          {words[state.state]}
          {state.note && `: ${state.note}`}
        </span>
        <button class={state.state === 'exited' || state.state === 'failed' ? 'primary' : ''} disabled={busy} onClick={start}>
          New shell
        </button>
      </div>
    </div>
  );
}
