// Labels of the spans of a timeline, and the purposes of waits. Workflows of the Go SDK name a wait by its kind and a number, such as wait_receive.1.
import { functionOf } from '../../text';
import type { Span } from './types';

type Kind = 'sleep' | 'after' | 'timeout' | 'receive';

/** kindOf is what kind of wait an id names; undefined of other spans, and of waits that other SDKs name. */
function kindOf(s: Pick<Span, 'kind' | 'id'>): Kind | undefined {
  return s.kind === 'wait' ? (/(?:^wait_|\/)(sleep|after|timeout|receive)\.\d+$/.exec(s.id)?.[1] as Kind | undefined) : undefined;
}

/** hookOf is the hook that a wait is a timeout of: the log does not say, so undefined where more than one was open when the wait began. */
function hookOf(s: Span, spans: readonly Span[]): Span | undefined {
  const open = spans.filter((h) => h.kind === 'hook' && h.status !== 'conflict' && h.slot < s.slot && !(h.ends_at && Date.parse(h.ends_at) < Date.parse(s.begins_at)));
  return open.length === 1 ? open[0] : undefined;
}

const nameOf = (hook: Span): string => (!hook.webhook && hook.token) || hook.id;

/** labelOf is what the row of a span is called: a name, a hook's token, or an id without its kind. */
export function labelOf(s: Span, spans: readonly Span[]): string {
  if (s.name) return functionOf(s.name);
  if (s.kind === 'hook' && !s.webhook && s.token) return s.token;
  if (kindOf(s) === 'receive') {
    const hook = hookOf(s, spans);
    return `timeout of ${hook ? nameOf(hook) : 'a hook'}`;
  }
  return s.id.startsWith(s.kind + '_') ? s.id.slice(s.kind.length + 1) : s.id;
}

/** purposeOf is a sentence on what a wait is for; '' if its id does not say. */
export function purposeOf(s: Span, spans: readonly Span[]): string {
  switch (kindOf(s)) {
    case 'receive': {
      const hook = hookOf(s, spans);
      return `How long the code waits for a value of ${hook ? 'the hook ' + nameOf(hook) : 'a hook'}.`;
    }
    case 'timeout':
      return 'The timeout of a part of the code.';
    case 'after':
      return 'A timer that the code started.';
    case 'sleep':
      return 'The code sleeps.';
    default:
      return '';
  }
}
