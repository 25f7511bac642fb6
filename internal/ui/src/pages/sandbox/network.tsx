// What a sandbox may reach, and what it has tried to.
import { useEffect, useMemo, useState } from 'preact/hooks';
import { path } from '../../api';
import { Icon } from '../../components/icons';
import { Badge, Bytes, Code, Duration, Facts, Name, Time } from '../../components/show';
import { Empty, ErrorView } from '../../components/state';
import { Table, type Column } from '../../components/table';
import { keepReading } from '../../live';
import { place, setQuery } from '../../router';
import type { Flow, Sandbox } from '../../types';
import { PolicyEditor, PolicyPanel } from './policy';
import './sandbox.css';

/** kept is how many records are kept, as many as the daemon does. */
const kept = 1000;

function useFlows(s: Sandbox): { flows: Flow[]; error?: unknown } {
  const [flows, set] = useState<Flow[]>([]);
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    const stop = new AbortController();
    const all = new Map<number, Flow>();
    let last = 0;
    let waiting = 0;
    const draw = () => {
      waiting = 0;
      set([...all.values()].sort((a, b) => b.seq - a.seq));
    };
    set([]);
    setError(undefined);
    keepReading<Flow>(path('sandboxes', s.id, 'flows'), stop.signal, () => ({
      query: { follow: true, after: last },
      onLine: (f) => {
        last = Math.max(last, f.seq);
        all.set(f.seq, f);
        if (all.size > kept) all.delete(Math.min(...all.keys()));
        waiting ||= window.setTimeout(draw, 60);
      },
    })).catch(setError);
    return () => {
      stop.abort();
      window.clearTimeout(waiting);
    };
  }, [s.id, s.session_id, s.status === 'running']);
  return { flows, error };
}

const columns: Column<Flow>[] = [
  { name: 'Verdict', width: '104px', show: (f) => <Badge status={f.verdict}>{f.open ? 'open' : f.verdict}</Badge> },
  {
    name: 'To',
    width: 'minmax(140px, 2fr)',
    main: true,
    show: (f) => (
      <>
        <Name class="strong">{f.name || f.address || '–'}</Name>
        {f.name && f.port ? <span class="dim num">:{f.port}</span> : null}
      </>
    ),
  },
  {
    name: 'What',
    width: 'minmax(80px, 1.4fr)',
    class: 'wide',
    show: (f) => (
      <span class="dim">
        {f.protocol} {f.method && <Name>{`${f.method} ${f.path ?? ''}`}</Name>} {f.status || ''}
      </span>
    ),
  },
  { name: 'Decided by', width: 'minmax(80px, 1.2fr)', class: 'wide', show: (f) => <Name class="dim">{f.rule}</Name> },
  { name: 'In', width: '76px', class: 'wide num', show: (f) => <Bytes of={f.ingress_bytes} /> },
  { name: 'Out', width: '76px', class: 'wide num', show: (f) => <Bytes of={f.egress_bytes} /> },
  { name: 'When', width: '84px', class: 'num', show: (f) => <Time at={f.time} /> },
];

const verdicts = ['', 'allowed', 'denied', 'failed'];
const protocols = ['', 'https', 'http', 'tls', 'tcp', 'udp', 'dns'];

/** looked are the fields that a filter looks into. */
const looked = (f: Flow) => [f.name, f.address, f.rule, f.reason, f.protocol, f.method, f.path, f.status && String(f.status), f.port && String(f.port)];

export function NetworkTab({ sandbox: s }: { sandbox: Sandbox }) {
  const { flows, error } = useFlows(s);
  const { query } = place.value;
  const verdict = query.get('verdict') ?? '';
  const protocol = query.get('protocol') ?? '';
  const text = query.get('q') ?? '';
  const view = query.get('view');
  const [editing, edit] = useState(false);
  const asked = text.trim().toLowerCase();
  const found = useMemo(
    () => flows.filter((f) => (!protocol || f.protocol === protocol) && (!asked || looked(f).some((v) => v && v.toLowerCase().includes(asked)))),
    [flows, protocol, asked],
  );
  const rows = useMemo(() => (verdict ? found.filter((f) => f.verdict === verdict) : found), [found, verdict]);
  const chosen = view ? flows.find((f) => String(f.seq) === view) : undefined;
  return (
    <div class="network">
      <PolicyPanel sandbox={s} onEdit={() => edit(true)} />
      {editing && <PolicyEditor sandbox={s} onClose={() => edit(false)} />}
      <div class="flow-bar">
        <div class="chips" role="group" aria-label="Verdict">
          {verdicts.map((v) => (
            <button key={v} class="chip" aria-pressed={v === verdict} onClick={() => setQuery({ verdict: v })}>
              {v || 'all'} <span class="num dim">{(v ? found.filter((f) => f.verdict === v) : found).length}</span>
            </button>
          ))}
        </div>
        <select aria-label="Protocol" value={protocol} onChange={(e) => setQuery({ protocol: e.currentTarget.value })}>
          {protocols.map((p) => (
            <option key={p} value={p}>
              {p || 'every protocol'}
            </option>
          ))}
        </select>
        <label class="filter">
          <Icon name="search" size={14} />
          <input
            data-filter
            type="search"
            aria-label="Filter the flow log"
            placeholder="Name, address, path or rule"
            value={text}
            spellcheck={false}
            autocomplete="off"
            autocapitalize="off"
            onInput={(e) => setQuery({ q: e.currentTarget.value })}
          />
          <kbd>/</kbd>
        </label>
      </div>
      {error ? (
        <ErrorView error={error} />
      ) : rows.length === 0 && flows.length > 0 ? (
        <Empty title="Nothing matches">
          <button onClick={() => setQuery({ verdict: '', protocol: '', q: '' })}>Show all</button>
        </Empty>
      ) : rows.length === 0 ? (
        <Empty title="No connection to the outside">What programs in the sandbox reach for is listed here as it happens.</Empty>
      ) : (
        <div class={`split${chosen ? '' : ' alone'}`}>
          <div class="split-list">
            <Table fill label="Flow log" rowHeight={34} columns={chosen ? [columns[0]!, columns[1]!, columns[6]!] : columns} rows={rows} id={(f) => String(f.seq)} onOpen={(f) => setQuery({ view: String(f.seq) === view ? '' : String(f.seq) })} selected={view ?? ''} />
          </div>
          {chosen && (
            <div class="split-view padded">
              <div class="panel-head">
                <h2>
                  Record {chosen.seq} <Badge status={chosen.verdict} />
                </h2>
                <button onClick={() => setQuery({ view: '' })}>Close</button>
              </div>
              {chosen.reason && <p><Name>{chosen.reason}</Name></p>}
              <Facts
                of={[
                  ['Name', chosen.name && <Code>{chosen.name}</Code>],
                  ['Address', chosen.address && <Code>{chosen.address}</Code>],
                  ['Protocol', chosen.protocol],
                  ['Request', chosen.method && <Name>{`${chosen.method} ${chosen.path ?? ''}`}</Name>],
                  ['Answer', chosen.status ? String(chosen.status) : undefined],
                  ['Decided by', <Name>{chosen.rule}</Name>],
                  ['Began', <Time at={chosen.time} />],
                  ['Took', chosen.open ? 'open' : <Duration ms={chosen.duration_ms} />],
                  ['Received', <Bytes of={chosen.ingress_bytes} />],
                  ['Sent', <Bytes of={chosen.egress_bytes} />],
                ]}
              />
            </div>
          )}
        </div>
      )}
    </div>
  );
}
