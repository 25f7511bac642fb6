// The streams of a run, as they are written.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { ApiError, path, type Page } from '../../api';
import { JSONView, Name } from '../../components/show';
import { Empty, ErrorView, Loading } from '../../components/state';
import { Table, type Column } from '../../components/table';
import { Exact, written } from '../../json';
import { keepReading, useGet } from '../../live';
import { place, setQuery } from '../../router';
import { visible, visibleLines } from '../../text';
import { weight } from './follow';
import type { Chunk, Payload, StreamInfo } from './types';
import { Copy, textOf, Value } from './value';

/** kept is how many chunks are kept, keptSize how many characters of them about. */
const kept = 50_000;
const keptSize = 32 << 20;

/** said is what a chunk adds to a text: a string itself, and of a piece of an answer its words. */
function said(p: Payload): string {
  if (!p) return '';
  const v = 'json' in p ? p.json : '';
  if (typeof v === 'string') return v;
  if (v instanceof Exact) return v.text;
  if (v && typeof v === 'object' && !Array.isArray(v)) {
    const o = v as Record<string, unknown>;
    for (const k of ['delta', 'text', 'textDelta']) if (typeof o[k] === 'string') return o[k];
    return '';
  }
  return v === null ? '' : String(v);
}

/** allSaid is the text of all chunks: a character may be parted between two. */
function allSaid(chunks: readonly Chunk[]): string {
  const decoder = new TextDecoder();
  return chunks.map((c) => (c.data && 'base64' in c.data ? decoder.decode(Uint8Array.from(atob(c.data.base64), (b) => b.charCodeAt(0)), { stream: true }) : said(c.data))).join('');
}

function useChunks(run: string, name: string): { chunks: readonly Chunk[]; gone: boolean; closed: boolean; error?: ApiError } {
  const [state, set] = useState<ReturnType<typeof useChunks>>({ chunks: [], gone: false, closed: false });
  useEffect(() => {
    const stop = new AbortController();
    let chunks: Chunk[] = [];
    let sizes: number[] = [];
    let size = 0;
    let next = 0;
    let gone = false;
    let timer = 0;
    let closed = false;
    let error: ApiError | undefined;
    const show = () => {
      timer = 0;
      if (!stop.signal.aborted) set({ chunks: chunks.slice(), gone, closed, error });
    };
    set({ chunks: [], gone: false, closed: false });
    keepReading<Chunk>(path('workflows', 'runs', run, 'stream'), stop.signal, () => ({
      query: { name, follow: true, from: next },
      onLine: (c) => {
        next = c.index + 1;
        const w = weight(c.data, 1 << 22);
        chunks.push(c);
        sizes.push(w);
        size += w;
        if (chunks.length > kept || size > keptSize) {
          const n = Math.max(1, chunks.length >> 3);
          size -= sizes.slice(0, n).reduce((a, b) => a + b, 0);
          chunks = chunks.slice(n);
          sizes = sizes.slice(n);
          gone = true;
        }
        timer ||= window.setTimeout(show, 50);
      },
    }))
      .then(() => (closed = true))
      .catch((e: unknown) => (error = e instanceof ApiError ? e : undefined))
      .finally(show);
    return () => {
      stop.abort();
      window.clearTimeout(timer);
    };
  }, [run, name]);
  return state;
}

const columns: Column<Chunk>[] = [
  { name: 'Index', width: '52px', class: 'num', show: (c) => <span class="dim">{c.index}</span> },
  { name: 'Value', width: 'minmax(0, 1fr)', main: true, show: (c) => <code class="wf-brief">{textOf(c.data, 400)}</code> },
];

/** slowly is how often the names of streams are asked for while a step may begin one, in ms: they have no events. */
const slowly = 5000;
/** calm is the least time between a new event and another question for them, in ms. */
const calm = 1000;

/** Streams are those of a run; events is how many its log has, as that grows there may be another. */
export function Streams({ run, events, over }: { run: string; events: number; over: boolean }) {
  const { query } = place.value;
  const listed = useGet<Page<StreamInfo>>(path('workflows', 'runs', run, 'streams'), undefined, over ? 0 : slowly);
  const timer = useRef(0);
  const known = useRef(events);
  useEffect(() => {
    if (known.current !== events) timer.current ||= window.setTimeout(() => ((timer.current = 0), listed.reload()), calm);
    known.current = events;
  }, [events]);
  useEffect(() => () => window.clearTimeout(timer.current), []);
  const all = listed.value?.items ?? [];
  const name = query.has('stream') ? query.get('stream')! : undefined;
  const chosen = all.find((s) => s.name === name) ?? all[0];
  if (!listed.value) return listed.error ? <ErrorView error={listed.error} retry={listed.reload} /> : <Loading />;
  if (!chosen) return <Empty title="No stream yet">What the run writes to its streams is shown here as it is written.</Empty>;
  return (
    <div class="wf-part">
      <div class="wf-bar">
        <div class="chips" role="group" aria-label="Stream">
          {all.map((s) => (
            <button key={s.name} class="chip" aria-pressed={s === chosen} onClick={() => setQuery({ stream: s.name, view: '' })}>
              <Name>{s.name || 'default'}</Name> <span class="num dim">{s.chunks.toLocaleString()}</span>
            </button>
          ))}
        </div>
      </div>
      <Stream key={chosen.name} run={run} name={chosen.name} />
    </div>
  );
}

function Stream({ run, name }: { run: string; name: string }) {
  const { chunks, gone, closed, error } = useChunks(run, name);
  const { query } = place.value;
  const view = query.get('view') ?? '';
  const asText = query.get('as') === 'text';
  const chosen = view ? chunks.find((c) => String(c.index) === view) : undefined;
  return (
    <>
      {asText ? (
        <StreamText chunks={chunks} />
      ) : (
        <div class={`split${chosen ? '' : ' alone'}`}>
          <div class="split-list">
            <Table fill tail={!closed} label="Chunks" rowHeight={30} columns={columns} rows={chunks} id={(c) => String(c.index)} onOpen={(c) => setQuery({ view: String(c.index) === view ? '' : String(c.index) })} selected={view} />
          </div>
          {chosen && (
            <div class="split-view padded">
              <div class="panel-head">
                <h2 class="num">Chunk {chosen.index}</h2>
                <span class="actions">
                  <Copy text={() => written(chosen.data && 'json' in chosen.data ? chosen.data.json : chosen.data, 2) ?? ''} label="Copy the chunk as JSON">
                    Copy JSON
                  </Copy>
                  <button onClick={() => setQuery({ view: '' })}>Close</button>
                </span>
              </div>
              {chosen.data && 'json' in chosen.data && typeof chosen.data.json === 'object' ? <JSONView value={chosen.data.json} /> : <Value of={chosen.data} />}
            </div>
          )}
        </div>
      )}
      <div class="wf-foot">
        <span class="dim num">
          {chunks.length.toLocaleString()} {chunks.length === 1 ? 'chunk' : 'chunks'}
          {gone && ', the oldest are not kept here'}
        </span>
        {error ? <span class="bad-text">{visible(error.message)}</span> : closed ? <span class="dim">closed</span> : <span class="dim live">live</span>}
        <span class="chips" role="group" aria-label="Shown as">
          <button class="chip" aria-pressed={!asText} onClick={() => setQuery({ as: '' })}>
            JSON
          </button>
          <button class="chip" aria-pressed={asText} onClick={() => setQuery({ as: 'text', view: '' })}>
            Text
          </button>
        </span>
        <Copy text={() => (asText ? allSaid(chunks) : (written(chunks.map((c) => (c.data && 'json' in c.data ? c.data.json : c.data))) ?? ''))} label="Copy what is shown">
          Copy
        </Copy>
      </div>
    </>
  );
}

/** mostText is how much text is shown, the last of it. */
const mostText = 400_000;

function StreamText({ chunks }: { chunks: readonly Chunk[] }) {
  const box = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  const text = useMemo(() => allSaid(chunks), [chunks]);
  useEffect(() => {
    const b = box.current;
    if (b && atEnd.current) b.scrollTop = b.scrollHeight;
  }, [text]);
  if (!text) return <Empty title="No text">The chunks hold no text: look at them as JSON.</Empty>;
  return (
    <pre
      class="wf-stream"
      ref={box}
      tabIndex={0}
      role="log"
      aria-label="Text of the stream"
      onScroll={(e) => {
        const b = e.currentTarget;
        atEnd.current = b.scrollTop + b.clientHeight >= b.scrollHeight - 24;
      }}
    >
      {text.length > mostText && <span class="dim">{(text.length - mostText).toLocaleString()} characters before{'\n'}</span>}
      {visibleLines(text.slice(-mostText))}
    </pre>
  );
}
