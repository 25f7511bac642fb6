// The files of a sandbox: looked through, read, and put there.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, get, path, post, send, upload, type Page } from '../../api';
import { fromBase64, isText, percent, unpercent } from '../../bytes';
import { ask } from '../../components/dialog';
import { Icon } from '../../components/icons';
import { Bytes, Name, Time } from '../../components/show';
import { Empty, ErrorView, Loading } from '../../components/state';
import { Table, type Column } from '../../components/table';
import { complain, toast } from '../../components/toast';
import { save } from '../../download';
import { place, setQuery } from '../../router';
import { bytes, mode, visible, visibleLines } from '../../text';
import type { FileInfo, Sandbox } from '../../types';
import { Asleep } from './asleep';
import { follow } from './follow';
import { Transfers, useTransfers } from './transfers';

/** shown is how many bytes of a file are shown. */
const shown = 512 << 10;

/** most is how many files of a directory are listed. */
const most = 100_000;

const join = (dir: string, name: string) => (dir === '/' ? '/' : dir + '/') + name;

/** An address holds text. Paths that are none are there byte by byte, under another name. */
const inQuery = (name: 'path' | 'view', p: string): Record<string, string> => (isText(p) ? { [name]: p, [`${name}_bytes`]: '' } : { [name]: '', [`${name}_bytes`]: percent(p) });
const ofQuery = (name: 'path' | 'view'): string => {
  const { query } = place.value;
  return query.get(name) || unpercent(query.get(`${name}_bytes`) ?? '');
};

export function Files({ sandbox: s }: { sandbox: Sandbox }) {
  if (s.status !== 'running') return <Asleep sandbox={s} what="Reading its files" />;
  return <Browser sandbox={s} />;
}

/** exact is a file as a list has it, with its name and path as they are. */
const exact = (dir: string, f: FileInfo): FileInfo => {
  if (!f.name_base64) return { ...f, path: isText(dir) ? f.path : join(dir, f.name) };
  const name = fromBase64(f.name_base64);
  return { ...f, name, path: join(dir, name) };
};

const ordered = (items: FileInfo[]) => items.sort((a, b) => Number(b.type === 'dir') - Number(a.type === 'dir') || (a.name < b.name ? -1 : 1));

interface Listing {
  of: string;
  items?: FileInfo[];
  more: boolean; // not all have come
  cut: boolean; // nor will they
  error?: unknown;
}

/** useDirectory lists a directory, page by page, and again when something in it changes. */
function useDirectory(at: string, dir: string): Listing & { reload: () => void } {
  const [state, set] = useState<Listing>({ of: '', more: true, cut: false });
  const [round, again] = useState(0);
  const large = (state.items?.length ?? 0) > 5000;
  useEffect(() => {
    const stop = new AbortController();
    (async () => {
      const items: FileInfo[] = [];
      let cursor = '';
      try {
        do {
          const page = await get<Page<FileInfo>>(`${at}/list`, { path: dir, limit: 5000, cursor }, stop.signal);
          items.push(...page.items.map((f) => exact(dir, f)));
          cursor = page.next ?? '';
          const cut = items.length >= most;
          // Of one that is read again, what was there is shown until all is.
          set((s) => (s.of === dir && s.items && cursor && !cut ? s : { of: dir, items: ordered([...items]), more: cursor !== '' && !cut, cut: cursor !== '' && cut }));
          if (cut) return;
        } while (cursor);
      } catch (error) {
        if (!stop.signal.aborted) set((s) => ({ of: dir, items: s.of === dir ? s.items : undefined, more: false, cut: false, error }));
      }
    })();
    return () => stop.abort();
  }, [at, dir, round]);
  useEffect(() => {
    if (large) return; // reading it again and again is more than it is worth
    let timer = 0;
    const onLine = () => {
      timer ||= window.setTimeout(() => {
        timer = 0;
        if (!document.hidden) again((n) => n + 1);
      }, 1000);
    };
    const stop = follow(`${at}/watch`, { query: { path: dir }, onLine });
    return () => {
      stop();
      window.clearTimeout(timer);
    };
  }, [at, dir, large]);
  const mine = state.of === dir ? state : { of: dir, more: true, cut: false };
  return { ...mine, reload: () => again((n) => n + 1) };
}

function Browser({ sandbox: s }: { sandbox: Sandbox }) {
  const dir = ofQuery('path') || s.workdir;
  const view = ofQuery('view');
  const at = path('sandboxes', s.id, 'files');
  const list = useDirectory(at, dir);
  const transfers = useTransfers();
  const [over, setOver] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  const items = list.items ?? [];

  const put = async (files: FileList | null | undefined) => {
    let n = 0;
    // One after the other: each is as quick as the line.
    for (const f of [...(files ?? [])]) {
      if (await transfers.add('Uploading', f.name, f.size, (onProgress, signal) => upload(`${at}/content`, { path: join(dir, f.name) }, f, onProgress, signal))) n++;
    }
    if (n) toast(n === 1 ? 'Uploaded' : `Uploaded ${n} files`);
    if (input.current) input.current.value = ''; // the same one may be chosen again
    list.reload();
  };
  const download = (file: string, name: string, size?: number) =>
    void transfers.add('Downloading', name, size, (onProgress, signal) => save(`${at}/content`, { path: file }, visible(name), onProgress, signal));
  const open = (f: FileInfo) => {
    if (f.type === 'dir') setQuery({ ...inQuery('path', f.path), ...inQuery('view', '') }, true);
    else if (f.type === 'symlink') followLink(f);
    else if (f.type === 'file') setQuery(inQuery('view', f.path), true);
    else toast('This is neither a file nor a directory', 'bad');
  };
  const followLink = async (f: FileInfo) => {
    try {
      const answer = await send('GET', `${at}/stat`, { query: { path: f.path, follow: true } });
      const to = (await answer.json()) as FileInfo;
      open({ ...to, type: to.type === 'symlink' ? 'other' : to.type, path: f.path });
    } catch (e) {
      complain(e);
    }
  };
  const remove = (f: FileInfo) => {
    if (!isText(f.path)) return toast('Its name is not UTF-8: remove it in the terminal', 'bad');
    ask({
      title: f.type === 'dir' ? 'Remove the directory?' : 'Remove the file?',
      text: <Name class="strong">{f.path}</Name>,
      action: 'Remove',
      danger: true,
      run: async () => {
        await post(`${at}/remove`, { path: f.path, recursive: f.type === 'dir' });
        if (view === f.path) setQuery(inQuery('view', ''));
        list.reload();
      },
    });
  };
  const columns: Column<FileInfo>[] = [
    {
      name: 'Name',
      width: 'minmax(140px, 1fr)',
      main: true,
      show: (f) => (
        <span class="file-name">
          <Icon name={f.type === 'dir' ? 'folder' : f.type === 'symlink' ? 'link' : 'file'} size={15} />
          <Name class={f.type === 'dir' ? 'strong' : ''}>{f.name}</Name>
          {f.target !== undefined && (
            <span class="dim">
              → <Name>{f.target}</Name>
            </span>
          )}
        </span>
      ),
    },
    { name: 'Size', width: '84px', class: 'num', show: (f) => (f.type === 'file' ? <Bytes of={f.size} /> : '') },
    { name: 'Mode', width: '100px', class: 'wide', show: (f) => <code class="dim">{mode(f.mode, f.type)}</code> },
    { name: 'Changed', width: '96px', class: 'wide num', show: (f) => <Time at={f.mod_time} /> },
    {
      name: '',
      width: '32px',
      show: (f) => (
        <button
          class="ghost tiny"
          aria-label={`Remove ${visible(f.name)}`}
          title="Remove"
          onClick={(e) => {
            e.stopPropagation();
            remove(f);
          }}
        >
          <Icon name="close" size={13} />
        </button>
      ),
    },
  ];
  return (
    <div
      class={`files${over ? ' over' : ''}`}
      onDragOver={(e) => {
        e.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(e) => {
        e.preventDefault();
        setOver(false);
        void put(e.dataTransfer?.files);
      }}
    >
      <div class="files-bar">
        <Crumbs dir={dir} />
        <div class="actions">
          <button
            onClick={() =>
              ask({
                title: 'Make a directory',
                text: 'In this directory.',
                action: 'Make',
                field: { label: 'Name', value: '', required: true },
                run: async (name) => {
                  await post(`${at}/mkdir`, { path: join(dir, name) });
                  list.reload();
                },
              })
            }
          >
            New directory
          </button>
          <button onClick={() => input.current?.click()}>Upload</button>
          <button onClick={list.reload}>Refresh</button>
          <input ref={input} type="file" multiple hidden aria-label="Files to upload" onChange={(e) => void put(e.currentTarget.files)} />
        </div>
      </div>
      <Transfers of={transfers.all} />
      <div class={`split${view ? '' : ' alone'}`}>
        <div class="split-list">
          {list.error && !list.items ? (
            <ErrorView error={list.error} retry={list.reload} />
          ) : !list.items ? (
            <Loading />
          ) : items.length === 0 ? (
            <Empty title="The directory is empty">Drop files here to upload them.</Empty>
          ) : (
            <Table fill label="Files" rowHeight={34} columns={view ? [columns[0]!, columns[1]!, columns[4]!] : columns} rows={items} id={(f) => f.path} onOpen={open} selected={view} />
          )}
          {items.length > 1000 && (
            <p class="list-foot dim num">
              {items.length.toLocaleString()} files{list.more ? ', and more are coming' : list.cut ? ', and more that are not shown' : ''}
            </p>
          )}
        </div>
        {view && (
          <div class="split-view">
            <FileView key={view} sandbox={s} file={view} onDownload={download} />
          </div>
        )}
      </div>
    </div>
  );
}

function Crumbs({ dir }: { dir: string }) {
  const parts = dir.split('/').filter(Boolean);
  const to = (n: number) => '/' + parts.slice(0, n).join('/');
  return (
    <nav class="crumbs" aria-label="Directory">
      <button class="ghost" onClick={() => setQuery({ ...inQuery('path', '/'), ...inQuery('view', '') }, true)}>
        /
      </button>
      {parts.map((p, i) => (
        <span key={i}>
          <button class="ghost" onClick={() => setQuery({ ...inQuery('path', to(i + 1)), ...inQuery('view', '') }, true)} aria-current={i === parts.length - 1 ? 'page' : undefined}>
            <Name>{p}</Name>
          </button>
          {i < parts.length - 1 && <i class="dim">/</i>}
        </span>
      ))}
    </nav>
  );
}

function FileView({ sandbox: s, file, onDownload }: { sandbox: Sandbox; file: string; onDownload: (file: string, name: string, size?: number) => void }) {
  const [state, set] = useState<{ text?: string; binary?: boolean; size: number; error?: unknown }>();
  const content = path('sandboxes', s.id, 'files', 'content');
  const name = file.slice(file.lastIndexOf('/') + 1);
  useEffect(() => {
    const stop = new AbortController();
    (async () => {
      try {
        const answer = await send('GET', content, { query: { path: file }, headers: { Range: `bytes=0-${shown - 1}` }, signal: stop.signal });
        const b = new Uint8Array(await answer.arrayBuffer());
        const whole = Number(answer.headers.get('Content-Range')?.split('/')[1] ?? b.length);
        set({ text: new TextDecoder().decode(b), binary: b.subarray(0, 8192).includes(0), size: whole });
      } catch (error) {
        if (stop.signal.aborted) return;
        // An empty file has no range.
        if (error instanceof ApiError && error.status === 416) set({ text: '', size: 0 });
        else set({ size: 0, error });
      }
    })();
    return () => stop.abort();
  }, [file]);
  return (
    <div class="file-view">
      <div class="file-head">
        <Name class="strong">{name}</Name>
        {state && !state.error && <span class="dim num">{bytes(state.size)}</span>}
        <span class="grow" />
        <button onClick={() => onDownload(file, name, state?.size)}>Download</button>
        <button class="ghost" aria-label="Close the file" onClick={() => setQuery(inQuery('view', ''))}>
          <Icon name="close" />
        </button>
      </div>
      {!state ? (
        <Loading />
      ) : state.error ? (
        <ErrorView error={state.error} />
      ) : state.binary ? (
        <Empty title="This is not text">Download it to look at it.</Empty>
      ) : (
        <CodeView text={state.text!} more={state.size > shown} />
      )}
    </div>
  );
}

/** CodeView shows text, with the numbers of its lines. */
function CodeView({ text, more }: { text: string; more: boolean }) {
  const lines = visibleLines(text).split('\n');
  if (lines.at(-1) === '' && !more) lines.pop();
  return (
    <div class="code-view" tabIndex={0}>
      <pre class="numbers" aria-hidden="true">
        {lines.map((_, i) => i + 1).join('\n')}
      </pre>
      <pre>
        {lines.join('\n')}
        {more && <span class="dim">{'\n… only the beginning is shown'}</span>}
      </pre>
    </div>
  );
}

