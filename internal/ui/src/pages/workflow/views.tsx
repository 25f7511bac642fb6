// What lists and pages of workflows have in common.
import type { ComponentChildren } from 'preact';
import { Badge, Name } from '../../components/show';
import type { Run } from './types';

const views = [
  { path: '/workflows', name: 'Runs' },
  { path: '/workflows/hooks', name: 'Waiting hooks' },
  { path: '/workflows/schedules', name: 'Schedules' },
];

/** Views are links to the lists; at is the one that is shown. */
export function Views({ at }: { at: string }) {
  return (
    <nav class="wf-views" aria-label="Lists of workflows">
      {views.map((v) => (
        <a key={v.path} href={v.path} aria-current={v.path === at ? 'page' : undefined}>
          {v.name}
        </a>
      ))}
    </nav>
  );
}

/** Live says whether what is shown changes by itself. */
export function Live({ on }: { on: boolean }) {
  return on ? <span class="dim live">live</span> : <span class="warn-text">not connected, may be old</span>;
}

const tones: Record<string, string> = { running: 'pending', open: 'pending', pending: 'stopped', cancelled: 'stopped', abandoned: 'stopped', disposed: 'stopped', marked: 'stopped', conflict: 'failed' };

/** RunBadge is how far a run, or a part of one, has come: what goes on has another colour than what is done. */
export function RunBadge({ status, children }: { status: string; children?: ComponentChildren }) {
  return <Badge status={tones[status] ?? status}>{children ?? (status === 'abandoned' ? 'ended with the run' : status)}</Badge>;
}

/** Why says why a run has failed or was cancelled, as far as lists know. */
export function Why({ run: r }: { run: Run }) {
  const why = r.status === 'failed' ? (r.error_code ?? 'failed') : r.status === 'cancelled' ? r.cancel_reason : undefined;
  return why ? <Name class={r.status === 'failed' ? 'bad-text' : 'dim'}>{why}</Name> : null;
}
