// The commands of a sandbox and what they write.
import { useEffect, useState } from 'preact/hooks';
import { get, path, post, type Page } from '../../api';
import { ExitBadge, Log } from '../../components/log';
import { Code, Duration, Name, Time } from '../../components/show';
import { Empty, ErrorView, Loading } from '../../components/state';
import { complain } from '../../components/toast';
import { now } from '../../live';
import { place, setQuery } from '../../router';
import { quoted, visible } from '../../text';
import type { Command, CommandChange, Sandbox } from '../../types';
import { follow } from './follow';

interface List {
  items?: Command[];
  error?: unknown;
}

/** newest puts commands in the order in which they are shown. */
const newest = (all: Iterable<Command>) => [...all].sort((a, b) => (a.started_at < b.started_at ? 1 : a.started_at > b.started_at ? -1 : 0));

/** useCommands keeps the commands of a sandbox that runs up to date; of another it is what was kept of them. */
function useCommands(s: Sandbox): List & { add: (c: Command) => void; reload: () => void } {
  const [list, set] = useState<List>({});
  const [round, again] = useState(0);
  const running = s.status === 'running';
  const add = (...some: Command[]) =>
    set(({ items = [] }) => {
      const all = new Map(items.map((c) => [c.id, c]));
      for (const c of some) if (c.exit || !all.get(c.id)?.exit) all.set(c.id, c);
      return { items: newest(all.values()) };
    });
  useEffect(() => {
    const at = path('sandboxes', s.id, 'commands');
    set((l) => ({ items: l.items }));
    if (!running) {
      const stop = new AbortController();
      get<Page<Command>>(at, undefined, stop.signal).then(
        (p) => set({ items: newest(p.items) }),
        (error: unknown) => !stop.signal.aborted && set({ error }),
      );
      return () => stop.abort();
    }
    let waiting: Command[] = [];
    let timer = 0;
    const flush = () => {
      window.clearTimeout(timer);
      timer = 0;
      const some = waiting;
      waiting = [];
      add(...some);
    };
    const stop = follow<CommandChange>(at, {
      onLine: (c) => {
        if (c.command) waiting.push(c.command);
        if (c.type === 'ready') flush();
        else timer ||= window.setTimeout(flush, 60);
      },
      onError: (error) => set((l) => ({ ...l, error })),
    });
    return () => {
      stop();
      window.clearTimeout(timer);
    };
  }, [s.id, s.session_id, running, round]);
  return { ...list, add, reload: () => again((n) => n + 1) };
}

export function Commands({ sandbox: s }: { sandbox: Sandbox }) {
  const at = path('sandboxes', s.id, 'commands');
  const list = useCommands(s);
  const all = list.items ?? [];
  const asked = place.value.query.get('view');
  const chosen = all.find((c) => c.id === asked) ?? all[0];
  if (!list.items) return list.error ? <ErrorView error={list.error} retry={list.reload} /> : <Loading />;
  return (
    <div class="split">
      <div class="split-list">
        {s.status === 'running' && (
          <RunForm
            run={async (text) => {
              const c = await post<Command>(at, { argv: ['sh', '-c', text] });
              setQuery({ view: c.id });
              list.add(c);
            }}
          />
        )}
        {all.length === 0 ? (
          <Empty title="No command has run" command={`cay sandbox exec ${s.name} -- uname -a`} />
        ) : (
          <ul class="commands" aria-label="Commands">
            {all.map((c) => (
              <li key={c.id}>
                <button class="command" aria-current={c === chosen ? 'true' : undefined} onClick={() => setQuery({ view: c.id })}>
                  <code>{visible(quoted(c.argv))}</code>
                  <span class="command-meta">
                    <ExitBadge exit={c.exit} />
                    <span class="num dim">{c.exit ? <Duration ms={c.exit.duration_ms} /> : <Duration ms={Math.max(0, now.value - Date.parse(c.started_at))} />}</span>
                    <span class="num dim">
                      <Time at={c.started_at} />
                    </span>
                  </span>
                </button>
              </li>
            ))}
          </ul>
        )}
      </div>
      <div class="split-view">
        {chosen && (
          <>
            <div class="command-head">
              <pre class="argv" tabIndex={0}>{visible(quoted(chosen.argv))}</pre>
              <p class="command-facts dim">
                <Code>{chosen.id}</Code>
                <span>
                  in <Name>{chosen.workdir}</Name>
                </span>
                <span>
                  as <Name>{chosen.user}</Name>
                </span>
                <span class="num">process {chosen.pid}</span>
              </p>
              {!chosen.exit && s.status === 'running' && (
                <div class="buttons">
                  <button onClick={() => post(`${at}/${chosen.id}/signal`, { signal: 15 }).catch(complain)}>Terminate</button>
                  <button class="danger" onClick={() => post(`${at}/${chosen.id}/signal`, { signal: 9 }).catch(complain)}>
                    Kill
                  </button>
                </div>
              )}
            </div>
            <Log key={chosen.id} from={`${at}/${chosen.id}/output`} />
          </>
        )}
      </div>
    </div>
  );
}

function RunForm({ run }: { run: (text: string) => Promise<void> }) {
  const [text, set] = useState('');
  const [busy, setBusy] = useState(false);
  return (
    <form
      class="run"
      onSubmit={async (e) => {
        e.preventDefault();
        if (!text.trim()) return;
        setBusy(true);
        try {
          await run(text);
          set('');
        } catch (err) {
          complain(err);
        }
        setBusy(false);
      }}
    >
      <input
        aria-label="Command to run, as a shell takes it"
        placeholder="Run a command"
        spellcheck={false}
        autocomplete="off"
        autocapitalize="off"
        data-filter
        value={text}
        onInput={(e) => set(e.currentTarget.value)}
      />
      <button class="primary" disabled={busy}>
        Run
      </button>
    </form>
  );
}
