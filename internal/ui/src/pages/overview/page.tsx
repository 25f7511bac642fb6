// The first page: what needs somebody, how much there is of what, and what happened last.
import type { ComponentChildren } from 'preact';
import './overview.css';
import { Badge, Called, Code, Meter, Name, Time } from '../../components/show';
import { ErrorView, Loading } from '../../components/state';
import { Icon, type IconName } from '../../components/icons';
import { listed, listError, sandboxes, useGet, useSandboxes } from '../../live';
import { bytes, mebibytes } from '../../text';
import type { Identity, Sandbox } from '../../types';
import { count, dollars } from '../gateway/money';
import { CallBadge } from '../gateway/requests';
import { RunBadge } from '../workflow/views';
import { Attention } from './attention';
import { useCalls, useWorkflows } from './follow';
import { HostPanel, useHost } from './host';

const live = new Set(['pending', 'running', 'paused', 'stopping', 'resuming']);

export function Overview() {
  useSandboxes();
  const who = useGet<Identity>('/v1/whoami');
  const daemon = useGet<{ version: string }>('/v1/version');
  const host = useHost(!who.value?.token.admin);
  const workflows = useWorkflows();
  const calls = useCalls();
  const all = sandboxes.value;
  const known = listed.value && workflows.loaded && (calls.latest !== undefined || calls.none);
  const nothing = known && all.length === 0 && workflows.latest.length === 0 && !calls.latest?.length;
  return (
    <div class="page">
      <header class="page-head">
        <div>
          <h1>Overview</h1>
          {who.value && (
            <p class="dim">
              Team <Name>{who.value.team.name}</Name>
              {who.value.project && (
                <>
                  , project <Name>{who.value.project.name}</Name>
                </>
              )}
              {daemon.value && <span class="num">, cay {daemon.value.version}</span>}
            </p>
          )}
        </div>
      </header>
      {listError.value && !listed.value ? <ErrorView error={listError.value} /> : null}
      <Attention sandboxes={all} workflows={workflows} calls={calls} host={host} />
      {nothing ? <Begin /> : <Counts all={all} workflows={workflows} calls={calls} />}
      {host && <HostPanel of={host} />}
      {!nothing && <Latest all={all} workflows={workflows} calls={calls} />}
      <Quota all={all} who={who} />
    </div>
  );
}

type Parts = { all: readonly Sandbox[]; workflows: ReturnType<typeof useWorkflows>; calls: ReturnType<typeof useCalls> };

const list = (...parts: (string | false | 0 | undefined)[]): string => parts.filter(Boolean).join(', ');

function Counts({ all, workflows: w, calls: c }: Parts) {
  const of = (...statuses: string[]) => all.filter((s) => statuses.includes(s.status)).length;
  const asleep = all.filter((s) => s.status === 'hibernated' || s.status === 'paused' || (s.status === 'stopped' && s.persistent)).length;
  const busy = of('pending', 'resuming', 'stopping');
  const running = of('running');
  const open = w.open && (w.open.running?.count ?? 0) + (w.open.pending?.count ?? 0);
  const moreOpen = w.open?.running?.more || w.open?.pending?.more;
  const n = (status: 'completed' | 'failed') => w.today?.[status]?.count ?? 0;
  return (
    <section class="cards" aria-label="Counts">
      <Count name="Sandboxes running" n={listed.value ? running : undefined} href="/sandboxes?status=running" tone="good" note={list(busy && `${busy.toLocaleString()} starting or stopping`, `${asleep.toLocaleString()} asleep`)} />
      <Count
        name="Runs going on"
        n={open}
        more={moreOpen}
        href="/workflows?status=running"
        tone="good"
        note={w.today && `${list(`${n('completed').toLocaleString()} completed`, n('failed') && `${n('failed').toLocaleString()} failed`)} in 24 h`}
      />
      <Count name="Agents that wait" n={w.loaded ? w.approvals.length : undefined} href="/agents" tone="warn" note="for an approval" />
      {!c.none && (
        <Count
          name="Model calls in 24 h"
          n={c.today?.requests}
          href="/gateway"
          tone="plain"
          note={c.today && list(`${c.today.unpriced ? 'at least ' : ''}${dollars(c.today.cost)}`, c.today.failed && `${c.today.failed.toLocaleString()} failed`)}
        />
      )}
    </section>
  );
}

function Count({ name, n, more, href, tone, note }: { name: string; n?: number; more?: boolean; href: string; tone: string; note?: string }) {
  return (
    <a class={`card ${n ? tone : ''}`} href={href}>
      <span class="dim">{name}</span>
      <span class="card-n num">{n === undefined ? '–' : n.toLocaleString() + (more ? '+' : '')}</span>
      <span class="dim card-note num">{note ?? '\u00a0'}</span>
    </a>
  );
}

function Latest({ all, workflows: w, calls: c }: Parts) {
  return (
    <div class="columns overview-latest">
      <Panel title="Latest sandboxes" href="/sandboxes" items={listed.value ? all.slice(0, 6) : undefined} empty="No sandbox yet" command="cay sandbox create first" to={(s) => `/sandboxes/${encodeURIComponent(s.id)}`}>
        {(s) => (
          <>
            <Badge status={s.status} />
            <Name class="grow strong">{s.name}</Name>
            <span class="dim num">
              <Time at={s.created_at} />
            </span>
          </>
        )}
      </Panel>
      <Panel title="Latest workflow runs" href="/workflows" items={w.loaded ? w.latest : undefined} error={w.error} empty="No run yet" command="cay workflow start order 42" to={(r) => `/workflows/${encodeURIComponent(r.id)}`}>
        {(r) => (
          <>
            <RunBadge status={r.status} />
            {r.attributes?.['$agent'] ? <Name class="grow strong">{r.attributes['$agent']}</Name> : <Called class="grow strong">{r.workflow}</Called>}
            <span class="dim num">
              <Time at={r.created_at} />
            </span>
          </>
        )}
      </Panel>
      {!c.none && (
        <Panel title="Latest model calls" href="/gateway/requests" items={c.latest} empty="No call yet" command="cay gateway check" to={(r) => `/gateway/requests/${encodeURIComponent(r.id)}`}>
          {(r) => (
            <>
              <span class="brief" title={r.status}>
                <CallBadge call={r} />
              </span>
              <Name class="grow strong">{r.model}</Name>
              <span class="dim num" title={`${(r.tokens.input + r.tokens.output).toLocaleString()} tokens`}>
                {r.cost === null ? `${count(r.tokens.input + r.tokens.output)} tok` : dollars(r.cost)}
              </span>
              <span class="dim num">
                <Time at={r.created_at} />
              </span>
            </>
          )}
        </Panel>
      )}
    </div>
  );
}

interface PanelProps<T> {
  title: string;
  href: string;
  items?: readonly T[];
  error?: unknown;
  empty: string;
  command: string;
  to: (item: T) => string;
  children: (item: T) => ComponentChildren;
}

function Panel<T extends { id: string }>({ title, href, items, error, empty, command, to, children }: PanelProps<T>) {
  return (
    <section class="panel" aria-label={title}>
      <div class="panel-head">
        <h2>{title}</h2>
        <a class="dim all" href={href}>
          All
        </a>
      </div>
      {!items ? (
        error ? (
          <ErrorView error={error} />
        ) : (
          <Loading />
        )
      ) : items.length === 0 ? (
        <div class="overview-none">
          <p class="dim">{empty}</p>
          <Code>{command}</Code>
        </div>
      ) : (
        <ul class="lines">
          {items.map((i) => (
            <li key={i.id}>
              <a href={to(i)}>{children(i)}</a>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

const first: { icon: IconName; title: string; text: string; commands: string[]; href: string }[] = [
  { icon: 'sandbox', title: 'Start a sandbox', text: 'One isolated machine for code you do not trust, with files, terminals, ports and snapshots.', commands: ['cay sandbox create first', 'cay sandbox exec first -- uname -a'], href: '/sandboxes' },
  { icon: 'workflow', title: 'Run a workflow', text: 'Go code that goes on where it was, whatever crashes. A program of yours that has the workflow, as docs/workflow.md begins, runs what is started here.', commands: ['cay workflow start order 42', 'cay workflow list'], href: '/workflows' },
  { icon: 'gateway', title: 'Call a model', text: 'Every provider at one address, with keys, budgets and a record of each call.', commands: ['cay gateway check', 'cay gateway keys create mine'], href: '/gateway' },
  { icon: 'agent', title: 'Watch an agent', text: 'A model writes a program and its tests; both run in a sandbox, and what fails is mended.', commands: ['make demo'], href: '/agents' },
];

/** Begin is shown where there is nothing yet. */
function Begin() {
  return (
    <section class="begin" aria-label="Begin here">
      {first.map((f) => (
        <div class="panel" key={f.title}>
          <h2>
            <Icon name={f.icon} size={18} /> <a href={f.href}>{f.title}</a>
          </h2>
          <p class="dim">{f.text}</p>
          <div class="begin-commands">
            {f.commands.map((c) => (
              <Code key={c}>{c}</Code>
            ))}
          </div>
        </div>
      ))}
    </section>
  );
}

function Quota({ all, who }: { all: readonly Sandbox[]; who: { value?: Identity; error?: unknown; reload: () => void } }) {
  const quota = who.value?.team.quota;
  const up = all.filter((s) => live.has(s.status));
  const sum = (f: (s: Sandbox) => number) => up.reduce((n, s) => n + f(s), 0);
  if (!quota) return who.error ? <ErrorView error={who.error} retry={who.reload} /> : null;
  return (
    <section class="panel" aria-label="Taken of the quota">
      <div class="panel-head">
        <h2>Taken of the quota</h2>
        <span class="dim num">
          {bytes(all.reduce((n, s) => n + s.total.egress_bytes, 0))} sent, {bytes(all.reduce((n, s) => n + s.total.ingress_bytes, 0))} received by the sandboxes that are listed
        </span>
      </div>
      <div class="gauges">
        <Share label="Sandboxes" value={up.length} max={quota.sandboxes} show={String} />
        <Share label="vCPUs" value={sum((s) => s.vcpus)} max={quota.vcpus} show={(n) => String(Math.round(n * 10) / 10)} />
        <Share label="Memory" value={sum((s) => s.memory_mb)} max={quota.memory_mb} show={mebibytes} />
        <Share label="Disk" value={sum((s) => s.disk_mb)} max={quota.disk_mb} show={mebibytes} />
      </div>
    </section>
  );
}

/** Share is what is taken of a quota; 0 is none. */
function Share({ label, value, max, show }: { label: string; value: number; max: number; show: (n: number) => string }) {
  return <Meter label={label} value={value} max={max} text={max ? `${show(value)} of ${show(max)}` : `${show(value)}, no limit`} />;
}
