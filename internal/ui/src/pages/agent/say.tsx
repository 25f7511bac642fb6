// What a person or a model says.
import { visibleLines } from '../../text';
import { passages } from './fences';

/** Say shows a text. Code in it is set as code; open says that more of it comes. */
export function Say({ text, open }: { text: string; open?: boolean }) {
  const parts = passages(text);
  const plain = parts.length === 1 && !parts[0]!.code ? parts[0]! : undefined;
  return (
    <div class={`say${open ? ' open-end' : ''}`}>
      {plain ? visibleLines(plain.text) : parts.map((p, i) => (p.code ? <pre key={i} tabIndex={0}>{visibleLines(p.text)}</pre> : <div key={i}>{visibleLines(p.text)}</div>))}
    </div>
  );
}
