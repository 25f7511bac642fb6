// Output of programs as runs of styled text. Of what a terminal would do, colours are kept, and
// all else of escape sequences is left out: titles, links, the clipboard, moving about, questions.
//
// What comes is read character by character, with little that is remembered from one to the next, so that it
// makes no difference in what pieces it comes, and nothing hostile takes more time or memory than it is long.

export interface Run {
  text: string;
  style: string; // class names
}

interface Pen {
  fg: number;
  bold: boolean;
  dim: boolean;
  under: boolean;
}

const plain: Pen = { fg: -1, bold: false, dim: false, under: false };

/** longest is how many characters of a sequence are left out. One that goes on is over then, and what follows is text. */
export const longest = 4096;

/** widest is how many characters of a line are kept. */
export const widest = 4000;

/** parameters is how many characters the parameters of a colour may have. */
const parameters = 256;

const control = /[\0-\x1f\x7f-\x9f]/g;

/** State is within what a character is read. */
enum State {
  Text,
  Escape, // ESC
  Charset, // ESC and what comes before its last character
  Control, // CSI
  String, // OSC, DCS and the like: up to BEL or ST
  StringEscape, // ESC within one of them
}

/** Ansi turns what comes, in pieces, into lines. */
export class Ansi {
  private pen = { ...plain };
  private state: State = State.Text;
  private count = 0; // characters of the sequence
  private params = ''; // of CSI
  private line: Run[] = [];
  private width = 0; // of the line
  private lost = 0; // characters of the line that were not kept
  private returned = false; // the line is begun anew by what comes next

  /** feed returns the lines that are complete. */
  feed(s: string): Run[][] {
    const lines: Run[][] = [];
    let from = 0; // of text that was not put yet
    for (let i = 0; i < s.length; i++) {
      if (this.state === State.Text) {
        control.lastIndex = i;
        const found = control.exec(s);
        if (!found) break;
        i = found.index;
      }
      const c = s.charCodeAt(i);
      if (this.state !== State.Text) {
        // A character that breaks a sequence off is read once more, as text.
        if (!this.within(c)) i--;
        from = i + 1;
        continue;
      }
      this.put(s.slice(from, i));
      from = i + 1;
      if (c === 0x1b) this.begin(State.Escape);
      else if (c === 0x9b) this.begin(State.Control);
      else if (c === 0x90 || c === 0x98 || c === 0x9d || c === 0x9e || c === 0x9f) this.begin(State.String);
      else if (c === 0x0a) lines.push(this.end());
      else if (c === 0x0d) this.returned = true;
      else if (c === 0x09) this.put('\t');
    }
    if (this.state === State.Text) this.put(s.slice(from));
    return lines;
  }

  /** rest is the line that is not complete. */
  rest(): Run[] {
    return this.lost ? [...this.line, this.gap()] : this.line;
  }

  private gap(): Run {
    return { text: ` … and ${this.lost} characters more`, style: 'dim' };
  }

  private end(): Run[] {
    const line = this.rest();
    this.line = [];
    this.width = this.lost = 0;
    this.returned = false;
    return line;
  }

  private put(text: string): void {
    if (!text) return;
    if (this.returned) {
      this.line = [];
      this.width = this.lost = 0;
      this.returned = false;
    }
    const room = widest - this.width;
    if (text.length > room) {
      this.lost += text.length - room;
      text = text.slice(0, room);
    }
    if (!text) return;
    this.width += text.length;
    const { fg, bold, dim, under } = this.pen;
    const style = [fg >= 0 && `fg${fg}`, bold && 'bold', dim && 'dim', under && 'under'].filter(Boolean).join(' ');
    const last = this.line.at(-1);
    if (last && last.style === style) last.text += text;
    else this.line.push({ text, style });
  }

  private begin(state: State): void {
    this.state = state;
    this.count = 0;
    this.params = '';
  }

  /** within reads a character of a sequence. It returns false for one that is none of it. */
  private within(c: number): boolean {
    if (++this.count > longest) {
      this.state = State.Text;
      return false;
    }
    switch (this.state) {
      case State.Escape:
        if (c === 0x5b) this.state = State.Control;
        else if (c === 0x5d || c === 0x50 || c === 0x58 || c === 0x5e || c === 0x5f) this.state = State.String;
        else if (c >= 0x20 && c <= 0x2f) this.state = State.Charset;
        else {
          this.state = State.Text;
          return c >= 0x30 && c <= 0x7e;
        }
        return true;
      case State.Charset:
        if (c >= 0x20 && c <= 0x2f) return true;
        this.state = State.Text;
        return c >= 0x30 && c <= 0x7e;
      case State.Control:
        if (c >= 0x20 && c <= 0x3f) {
          if (this.params.length <= parameters) this.params += String.fromCharCode(c);
          return true;
        }
        this.state = State.Text;
        if (c === 0x6d) this.colour(this.params);
        return c >= 0x40 && c <= 0x7e;
      case State.StringEscape:
        if (c === 0x5c) {
          this.state = State.Text;
          return true;
        }
        // It was the beginning of another one.
        this.begin(State.Escape);
        return this.within(c);
      default:
        if (c === 0x1b) this.state = State.StringEscape;
        else if (c === 0x07 || c === 0x9c || c === 0x18 || c === 0x1a) this.state = State.Text;
        return true;
    }
  }

  private colour(params: string): void {
    if (params.length > parameters || /[^0-9;:]/.test(params)) return;
    const p = params.split(';').map((x) => parseInt(x || '0', 10));
    for (let i = 0; i < p.length; i++) {
      const n = p[i]!;
      if (n === 0) this.pen = { ...plain };
      else if (n === 1) this.pen.bold = true;
      else if (n === 2) this.pen.dim = true;
      else if (n === 4) this.pen.under = true;
      else if (n === 22) this.pen.bold = this.pen.dim = false;
      else if (n === 24) this.pen.under = false;
      else if (n >= 30 && n <= 37) this.pen.fg = n - 30;
      else if (n >= 90 && n <= 97) this.pen.fg = n - 82;
      else if (n === 39) this.pen.fg = -1;
      else if (n === 38 || n === 48) {
        const five = p[i + 1] === 5;
        if (n === 38) this.pen.fg = five && p[i + 2]! < 16 ? p[i + 2]! : -1;
        i += five ? 2 : 4;
      }
    }
  }
}
