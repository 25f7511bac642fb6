// The policy of a sandbox's network, as the API has it, and as a form has it while it is edited.

export interface TextMatch {
  exact?: string;
  prefix?: string;
  regex?: string;
}

interface FieldMatch {
  key?: TextMatch;
  value?: TextMatch;
}

export interface Rule {
  match?: { methods?: string[]; path?: TextMatch; query?: FieldMatch[]; headers?: FieldMatch[] };
  set_headers?: Record<string, string>;
  scrub?: boolean;
  forward_url?: string;
  respond?: { status: number; headers?: Record<string, string>; body?: string };
  deny?: boolean;
}

export interface Domain {
  name: string;
  ports?: number[];
  rules?: Rule[];
}

export interface Limits {
  connections?: number;
  connections_per_second?: number;
  bytes_per_second?: number;
  total_bytes?: number;
}

export interface Policy {
  mode: 'allow-all' | 'deny-all' | 'custom';
  allow?: Domain[];
  allow_cidrs?: string[];
  deny_cidrs?: string[];
  strict?: boolean;
  handled?: string[];
  limits?: Limits;
}

/** redacted is what the API shows in place of the value of a header. It takes it for no value. */
export const redacted = '[redacted]';

export type Action = 'pass' | 'set' | 'forward' | 'respond' | 'deny';

export const actionOf = (r: Rule): Action => (r.deny ? 'deny' : r.respond ? 'respond' : r.forward_url !== undefined ? 'forward' : r.set_headers ? 'set' : 'pass');

/** acting is a rule that does something else, with the same match. */
export function acting(r: Rule, action: Action): Rule {
  const rule: Rule = r.match ? { match: r.match } : {};
  if (action === 'deny') rule.deny = true;
  if (action === 'respond') rule.respond = { status: 403 };
  if (action === 'forward') rule.forward_url = '';
  if (action === 'set') rule.set_headers = { Authorization: '' };
  return rule;
}

export type PathKind = '' | 'exact' | 'prefix' | 'regex';

export const pathKind = (m?: TextMatch): PathKind => (m?.exact !== undefined ? 'exact' : m?.prefix !== undefined ? 'prefix' : m?.regex !== undefined ? 'regex' : '');

/** withMatch is a rule that matches something else; a match that says nothing is left out. */
export function withMatch(r: Rule, change: Partial<NonNullable<Rule['match']>>): Rule {
  const match = Object.fromEntries(Object.entries({ ...r.match, ...change }).filter(([, v]) => v !== undefined && !(Array.isArray(v) && v.length === 0)));
  const { match: _, ...rest } = r;
  return Object.keys(match).length ? { match, ...rest } : rest;
}

/** retyped is a policy without the values that the API does not show: they are to be typed again. */
export const retyped = (p: Policy): Policy => ({
  ...p,
  ...(p.allow && {
    allow: p.allow.map((d) => ({
      ...d,
      ...(d.rules && { rules: d.rules.map((r) => (r.set_headers ? { ...r, set_headers: Object.fromEntries(Object.entries(r.set_headers).map(([k, v]) => [k, v === redacted ? '' : v])) } : r)) }),
    })),
  }),
});

/** clean is a policy without what is empty, so that the API does not take it for something. */
export function clean(p: Policy): Policy {
  const limits = Object.fromEntries(Object.entries(p.limits ?? {}).filter(([, v]) => v));
  return {
    mode: p.mode,
    ...(p.mode === 'custom' && {
      ...(p.allow?.length && { allow: p.allow.map(({ name, ports, rules }) => ({ name: name.trim(), ...(ports?.length && { ports }), ...(rules?.length && { rules }) })) }),
      ...(p.allow_cidrs?.length && { allow_cidrs: p.allow_cidrs }),
      ...(p.deny_cidrs?.length && { deny_cidrs: p.deny_cidrs }),
      ...(p.strict && { strict: true }),
    }),
    ...(p.handled?.length && { handled: p.handled }),
    ...(Object.keys(limits).length && { limits }),
  };
}

const matched = (r: Rule): string => {
  const m = r.match;
  const p = m?.path;
  return [
    m?.methods?.join(', '),
    p?.exact ?? (p?.prefix !== undefined ? `${p.prefix}…` : p?.regex !== undefined ? `/${p.regex}/` : ''),
    m?.query?.length && 'by query',
    m?.headers?.length && 'by headers',
  ]
    .filter(Boolean)
    .join(' ');
};

/** said is a rule in a few words. */
export function said(r: Rule): string {
  const what = {
    pass: () => 'pass',
    deny: () => 'refuse',
    respond: () => `answer ${r.respond!.status}`,
    forward: () => `send to ${r.forward_url}`,
    set: () => `set ${Object.keys(r.set_headers!).join(', ')}${r.scrub ? ', hidden in answers' : ''}`,
  }[actionOf(r)]();
  return `${matched(r) || 'every request'}: ${what}`;
}
