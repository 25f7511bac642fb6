// How a provider is set up by the API. Its secrets go there and never come back.
import { useEffect, useState } from 'preact/hooks';
import { call, get, path } from '../../api';
import { Loading } from '../../components/state';
import { complain, toast } from '../../components/toast';
import { Check, Field, FormDialog, list } from './form';
import type { Provider } from './types';

type Settings = Record<string, unknown>;

/** fields of the form; all other settings are there as JSON. */
const fields = ['kind', 'disabled', 'format', 'base_url', 'key'];

/** isSecret is what the API shows in place of a secret. */
const isSecret = (v: unknown): boolean => !!v && typeof v === 'object' && !Array.isArray(v) && Object.keys(v).length === 1 && (v as Settings).set === true;

/** opened is settings with '' for their secrets, and how many there are. */
export function opened(v: unknown): { value: unknown; secrets: number } {
  if (isSecret(v)) return { value: '', secrets: 1 };
  if (!v || typeof v !== 'object') return { value: v, secrets: 0 };
  let secrets = 0;
  const of = (x: unknown) => {
    const o = opened(x);
    secrets += o.secrets;
    return o.value;
  };
  const value = Array.isArray(v) ? v.map(of) : Object.fromEntries(Object.entries(v).map(([k, x]) => [k, of(x)]));
  return { value, secrets };
}

interface Props {
  /** '' for a new one */
  name: string;
  known: string[];
  onClose: () => void;
  onSet: () => void;
}

export function ProviderForm({ name, known, onClose, onSet }: Props) {
  const [now, setNow] = useState<Provider | undefined>(name ? undefined : { name: '', source: 'known', formats: [], configured: false, health: '' });
  useEffect(() => {
    if (name)
      get<Provider>(path('gateway', 'providers', name)).then(setNow, (e) => {
        complain(e);
        onClose();
      });
  }, [name]);
  return now ? <Form of={now} known={known} onClose={onClose} onSet={onSet} /> : <Loading />;
}

function Form({ of: p, known, onClose, onSet }: { of: Provider; known: string[]; onClose: () => void; onSet: () => void }) {
  const before = opened((p as Provider & { settings?: Settings }).settings ?? {});
  const s = before.value as Settings;
  const rest = Object.fromEntries(Object.entries(s).filter(([k]) => !fields.includes(k)));
  const [v, set] = useState({
    name: p.name,
    kind: (s.kind as string) ?? '',
    format: ((s.format as string[]) ?? []).join(', '),
    base_url: (s.base_url as string) ?? '',
    key: '',
    disabled: s.disabled === true,
    rest: Object.keys(rest).length ? JSON.stringify(rest, null, 2) : '',
  });
  const to = (k: keyof typeof v) => (x: string | boolean) => set((o) => ({ ...o, [k]: x }));
  const send = async () => {
    let more: Settings = {};
    if (v.rest.trim()) {
      try {
        more = JSON.parse(v.rest) as Settings;
      } catch (e) {
        throw new Error(`The other settings are not JSON: ${(e as Error).message}`);
      }
    }
    await call('PUT', path('gateway', 'providers', v.name.trim()), {
      json: {
        ...more,
        kind: v.kind.trim() || undefined,
        format: list(v.format),
        base_url: v.base_url.trim() || undefined,
        key: v.key.trim() || undefined,
        disabled: v.disabled || undefined,
      },
    });
    toast('Set, for requests that begin now');
    onSet();
  };
  return (
    <FormDialog title={p.name ? 'Set up the provider' : 'Set a provider'} action="Set" onClose={onClose} send={send}>
      {before.secrets > 0 && (
        <p class="dim">
          What is set takes the place of all that was set before. Secrets cannot be read again: {before.secrets === 1 ? 'the one' : `the ${before.secrets}`} that this provider has {before.secrets === 1 ? 'is' : 'are'} to be typed again.
        </p>
      )}
      <div class="pair">
        <label class="field">
          Name
          <input value={v.name} list="providers" required disabled={p.name !== ''} placeholder="openai, or one of your own" autocomplete="off" autocapitalize="off" spellcheck={false} autoFocus={!p.name} onInput={(e) => to('name')(e.currentTarget.value)} />
          <datalist id="providers">
            {known.map((k) => (
              <option key={k} value={k} />
            ))}
          </datalist>
        </label>
        <Field label="Key" value={v.key} set={to('key')} placeholder="its API key" secret autoFocus={!!p.name} />
        <Field label="Address, if it is another" value={v.base_url} set={to('base_url')} placeholder="https://…/v1" />
        <Field label="Kind, if the name is none" value={v.kind} set={to('kind')} placeholder="openai" />
        <Field label="Formats, the best first" value={v.format} set={to('format')} placeholder="as its kind has them" />
      </div>
      <Check label="Disabled: no request goes there" value={v.disabled} set={to('disabled')} />
      <details open={v.rest !== ''}>
        <summary>Other settings, as JSON</summary>
        <textarea aria-label="Other settings, as JSON" rows={7} spellcheck={false} value={v.rest} placeholder={'{"region": "eu-central-1", "aws": {"access_key_id": "…", "secret_access_key": "…"}}'} onInput={(e) => to('rest')(e.currentTarget.value)} />
      </details>
    </FormDialog>
  );
}
