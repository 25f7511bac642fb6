// What was saved of a sandbox, as the tree it grew in.
import { call, path, post, type Page } from '../../api';
import { ask } from '../../components/dialog';
import { Badge, Bytes, Code, Duration, Name, Time } from '../../components/show';
import { Empty, ErrorView, Loading } from '../../components/state';
import { toast } from '../../components/toast';
import { useGet } from '../../live';
import { go } from '../../router';
import { visible } from '../../text';
import type { Sandbox, Snapshot } from '../../types';

interface Node {
  snapshot: Snapshot;
  depth: number;
}

/** grown puts snapshots below what they grew from, the oldest first. */
function grown(all: Snapshot[]): Node[] {
  const ids = new Set(all.map((s) => s.id));
  const below = new Map<string, Snapshot[]>();
  for (const s of [...all].sort((a, b) => (a.created_at < b.created_at ? -1 : 1))) {
    const key = s.parent_id && ids.has(s.parent_id) ? s.parent_id : '';
    below.set(key, [...(below.get(key) ?? []), s]);
  }
  const out: Node[] = [];
  const walk = (key: string, depth: number) => {
    const children = below.get(key) ?? [];
    // A line of saves is no deeper than its beginning: only where it forks, it is.
    for (const s of children) {
      out.push({ snapshot: s, depth });
      walk(s.id, children.length > 1 ? depth + 1 : depth);
    }
  };
  walk('', 0);
  return out;
}

export function Snapshots({ sandbox: s }: { sandbox: Sandbox }) {
  const list = useGet<Page<Snapshot>>(path('snapshots'), { sandbox: s.id, project: '*', limit: 200 });
  const nodes = grown(list.value?.items ?? []);
  const running = s.status === 'running' || s.status === 'paused';
  const create = () =>
    ask({
      title: 'Make a snapshot',
      text: 'The files of the sandbox are saved; it goes on meanwhile.',
      action: 'Save',
      field: { label: 'Name, if it is to have one', value: '' },
      run: async (name) => {
        const snap = await post<Snapshot>(path('sandboxes', s.id, 'snapshots'), name ? { name } : {});
        toast(`Saved in ${snap.took_ms} ms`);
        list.reload();
      },
    });
  const start = (snap: Snapshot) =>
    ask({
      title: 'Start a sandbox from the snapshot',
      text: <Name class="strong">{snap.name ?? snap.id}</Name>,
      action: 'Start',
      field: { label: 'Name of the new sandbox, if it is to have one', value: '' },
      run: async (name) => {
        const made = await post<Sandbox>(path('sandboxes'), { snapshot: snap.id, ...(name && { name }) });
        toast(`Made ${visible(made.name)}`);
        go(`/sandboxes/${made.id}`);
      },
    });
  const restore = (snap: Snapshot) =>
    ask({
      title: 'Restore the snapshot?',
      text: 'The next session of this sandbox starts from it. What was saved later stays as a snapshot.',
      action: 'Restore',
      danger: true,
      run: async () => {
        await call('PATCH', path('sandboxes', s.id), { json: { snapshot_id: snap.id } });
        toast(running ? 'It starts from there after it was stopped' : 'It starts from there when it is resumed');
      },
    });
  const remove = (snap: Snapshot) =>
    ask({
      title: 'Delete the snapshot?',
      text: <Name class="strong">{snap.name ?? snap.id}</Name>,
      action: 'Delete',
      danger: true,
      run: async () => {
        await call('DELETE', path('snapshots', snap.id));
        list.reload();
      },
    });
  if (!list.value) return list.error ? <ErrorView error={list.error} retry={list.reload} /> : <Loading />;
  if (nodes.length === 0)
    return (
      <Empty title="No snapshot" command={`cay snapshot create ${s.name}`}>
        {running && (
          <button class="primary" onClick={create}>
            Make a snapshot
          </button>
        )}
      </Empty>
    );
  return (
    <section class="panel">
      <div class="panel-head">
        <h2>Snapshots</h2>
        {running && <button onClick={create}>Make a snapshot</button>}
      </div>
      <ul class="tree">
        {nodes.map(({ snapshot: snap, depth }) => (
          <li key={snap.id} style={{ '--depth': depth }} class={snap.id === s.snapshot_id ? 'current' : ''}>
            <i class="knot" aria-hidden="true" />
            <div class="grow">
              <div class="tree-name">
                <Name class="strong">{snap.name ?? (snap.automatic ? 'saved when it stopped' : 'unnamed')}</Name>
                <Badge status={snap.kind === 'memory' ? 'paused' : 'stopped'}>{snap.kind}</Badge>
                {snap.id === s.snapshot_id && <Badge status="running">starts from here</Badge>}
              </div>
              <div class="dim num tree-facts">
                <Time at={snap.created_at} />
                <Bytes of={snap.size_bytes} />
                <span>
                  took <Duration ms={snap.took_ms} />
                </span>
                <span class="wide">
                  <Code>{snap.id}</Code>
                </span>
              </div>
            </div>
            <span class="actions">
              <button onClick={() => start(snap)}>Start from it</button>
              {snap.id !== s.snapshot_id && <button onClick={() => restore(snap)}>Restore</button>}
              <button class="danger" onClick={() => remove(snap)}>
                Delete
              </button>
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}
