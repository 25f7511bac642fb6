// How values are shown, the same everywhere.
import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { Exact } from '../json';
import { now } from '../live';
import { ago, bytes, duration, functionOf, visible, visibleLines } from '../text';
import type { Status } from '../types';
import { Icon } from './icons';
import { toast } from './toast';

const tones: Record<string, string> = {
  running: 'good',
  completed: 'good',
  succeeded: 'good',
  allowed: 'good',
  pending: 'busy',
  resuming: 'busy',
  stopping: 'busy',
  paused: 'warn',
  hibernated: 'warn',
  failed: 'bad',
  denied: 'bad',
  stopped: 'idle',
};

/** Badge shows a status: its colour says how things are, its word which it is. */
export function Badge({ status, children }: { status: Status | string; children?: ComponentChildren }) {
  return (
    <span class={`badge ${tones[status] ?? 'idle'}`}>
      <i aria-hidden="true" />
      {children ?? status}
    </span>
  );
}

/** Time says how long ago something was, and when exactly when it is pointed at. */
export function Time({ at }: { at?: string | number }) {
  if (!at) return <span class="dim">–</span>;
  const t = new Date(at);
  return (
    <time dateTime={t.toISOString()} title={t.toLocaleString(undefined, { dateStyle: 'full', timeStyle: 'long' })}>
      {ago(t.getTime(), now.value)}
    </time>
  );
}

export function Bytes({ of }: { of: number }) {
  return <span title={`${of.toLocaleString()} bytes`}>{bytes(of)}</span>;
}

export function Duration({ ms }: { ms: number }) {
  return <span title={`${ms.toLocaleString()} ms`}>{duration(ms)}</span>;
}

/** Name is text that others chose. whole is what it is a part of. */
export function Name({ children, class: c, whole }: { children?: string; class?: string; whole?: string }) {
  const text = visible(children ?? '');
  const title = visible(whole ?? children ?? '');
  return (
    <bdi class={c} title={title.length > 24 || title !== text ? title : undefined}>
      {text}
    </bdi>
  );
}

/** Called is the name of a workflow or a step. */
export function Called({ children, class: c }: { children?: string; class?: string }) {
  return (
    <Name class={c} whole={children}>
      {functionOf(children ?? '')}
    </Name>
  );
}

/** Code is an id or a path, which can be copied. */
export function Code({ children, short }: { children: string; short?: boolean }) {
  const [done, set] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(children);
      set(true);
      window.setTimeout(() => set(false), 1200);
    } catch {
      toast('The browser does not let this page copy', 'bad');
    }
  };
  return (
    <span class="code">
      <code title={children}>{short && children.length > 28 ? visible(children.slice(0, 26)) + '…' : visible(children)}</code>
      <button class="ghost tiny" onClick={copy} aria-label={`Copy ${children}`} title="Copy">
        {done ? '✓' : <Icon name="copy" size={12} />}
      </button>
    </span>
  );
}

/** Facts is a list of names and values. */
export function Facts({ of }: { of: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {of
        .filter(([, v]) => v !== undefined && v !== null && v !== '')
        .map(([k, v]) => (
          <div key={k}>
            <dt>{k}</dt>
            <dd>{v}</dd>
          </div>
        ))}
    </dl>
  );
}

/** Meter shows a part of a whole. */
export function Meter({ value, max, label, text }: { value: number; max: number; label: string; text: string }) {
  const part = max > 0 ? Math.min(1, value / max) : 0;
  return (
    <div class="meter" role="meter" aria-label={label} aria-valuenow={value} aria-valuemin={0} aria-valuemax={max} aria-valuetext={text}>
      <div class="meter-head">
        <span>{label}</span>
        <span class="num">{text}</span>
      </div>
      {max > 0 && (
        <div class="meter-bar">
          {part > 0 && <div class={part > 0.9 ? 'bad' : part > 0.75 ? 'warn' : ''} style={{ width: `${part * 100}%` }} />}
        </div>
      )}
    </div>
  );
}

/** JSONView shows a value with its parts folded, and texts of several lines as such. */
export function JSONView({ value, name, depth = 0 }: { value: unknown; name?: string; depth?: number }) {
  const key = name !== undefined && <span class="json-key">{visible(name)}: </span>;
  if (value === null || typeof value !== 'object' || value instanceof Exact) {
    const kind = value === null ? 'null' : value instanceof Exact ? 'number' : typeof value;
    return (
      <div class="json-leaf">
        {key}
        {typeof value === 'string' && value.trimEnd().includes('\n') ? (
          <pre class="json-text">{visibleLines(value)}</pre>
        ) : (
          <span class={`json-${kind}`}>{typeof value === 'string' ? visible(JSON.stringify(value)) : String(value)}</span>
        )}
      </div>
    );
  }
  const list = Array.isArray(value);
  const entries = Object.entries(value as object);
  if (entries.length === 0)
    return (
      <div class="json-leaf">
        {key}
        <span class="dim">{list ? '[]' : '{}'}</span>
      </div>
    );
  return (
    <details class="json" open={depth < 4}>
      <summary>
        {key}
        <span class="dim">{list ? `[${entries.length}]` : `{${entries.length}}`}</span>
      </summary>
      {entries.slice(0, 500).map(([k, v]) => (
        <JSONView key={k} name={list ? undefined : k} value={v} depth={depth + 1} />
      ))}
      {entries.length > 500 && <div class="dim">and {entries.length - 500} more</div>}
    </details>
  );
}
