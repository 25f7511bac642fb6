// Values of workflows, and errors, as text: who wrote them is not trusted.
import type { ComponentChildren } from 'preact';
import { ApiError } from '../../api';
import { Icon } from '../../components/icons';
import { JSONView } from '../../components/show';
import { complain, toast } from '../../components/toast';
import { Exact, written } from '../../json';
import { bytes, visible, visibleLines } from '../../text';
import { position } from './stack';
import type { Payload } from './types';

/** Copy puts text into the clipboard. */
export function Copy({ text, children, label }: { text: () => string | Promise<string>; children?: ComponentChildren; label: string }) {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(await text());
      toast('Copied');
    } catch (e) {
      if (e instanceof ApiError) complain(e);
      else toast('The browser does not let this page copy', 'bad');
    }
  };
  return (
    <button class="ghost tiny" onClick={copy} aria-label={label} title={label}>
      <Icon name="copy" size={12} /> {children}
    </button>
  );
}

/** decoded is what a payload of bytes says, and whether that is text. */
export function decoded(base64: string): { text: string; size: number; isText: boolean } {
  const raw = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  try {
    return { text: new TextDecoder('utf-8', { fatal: true }).decode(raw), size: raw.length, isText: true };
  } catch {
    return { text: new TextDecoder().decode(raw), size: raw.length, isText: false };
  }
}

/** textOf is a payload on one line, cut off after some hundred characters. */
export function textOf(p: Payload, most = 300): string {
  if (!p) return '';
  if ('base64' in p) {
    const d = decoded(p.base64.slice(0, most * 4));
    return p.base64.startsWith('ZW5jc') ? 'sealed' : d.isText ? visible(d.text.slice(0, most)) : `${bytes(Math.floor(p.base64.length * 0.75))} that are not text`;
  }
  const text = written(p.json) ?? '';
  return visible(text.length > most ? text.slice(0, most) + '…' : text);
}

/** longest is how much of a text is shown: what is more would make the page slow. */
const longest = 200_000;

/** Value shows a payload. */
export function Value({ of }: { of: Payload }) {
  if (!of) return <span class="dim">none</span>;
  if ('json' in of) {
    if (typeof of.json === 'string' && (of.json.length > 80 || of.json.includes('\n'))) return <Text>{of.json}</Text>;
    return <JSONView value={of.json} />;
  }
  if (of.base64.startsWith('ZW5jc')) return <span class="dim">Sealed: only programs with its key can read it.</span>; // begins with "encr"
  const d = decoded(of.base64);
  return d.isText ? <Text>{d.text}</Text> : <span class="dim">{bytes(d.size)} that are not text</span>;
}

/** Text is text of several lines. */
export function Text({ children, wrap = true }: { children: string; wrap?: boolean }) {
  const cut = children.length > longest;
  return (
    <>
      <pre class={`wf-text${wrap ? '' : ' long'}`} tabIndex={0}>
        {visibleLines(cut ? children.slice(0, longest) : children)}
      </pre>
      {cut && <p class="dim">and {(children.length - longest).toLocaleString()} characters more</p>}
    </>
  );
}

/** What is known of an error, whichever SDK has written it. */
interface Recorded {
  type?: string;
  name?: string;
  message?: string;
  code?: string;
  hint?: string;
  stack?: string;
  data?: { stack?: string; [more: string]: unknown };
  causes?: Recorded[];
  cause?: unknown;
}

const words = (e: unknown): Recorded => (e && typeof e === 'object' && !Array.isArray(e) && !(e instanceof Exact) ? (e as Recorded) : { message: text(e) });
const text = (v: unknown): string => (typeof v === 'string' ? v : v === undefined || v === null ? '' : (written(v) ?? ''));

/** causesOf are what an error wrapped. */
const causesOf = (e: Recorded): Recorded[] => (Array.isArray(e.causes) ? e.causes.map(words) : e.cause ? [words(e.cause)] : []);

/** stackOf is the stack of an error, or of one of its causes. */
function stackOf(e: Recorded, depth = 0): string {
  const own = text(e.stack) || text(e.data?.stack);
  if (own || depth > 8) return own;
  for (const c of causesOf(e)) {
    const s = stackOf(c, depth + 1);
    if (s) return s;
  }
  return '';
}

/** messageOf is what an error says, on one line. */
export function messageOf(p: Payload): string {
  if (!p || !('json' in p)) return p ? textOf(p) : '';
  const e = words(p.json);
  return visible(text(e.message).slice(0, 500));
}

/** Failure shows an error: what it says, its causes, where in the code it was, and its stack. */
export function Failure({ of, code }: { of: Payload; code?: string }) {
  if (!of) return code ? <p class="wrong">{visible(code)}</p> : null;
  if (!('json' in of)) return <Value of={of} />;
  const e = words(of.json);
  const stack = stackOf(e);
  const at = stack && position(stack);
  return (
    <div class="wf-failure">
      <div class="wrong" role="alert">
        <strong>{visibleLines(text(e.message).slice(0, longest))}</strong>
        <span>
          {visible([text(e.type) || text(e.name), text(e.code), code].filter(Boolean).join(' · '))}
          {e.hint && ` · ${visible(text(e.hint))}`}
        </span>
      </div>
      <Causes of={causesOf(e)} said={text(e.message)} />
      {at && (
        <p class="wf-position">
          at <code>{visible(at)}</code> <Copy text={() => at} label="Copy the position" />
        </p>
      )}
      {stack && (
        <details open>
          <summary class="dim">Stack</summary>
          <Text wrap={false}>{stack}</Text>
        </details>
      )}
    </div>
  );
}

/** Causes are shown if they say more than the error they are of. */
function Causes({ of, said, depth = 0 }: { of: Recorded[]; said: string; depth?: number }) {
  if (depth > 8) return null;
  return (
    <>
      {of.slice(0, 20).map((c, i) => {
        const message = text(c.message);
        return (
          <div key={i} class="wf-cause">
            {(message !== said || depth > 0) && (
              <span>
                <span class="dim">{visible(text(c.type) || text(c.name) || 'cause')}</span> {visibleLines(message.slice(0, 2000))}
              </span>
            )}
            <Causes of={causesOf(c)} said={message} depth={depth + 1} />
          </div>
        );
      })}
    </>
  );
}
