// Code in what models say: what stands between fences of Markdown. All else of Markdown stays the text it is.

export interface Passage {
  text: string;
  code: boolean;
}

const fence = /^ {0,3}(`{3,}|~{3,})([^\n]*)$/;

/** passages are the parts of a text that are code, without their fences, and those that are none. A fence that has not ended yet, as while words come, is code to its end. */
export function passages(text: string): Passage[] {
  if (!text.includes('```') && !text.includes('~~~')) return [{ text, code: false }];
  const all: Passage[] = [];
  let lines: string[] = [];
  let open = ''; // the fence that began the code
  const end = (code: boolean) => {
    if (lines.length > 0) all.push({ text: lines.join('\n'), code });
    lines = [];
  };
  for (const line of text.split('\n')) {
    const [, mark = '', info = ''] = fence.exec(line.replace(/\r$/, '')) ?? [];
    if (open) {
      if (mark.startsWith(open) && info.trim() === '') {
        end(true);
        open = '';
      } else lines.push(line);
    } else if (mark && !(mark.startsWith('`') && info.includes('`'))) {
      end(false);
      open = mark;
    } else lines.push(line);
  }
  end(open !== '');
  return all.filter((p) => p.code || p.text.trim() !== '').map((p) => (p.code ? p : { ...p, text: p.text.replace(/^\n+|\n+$/g, '') }));
}
