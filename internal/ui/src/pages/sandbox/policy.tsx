// The policy of a sandbox's network: what it says, and how it is changed.
import { useState } from 'preact/hooks';
import { ApiError, call, path } from '../../api';
import { ask, Dialog } from '../../components/dialog';
import { Icon } from '../../components/icons';
import { Badge, Facts, Name } from '../../components/show';
import { toast } from '../../components/toast';
import { bytes, visible } from '../../text';
import type { Sandbox } from '../../types';
import { acting, actionOf, clean, pathKind, redacted, retyped, said, withMatch, type Action, type Domain, type Limits, type PathKind, type Policy, type Rule } from './rules';

const policyOf = (s: Sandbox) => s.network as unknown as Policy;

export function PolicyPanel({ sandbox: s, onEdit }: { sandbox: Sandbox; onEdit: () => void }) {
  const p = policyOf(s);
  const set = (mode: 'allow-all' | 'deny-all') =>
    ask({
      title: mode === 'deny-all' ? 'Cut the sandbox off?' : 'Let the sandbox reach the internet?',
      text:
        mode === 'deny-all'
          ? 'Its connections are cut at once, and nothing can be reached any more, not even names. The rules it has now are forgotten.'
          : 'Everything can be reached but what is always blocked. The rules it has now are forgotten.',
      action: mode === 'deny-all' ? 'Deny all' : 'Allow all',
      danger: true,
      run: () => call('PATCH', path('sandboxes', s.id), { json: { network: { mode, ...(p.limits && { limits: p.limits }) } } }),
    });
  const limits = [
    p.limits?.connections && `${p.limits.connections} connections`,
    p.limits?.connections_per_second && `${p.limits.connections_per_second} new ones a second`,
    p.limits?.bytes_per_second && `${bytes(p.limits.bytes_per_second)}/s`,
    p.limits?.total_bytes && `${bytes(p.limits.total_bytes)} in all`,
  ].filter(Boolean);
  return (
    <section class="panel policy">
      <div class="panel-head">
        <h2>
          Policy <Badge status={p.mode === 'allow-all' ? 'allowed' : p.mode === 'deny-all' ? 'denied' : 'paused'}>{p.mode}</Badge>
        </h2>
        <span class="actions">
          <button onClick={onEdit}>Edit</button>
          {p.mode !== 'allow-all' && <button onClick={() => set('allow-all')}>Allow all</button>}
          {p.mode !== 'deny-all' && <button onClick={() => set('deny-all')}>Deny all</button>}
        </span>
      </div>
      {p.allow?.length ? (
        <ul class="allowed" tabIndex={0} aria-label="Names that may be reached">
          {p.allow.map((d, i) => (
            <li key={i}>
              <Name class="strong">{d.name}</Name>
              {d.ports?.length ? <span class="dim num">:{d.ports.join(', ')}</span> : null}
              {d.rules?.map((r, j) => (
                <Name key={j} class="dim rule">
                  {said(r)}
                </Name>
              ))}
            </li>
          ))}
        </ul>
      ) : null}
      <Facts
        of={[
          ['Ranges', p.allow_cidrs?.length ? <Name>{p.allow_cidrs.join(', ')}</Name> : undefined],
          ['Not', p.deny_cidrs?.length ? <Name>{p.deny_cidrs.join(', ')}</Name> : undefined],
          ['Strict', p.strict ? 'a request for another host behind the same server is refused' : undefined],
          ['Handled', p.handled?.length ? <Name>{p.handled.join(', ')}</Name> : undefined],
          ['At most', limits.length ? limits.join(', ') : undefined],
        ]}
      />
    </section>
  );
}

const words = (text: string) => text.split(/[\s,]+/).filter(Boolean);

/** PolicyEditor changes all of a policy, in a form, or as the JSON that the API takes. What is wrong the API says. */
export function PolicyEditor({ sandbox: s, onClose }: { sandbox: Sandbox; onClose: () => void }) {
  const [p, set] = useState<Policy>(() => retyped(policyOf(s)));
  const [json, setJSON] = useState<string>();
  const [error, setError] = useState<ApiError>();
  const [busy, setBusy] = useState(false);
  const change = (c: Partial<Policy>) => {
    setError(undefined);
    set((old) => ({ ...old, ...c }));
  };
  const domains = p.allow ?? [];
  const setDomain = (i: number, d?: Domain) => change({ allow: d ? domains.map((o, j) => (j === i ? d : o)) : domains.filter((_, j) => j !== i) });
  const parse = (text: string): Policy | undefined => {
    try {
      const v = JSON.parse(text) as Policy;
      if (v && typeof v === 'object' && !Array.isArray(v)) return v;
      setError(new ApiError('invalid', 'This is JSON, but no object'));
    } catch (e) {
      setError(new ApiError('invalid', `This is not JSON: ${(e as Error).message}`));
    }
    return undefined;
  };
  const toggle = () => {
    setError(undefined);
    if (json === undefined) return setJSON(JSON.stringify(clean(p), null, 2));
    const v = parse(json);
    if (!v) return;
    set(v);
    setJSON(undefined);
  };
  const save = async (e: Event) => {
    e.preventDefault();
    setError(undefined);
    const network = json === undefined ? clean(p) : parse(json);
    if (!network) return;
    setBusy(true);
    try {
      await call('PATCH', path('sandboxes', s.id), { json: { network } });
      toast('The policy holds from now on');
      onClose();
    } catch (err) {
      setError(err instanceof ApiError ? err : new ApiError('internal', String(err)));
    }
    setBusy(false);
  };
  return (
    <Dialog title="Network policy" onClose={onClose}>
      <form class="form policy-form" onSubmit={save}>
        {json !== undefined ? (
          <textarea aria-label="Policy as JSON" spellcheck={false} rows={18} value={json} onInput={(e) => setJSON(e.currentTarget.value)} />
        ) : (
          <>
            <div class="chips" role="group" aria-label="Mode">
              {(['allow-all', 'deny-all', 'custom'] as const).map((m) => (
                <button key={m} type="button" class="chip" aria-pressed={p.mode === m} onClick={() => change({ mode: m })}>
                  {m === 'allow-all' ? 'Allow all' : m === 'deny-all' ? 'Deny all' : 'Only what is listed'}
                </button>
              ))}
            </div>
            {p.mode === 'custom' && (
              <>
                {domains.map((d, i) => (
                  <DomainForm key={i} of={d} set={(d) => setDomain(i, d)} />
                ))}
                <p>
                  <button type="button" onClick={() => change({ allow: [...domains, { name: '' }] })}>
                    Allow a name
                  </button>
                </p>
                <div class="pair">
                  <Text label="Address ranges to allow" value={p.allow_cidrs?.join(', ') ?? ''} set={(v) => change({ allow_cidrs: words(v) })} placeholder="203.0.113.0/24" />
                  <Text label="Ranges to deny, whatever allows them" value={p.deny_cidrs?.join(', ') ?? ''} set={(v) => change({ deny_cidrs: words(v) })} placeholder="none" />
                </div>
                <label class="check">
                  <input type="checkbox" checked={p.strict ?? false} onChange={(e) => change({ strict: e.currentTarget.checked })} />
                  Strict: open the TLS of every name, and refuse requests for other hosts
                </label>
              </>
            )}
            <Text label="Names that the sandbox's egress handler decides about" value={p.handled?.join(', ') ?? ''} set={(v) => change({ handled: words(v) })} placeholder="none" />
            <details open={Object.keys(p.limits ?? {}).length > 0}>
              <summary>Limits</summary>
              <div class="pair">
                <Limit label="Connections at a time" of={p} name="connections" change={change} />
                <Limit label="New connections a second" of={p} name="connections_per_second" change={change} />
                <Limit label="Bytes a second, each way" of={p} name="bytes_per_second" change={change} />
                <Limit label="Bytes in all" of={p} name="total_bytes" change={change} />
              </div>
            </details>
          </>
        )}
        {error && (
          <p class="wrong" role="alert">
            {visible(error.message)}
            {error.hint && <span> {visible(error.hint)}</span>}
          </p>
        )}
        <div class="buttons">
          <button type="button" class="ghost" onClick={toggle}>
            {json === undefined ? 'As JSON' : 'As a form'}
          </button>
          <span class="grow" />
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button class="primary" disabled={busy}>
            {busy ? 'Working…' : 'Save'}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

interface TextProps {
  label: string;
  value: string;
  set: (v: string) => void;
  placeholder?: string;
  secret?: boolean;
  required?: boolean;
  bare?: boolean;
}

/** Text keeps what is typed until it is left, so that a list is not put in order while it is written. */
function Text({ label, value, set, placeholder, secret, required, bare }: TextProps) {
  const [typed, type] = useState<string>();
  const input = (
    <input
      aria-label={bare ? label : undefined}
      {...(secret && ({ type: 'password' } as object))}
      value={typed ?? value}
      placeholder={placeholder}
      required={required}
      autocomplete={secret ? 'new-password' : 'off'}
      autocapitalize="off"
      spellcheck={false}
      onInput={(e) => {
        type(e.currentTarget.value);
        set(e.currentTarget.value);
      }}
      onBlur={() => type(undefined)}
    />
  );
  return bare ? (
    input
  ) : (
    <label class="field">
      {label}
      {input}
    </label>
  );
}

function Limit({ label, of: p, name, change }: { label: string; of: Policy; name: keyof Limits; change: (c: Partial<Policy>) => void }) {
  return (
    <label class="field">
      {label}
      <input
        inputMode="numeric"
        pattern="[0-9]*"
        title="A whole number"
        placeholder="the operator's"
        value={p.limits?.[name] || ''}
        onInput={(e) => change({ limits: { ...p.limits, [name]: Number(e.currentTarget.value) || undefined } })}
      />
    </label>
  );
}

function DomainForm({ of: d, set }: { of: Domain; set: (d?: Domain) => void }) {
  const rules = d.rules ?? [];
  const setRule = (i: number, r?: Rule) => set({ ...d, rules: r ? rules.map((o, j) => (j === i ? r : o)) : rules.filter((_, j) => j !== i) });
  return (
    <fieldset class="domain">
      <div class="domain-head">
        <Text bare label="Name" value={d.name} set={(name) => set({ ...d, name })} placeholder="api.example.com or *.example.com" required />
        <Text bare label="Ports" value={d.ports?.join(', ') ?? ''} set={(v) => set({ ...d, ports: words(v).map(Number) })} placeholder="all ports" />
        <button type="button" onClick={() => set({ ...d, rules: [...rules, {}] })}>
          Add a rule
        </button>
        <button type="button" class="ghost tiny" aria-label={`Remove ${visible(d.name) || 'this name'}`} title="Remove" onClick={() => set(undefined)}>
          <Icon name="close" size={13} />
        </button>
      </div>
      {rules.map((r, i) => (
        <RuleForm key={i} of={r} n={i + 1} set={(r) => setRule(i, r)} />
      ))}
    </fieldset>
  );
}

const actions: [Action, string][] = [
  ['pass', 'pass as they are'],
  ['set', 'get headers set'],
  ['forward', 'are sent elsewhere'],
  ['respond', 'are answered here'],
  ['deny', 'are refused'],
];
const kinds: [PathKind, string][] = [
  ['', 'any path'],
  ['prefix', 'path begins with'],
  ['exact', 'path is'],
  ['regex', 'path has (RE2)'],
];

function RuleForm({ of: r, n, set }: { of: Rule; n: number; set: (r?: Rule) => void }) {
  const kind = pathKind(r.match?.path);
  const headers = Object.entries(r.set_headers ?? {});
  const setHeader = (i: number, name: string, value: string) => set({ ...r, set_headers: Object.fromEntries(headers.map((h, j) => (j === i ? [name, value] : h))) });
  const more = (r.match?.query?.length ?? 0) + (r.match?.headers?.length ?? 0);
  return (
    <div class="rule-form" role="group" aria-label={`Rule ${n}`}>
      <div class="rule-line">
        <span class="dim">Requests</span>
        <Text bare label="Methods" value={r.match?.methods?.join(', ') ?? ''} set={(v) => set(withMatch(r, { methods: words(v.toUpperCase()) }))} placeholder="any method" />
        <select aria-label="Path" value={kind} onChange={(e) => set(withMatch(r, { path: e.currentTarget.value ? { [e.currentTarget.value]: kind ? r.match!.path![kind] : '/' } : undefined }))}>
          {kinds.map(([v, name]) => (
            <option key={v} value={v}>
              {name}
            </option>
          ))}
        </select>
        {kind && <Text bare label="Text of the path" value={r.match!.path![kind] ?? ''} set={(v) => set(withMatch(r, { path: { [kind]: v } }))} required />}
        <select aria-label="What happens" value={actionOf(r)} onChange={(e) => set(acting(r, e.currentTarget.value as Action))}>
          {actions.map(([v, name]) => (
            <option key={v} value={v}>
              {name}
            </option>
          ))}
        </select>
        <button type="button" class="ghost tiny" aria-label={`Remove rule ${n}`} title="Remove" onClick={() => set(undefined)}>
          <Icon name="close" size={13} />
        </button>
      </div>
      {more > 0 && <p class="dim">It also looks at {more === 1 ? 'a parameter or header' : `${more} parameters and headers`}: see it as JSON.</p>}
      {r.set_headers && (
        <>
          {headers.map(([name, value], i) => (
            <div class="rule-line" key={i}>
              <Text bare label="Header" value={name} set={(v) => setHeader(i, v, value)} required />
              <Text bare secret label={`Value of ${visible(name)}`} value={value} set={(v) => setHeader(i, name, v)} placeholder={`its value, to be typed again: the API shows ${redacted}`} required />
              <button
                type="button"
                class="ghost tiny"
                aria-label={`Remove the header ${visible(name)}`}
                onClick={() => set({ ...r, set_headers: Object.fromEntries(headers.filter((_, j) => j !== i)) })}
              >
                <Icon name="close" size={13} />
              </button>
            </div>
          ))}
          <div class="rule-line">
            <button type="button" class="ghost" onClick={() => set({ ...r, set_headers: { ...r.set_headers, [`X-Header-${headers.length + 1}`]: '' } })}>
              Another header
            </button>
            <label class="check">
              <input type="checkbox" checked={r.scrub ?? false} onChange={(e) => set({ ...r, scrub: e.currentTarget.checked || undefined })} />
              Hide the values in answers
            </label>
          </div>
        </>
      )}
      {r.forward_url !== undefined && (
        <div class="rule-line">
          <Text bare label="Address" value={r.forward_url} set={(v) => set({ ...r, forward_url: v })} placeholder="https://proxy.example.com/base" required />
        </div>
      )}
      {r.respond && (
        <div class="rule-line">
          <Text bare label="Status" value={String(r.respond.status || '')} set={(v) => set({ ...r, respond: { ...r.respond!, status: Number(v) || 0 } })} placeholder="403" required />
          <Text bare label="Body" value={r.respond.body ?? ''} set={(v) => set({ ...r, respond: { ...r.respond!, body: v || undefined } })} placeholder="no body" />
        </div>
      )}
    </div>
  );
}
