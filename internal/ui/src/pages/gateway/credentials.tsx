// Credentials that projects have of their own at providers. They are put there, and never shown.
import { useState } from 'preact/hooks';
import { call, path, type Page } from '../../api';
import { ask } from '../../components/dialog';
import { Badge, Name, Time } from '../../components/show';
import { Empty, ErrorView, Loading } from '../../components/state';
import { Table, type Column } from '../../components/table';
import { toast } from '../../components/toast';
import { useGet } from '../../live';
import { Check, Field, FormDialog } from './form';
import { Frame } from './page';

interface Credential {
  project_id: string;
  provider: string;
  name: string;
  source: string;
  fallback?: boolean;
  zero_retention?: boolean;
  problem?: string;
  updated_at?: string;
}

const at = (c: Credential) => path('gateway', 'credentials', c.provider, c.name);

export function Credentials() {
  const { value, error, reload } = useGet<Page<Credential>>(path('gateway', 'credentials'));
  const [editing, edit] = useState<Partial<Credential>>();
  const items = value?.items;
  const remove = (c: Credential) =>
    ask({
      title: 'Take the credential away?',
      text: (
        <>
          Requests of <Name class="strong">{c.project_id}</Name> no longer use <Name class="strong">{`${c.provider}/${c.name}`}</Name>. It cannot be read, so it cannot be brought back from here.
        </>
      ),
      action: 'Take away',
      danger: true,
      run: async () => {
        await call('DELETE', at(c), { query: { project_id: c.project_id } });
        toast('Taken away');
        reload();
      },
    });
  const columns: Column<Credential>[] = [
    { name: 'Status', width: '92px', show: (c) => <Badge status={c.problem ? 'failed' : 'running'}>{c.problem ? 'not used' : 'used'}</Badge> },
    {
      name: 'Credential',
      width: 'minmax(110px, 1.4fr)',
      main: true,
      show: (c) => (
        <>
          <Name class="dim">{`${c.provider}/`}</Name>
          <Name class="strong">{c.name}</Name>
        </>
      ),
    },
    { name: 'Project', width: 'minmax(80px, 1fr)', class: 'wide', show: (c) => <Name class="dim">{c.project_id}</Name> },
    { name: 'What else', width: 'minmax(90px, 1.6fr)', class: 'wide', show: (c) => (c.problem ? <Name class="bad-text">{c.problem}</Name> : <span class="dim">{[c.fallback && 'the operator’s after it', c.zero_retention && 'nothing is kept there'].filter(Boolean).join(', ')}</span>) },
    { name: 'Set', width: '92px', class: 'wide num', show: (c) => (c.updated_at ? <Time at={c.updated_at} /> : <span class="dim">in the file</span>) },
    {
      name: '',
      width: '84px',
      class: 'num',
      show: (c) =>
        c.source === 'api' && (
          <button
            class="ghost tiny danger over"
            aria-label={`Take away ${c.provider}/${c.name} of ${c.project_id}`}
            onClick={(e) => {
              e.stopPropagation();
              remove(c);
            }}
          >
            Take away
          </button>
        ),
    },
  ];
  return (
    <Frame
      view="credentials"
      full
      actions={
        <button class="primary" onClick={() => edit({})}>
          Set a credential
        </button>
      }
    >
      {!items ? (
        error ? (
          <ErrorView error={error} retry={reload} />
        ) : (
          <Loading />
        )
      ) : items.length === 0 ? (
        <Empty title="No project has a credential of its own" command="cay gateway credentials set openai --key-env THEIR_KEY">
          With its own key at a provider, a project pays that provider itself.
        </Empty>
      ) : (
        <Table fill label="Credentials" columns={columns} rows={items} id={(c) => `${c.project_id}/${c.provider}/${c.name}`} onOpen={(c) => c.source === 'api' && edit(c)} />
      )}
      {editing && <CredentialForm of={editing} onClose={() => edit(undefined)} onSet={reload} />}
    </Frame>
  );
}

function CredentialForm({ of: c, onClose, onSet }: { of: Partial<Credential>; onClose: () => void; onSet: () => void }) {
  const fixed = c.name !== undefined;
  const [v, set] = useState({ provider: c.provider ?? '', name: c.name ?? 'main', project: c.project_id ?? '', key: '', rest: '', zero: c.zero_retention ?? false, fallback: c.fallback ?? false });
  const to = (k: keyof typeof v) => (x: string | boolean) => set((o) => ({ ...o, [k]: x }));
  const send = async () => {
    let more: object = {};
    if (v.rest.trim()) {
      try {
        more = JSON.parse(v.rest) as object;
      } catch (e) {
        throw new Error(`The other settings are not JSON: ${(e as Error).message}`);
      }
    }
    await call('PUT', path('gateway', 'credentials', v.provider.trim(), v.name.trim()), {
      query: { project_id: v.project.trim() },
      json: { ...more, key: v.key.trim() || undefined, zero_retention: v.zero || undefined, fallback: v.fallback || undefined },
    });
    toast('Set, for requests that begin now');
    onSet();
  };
  return (
    <FormDialog title={fixed ? 'Replace the credential' : 'Set a credential'} action="Set" onClose={onClose} send={send}>
      <div class="pair">
        <Field label="Provider" value={v.provider} set={to('provider')} placeholder="openai" required disabled={fixed} autoFocus={!fixed} />
        <Field label="Name" value={v.name} set={to('name')} required disabled={fixed} />
        <Field label="Project" value={v.project} set={to('project')} placeholder="the default one" disabled={fixed} />
        <Field label="Key" value={v.key} set={to('key')} placeholder="write-only" secret autoFocus={fixed} />
      </div>
      <Check label="The account has agreed that nothing is kept" value={v.zero} set={to('zero')} />
      <Check label="Try the operator's credentials after it" value={v.fallback} set={to('fallback')} />
      <details>
        <summary>Other settings, as JSON</summary>
        <textarea aria-label="Other settings, as JSON" rows={5} spellcheck={false} value={v.rest} placeholder={'{"region": "eu-central-1", "aws": {"access_key_id": "…", "secret_access_key": "…"}}'} onInput={(e) => to('rest')(e.currentTarget.value)} />
      </details>
    </FormDialog>
  );
}
