// A terminal in the page. xterm.js is fetched when the first one is shown.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, call, openTerminal, path } from '../api';
import { theme } from '../theme';
import type { Command } from '../types';

type State = 'connecting' | 'open' | 'waiting' | 'exited' | 'failed';

/** withNonce runs f, and gives the style elements it makes the nonce that the page's policy lets pass: xterm knows of none. */
function withNonce(f: () => void): void {
  const nonce = document.querySelector<HTMLMetaElement>('meta[name=style-nonce]')?.content ?? '';
  const real = document.createElement.bind(document);
  document.createElement = ((tag: string, options?: ElementCreationOptions) => {
    const e = real(tag, options);
    if (tag === 'style') e.nonce = nonce;
    return e;
  }) as typeof document.createElement;
  try {
    f();
  } finally {
    Reflect.deleteProperty(document, 'createElement');
  }
}

/** light are the sixteen colours as they can be read on white. */
const light = {
  black: '#24292f', red: '#c4302b', green: '#116329', yellow: '#8a5a00', blue: '#0b5cad', magenta: '#8a3fa0', cyan: '#1b7c83', white: '#6e7781',
  brightBlack: '#57606a', brightRed: '#a40e26', brightGreen: '#0f7a3a', brightYellow: '#7a4b00', brightBlue: '#1a6fd4', brightMagenta: '#a05bb5', brightCyan: '#2a8f99', brightWhite: '#8c959f',
};

interface Props {
  sandbox: string;
  command: string;
  /** says what it is doing, for what is around it */
  onState?: (s: State, note: string) => void;
}

/** Terminal shows a command's terminal, from its beginning, and takes it up again when the connection breaks. */
export function Terminal({ sandbox, command, onState }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [state, setState] = useState<State>('connecting');
  useEffect(() => {
    let over = false;
    let socket: WebSocket | undefined;
    let timer = 0;
    let dispose = () => {};
    const say = (s: State, note = '') => {
      setState(s);
      onState?.(s, note);
    };
    void (async () => {
      const [{ Terminal: X }, { FitAddon }] = await Promise.all([import('@xterm/xterm'), import('@xterm/addon-fit'), import('@xterm/xterm/css/xterm.css')]);
      if (over || !box.current) return;
      const css = getComputedStyle(document.documentElement);
      const colour = (name: string) => css.getPropertyValue(name).trim();
      const term = new X({
        fontFamily: 'ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace',
        fontSize: 13,
        cursorBlink: true,
        scrollback: 5000,
        minimumContrastRatio: 4.5,
        allowProposedApi: false,
        windowOptions: {},
        linkHandler: { activate: () => {} },
        theme: { background: colour('--term'), foreground: colour('--term-text'), cursor: colour('--term-text'), selectionBackground: '#4f5bd566', ...(theme.value === 'light' && light) },
      });
      // What programs may not do to the page, or have it say to them: titles, links, colours of
      // the theme, the clipboard, files.
      for (const osc of [0, 1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 50, 52, 104, 110, 111, 112, 133, 633, 777, 1337]) term.parser.registerOscHandler(osc, () => true);
      term.parser.registerCsiHandler({ final: 't' }, () => true);
      const fit = new FitAddon();
      term.loadAddon(fit);
      const el = box.current;
      withNonce(() => term.open(el));
      fit.fit();
      let cursor = 0;
      let failed = 0;
      let ended = false;
      const resize = () => {
        fit.fit();
        if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ resize: { cols: term.cols, rows: term.rows } }));
      };
      const observer = new ResizeObserver(resize);
      observer.observe(box.current);
      const encoder = new TextEncoder();
      term.onData((d) => socket?.readyState === WebSocket.OPEN && socket.send(encoder.encode(d)));
      term.onBinary((d) => socket?.readyState === WebSocket.OPEN && socket.send(Uint8Array.from(d, (c) => c.charCodeAt(0))));

      const connect = () => {
        say(failed ? 'waiting' : 'connecting');
        socket = openTerminal(sandbox, command, cursor);
        socket.onopen = () => {
          failed = 0;
          say('open');
          resize();
          term.focus();
        };
        socket.onmessage = (e) => {
          if (typeof e.data !== 'string') {
            const data = new Uint8Array(e.data as ArrayBuffer);
            cursor += data.length;
            term.write(data);
            return;
          }
          const m = JSON.parse(e.data) as { exit?: { code: number }; truncated?: { cursor: number }; error?: { message: string } };
          if (m.truncated) cursor = m.truncated.cursor;
          if (m.exit) {
            ended = true;
            say('exited', `exit ${m.exit.code}`);
          }
          if (m.error) {
            ended = true;
            say('failed', m.error.message);
          }
        };
        socket.onclose = async () => {
          if (over || ended) return;
          say('waiting');
          // A WebSocket does not tell why it was refused: the command does.
          try {
            await call<Command>('GET', path('sandboxes', sandbox, 'commands', command));
          } catch (e) {
            if (over) return;
            if (e instanceof ApiError && e.code !== 'unavailable' && e.code !== 'conflict') {
              say('failed', e.message);
              return;
            }
          }
          if (!over) timer = window.setTimeout(connect, Math.min(10_000, 400 * 2 ** failed++));
        };
      };
      connect();
      dispose = () => {
        observer.disconnect();
        term.dispose();
      };
    })();
    return () => {
      over = true;
      window.clearTimeout(timer);
      socket?.close();
      dispose();
    };
  }, [sandbox, command, theme.value]);
  return <div class="term-box" ref={box} data-state={state} />;
}
