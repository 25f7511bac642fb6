// The ports of a sandbox that are served to browsers.
import { useState } from 'preact/hooks';
import { call, path, post } from '../../api';
import { ask } from '../../components/dialog';
import { Icon } from '../../components/icons';
import { Badge, Code, Time } from '../../components/show';
import { Empty } from '../../components/state';
import { complain } from '../../components/toast';
import type { Port, Sandbox } from '../../types';

interface Link {
  url: string;
  expires_at: string;
}

/** isWeb guards against addresses that would not open a page of the preview. */
const isWeb = (url: string) => /^https?:\/\//.test(url);

export function Ports({ sandbox: s }: { sandbox: Sandbox }) {
  const ports = s.ports ?? [];
  const declare = (all: { port: number; access: string }[]) => call<Sandbox>('PATCH', path('sandboxes', s.id), { json: { ports: all } });
  const plain = ports.map((p) => ({ port: p.port, access: p.access }));
  const add = () =>
    ask({
      title: 'Serve a port',
      text: 'Whoever has the address of the preview can open it. Ports can be made private afterwards.',
      action: 'Serve',
      field: { label: 'Port that a program listens on', value: '3000', number: true, required: true },
      run: (v) => declare([...plain.filter((p) => p.port !== Number(v)), { port: Number(v), access: 'public' }]),
    });
  if (ports.length === 0)
    return (
      <Empty title="No port is served" command={`cay sandbox ports ${s.name} 3000`}>
        <span>A port that is served has an address of its own, for browsers.</span>
        <button class="primary" onClick={add}>
          Serve a port
        </button>
      </Empty>
    );
  return (
    <div class="stack">
      <section class="panel">
        <div class="panel-head">
          <h2>Ports</h2>
          <button onClick={add}>Serve a port</button>
        </div>
        <ul class="ports">
          {ports.map((p) => (
            <PortLine
              key={p.port}
              sandbox={s}
              port={p}
              onAccess={() =>
                declare(plain.map((o) => (o.port === p.port ? { ...o, access: p.access === 'public' ? 'private' : 'public' } : o))).catch(complain)
              }
              onRemove={() =>
                ask({
                  title: `Serve port ${p.port} no longer?`,
                  text: 'Its address is never used again, and connections to it are cut.',
                  action: 'Remove',
                  danger: true,
                  run: () => declare(plain.filter((o) => o.port !== p.port)),
                })
              }
            />
          ))}
        </ul>
      </section>
    </div>
  );
}

function PortLine({ sandbox: s, port: p, onAccess, onRemove }: { sandbox: Sandbox; port: Port; onAccess: () => void; onRemove: () => void }) {
  const [link, set] = useState<Link>();
  const url = p.access === 'public' ? p.url : link?.url;
  return (
    <li>
      <b class="num port">{p.port}</b>
      <Badge status={p.access === 'public' ? 'running' : 'paused'}>{p.access}</Badge>
      <span class="grow url">{p.url ? <Code>{p.url}</Code> : <span class="dim">this daemon serves no previews</span>}</span>
      {link && (
        <span class="dim">
          link ends <Time at={link.expires_at} />
        </span>
      )}
      <span class="actions">
        {url && isWeb(url) ? (
          <a class="button primary" href={url} target="_blank" rel="noopener noreferrer">
            Open <Icon name="link" size={13} />
          </a>
        ) : (
          p.access === 'private' &&
          p.url && (
            <button class="primary" onClick={() => post<Link>(path('sandboxes', s.id, 'ports', String(p.port), 'links'), {}).then(set, complain)}>
              Make a link
            </button>
          )
        )}
        <button onClick={onAccess}>{p.access === 'public' ? 'Make private' : 'Make public'}</button>
        <button class="danger" onClick={onRemove} aria-label={`Remove port ${p.port}`}>
          Remove
        </button>
      </span>
    </li>
  );
}
