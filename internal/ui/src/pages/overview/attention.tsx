// What somebody should look at first.
import type { ComponentChildren } from 'preact';
import { Icon } from '../../components/icons';
import { Name } from '../../components/show';
import { bytes } from '../../text';
import type { Sandbox } from '../../types';
import { dollars } from '../gateway/money';
import type { Calls, Workflows } from './follow';
import type { Host } from './host';

interface Notice {
  id: string;
  bad: boolean;
  href?: string;
  text: ComponentChildren;
}

const many = (n: number, one: string, more: string, atLeast = false): string => `${n.toLocaleString()}${atLeast ? ' or more' : ''} ${n === 1 ? one : more}`;

/** full is from which part of a disk or of memory on there is little left, unless that is still much, in bytes. */
const full = 0.92;
const much = 10 * 1024 ** 3;

const isFull = (free: number, total: number): boolean => total > 0 && 1 - free / total > full && free < much;

function notices(sandboxes: readonly Sandbox[], workflows: Workflows, calls: Calls, host: Host | undefined): Notice[] {
  const out: Notice[] = [];
  if (host && isFull(host.disk_free_bytes, host.disk_total_bytes)) out.push({ id: 'disk', bad: true, text: `The disk is nearly full: ${bytes(host.disk_free_bytes)} of ${bytes(host.disk_total_bytes)} are left` });
  if (host && isFull(host.memory_available_bytes, host.memory_total_bytes)) out.push({ id: 'memory', bad: true, text: `Memory is nearly used up: ${bytes(host.memory_available_bytes)} of ${bytes(host.memory_total_bytes)} are left` });
  const [first, ...others] = workflows.approvals;
  if (first) out.push({ id: 'approvals', bad: false, href: others.length ? '/agents' : `/agents/${encodeURIComponent(first)}`, text: `${many(others.length + 1, 'agent waits', 'agents wait')} for an approval` });
  const failed = workflows.today?.failed;
  if (failed?.count) out.push({ id: 'runs', bad: true, href: '/workflows?status=failed&time=24h', text: `${many(failed.count, 'workflow run', 'workflow runs', failed.more)} of the last 24 hours failed` });
  const broken = sandboxes.filter((s) => s.status === 'failed');
  const [one] = broken;
  if (one) {
    out.push({
      id: 'sandboxes',
      bad: true,
      href: broken.length > 1 ? '/sandboxes?status=failed' : `/sandboxes/${encodeURIComponent(one.id)}`,
      text:
        broken.length > 1 ? (
          `${many(broken.length, '', 'sandboxes')} failed`
        ) : (
          <>
            Sandbox <Name class="strong">{one.name}</Name> failed{one.message && <>: <Name>{one.message}</Name></>}
          </>
        ),
    });
  }
  for (const b of calls.full.slice(0, 3)) {
    const left = Math.max(0, Number(b.limit) - Number(b.spent) - Number(b.held));
    out.push({
      id: `budget ${b.scope} ${b.ref ?? ''}`,
      bad: left === 0,
      href: '/gateway/budgets',
      text: (
        <>
          The budget of {b.ref ? <>{b.scope} <Name class="strong">{b.ref}</Name></> : b.scope === 'team' ? 'the team' : `each ${b.scope}`} {left > 0 ? `has ${dollars(left)} of ${dollars(b.limit)} left` : `of ${dollars(b.limit)} is spent`}
        </>
      ),
    });
  }
  if (calls.full.length > 3) out.push({ id: 'budgets', bad: false, href: '/gateway/budgets', text: `${many(calls.full.length - 3, 'other budget is', 'other budgets are')} near its end` });
  if (calls.today?.failed) out.push({ id: 'calls', bad: false, href: '/gateway/requests?status=failed', text: `${many(calls.today.failed, 'model call', 'model calls')} of the last 24 hours failed` });
  return out;
}

/** Attention lists it, if there is anything. */
export function Attention({ sandboxes, workflows, calls, host }: { sandboxes: readonly Sandbox[]; workflows: Workflows; calls: Calls; host?: Host }) {
  const all = notices(sandboxes, workflows, calls, host);
  if (all.length === 0) return null;
  return (
    <section class="panel attention" aria-label="Needs attention">
      <h2>Needs attention</h2>
      <ul class="lines">
        {all.map((n) => {
          const inner = (
            <>
              <i class={n.bad ? 'bad' : 'warn'} aria-hidden="true" />
              <span class="grow">{n.text}</span>
              {n.href && <Icon name="next" size={14} />}
            </>
          );
          return <li key={n.id}>{n.href ? <a href={n.href}>{inner}</a> : <span class="line">{inner}</span>}</li>;
        })}
      </ul>
    </section>
  );
}
