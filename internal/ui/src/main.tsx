// The frame of the app: what is around every page, and which page there is.
import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { loggedIn, logOut } from './api';
import { Asking } from './components/dialog';
import { Icon, type IconName } from './components/icons';
import { KeysDialog } from './components/keys';
import { isTyping } from './components/table';
import { complain, Toasts } from './components/toast';
import { Empty } from './components/state';
import { connected } from './live';
import { Agents } from './pages/agent/page';
import { Gateway } from './pages/gateway/page';
import { Login } from './pages/login';
import { Overview } from './pages/overview/page';
import { SandboxPage } from './pages/sandbox/page';
import { Sandboxes } from './pages/sandboxes';
import { Workflows } from './pages/workflow/page';
import { followLinks, go, place } from './router';
import './style.css';
import { choice, choose, type Choice } from './theme';

/** To add a page: put it into pages, and a line here. key is what follows g. */
const pages: { path: string; name: string; icon: IconName; key: string; title: string }[] = [
  { path: '/', name: 'Overview', icon: 'overview', key: 'o', title: 'Overview' },
  { path: '/sandboxes', name: 'Sandboxes', icon: 'sandbox', key: 's', title: 'Sandboxes' },
  { path: '/workflows', name: 'Workflows', icon: 'workflow', key: 'w', title: 'Workflow runs' },
  { path: '/gateway', name: 'Gateway', icon: 'gateway', key: 'g', title: 'AI gateway' },
  { path: '/agents', name: 'Agents', icon: 'agent', key: 'a', title: 'Agents' },
];

/** decoded is a part of a path; one that is malformed is left as it is. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function Page() {
  const { path } = place.value;
  const [first, second, ...more] = path.split('/').slice(1).map(decoded);
  if (!first) return <Overview />;
  if (first === 'sandboxes' && !second) return <Sandboxes />;
  if (first === 'sandboxes' && second && more.length === 0) return <SandboxPage key={second} id={second} />;
  if (first === 'workflows' && more.length === 0) return <Workflows view={second} />;
  if (first === 'gateway' && more.length <= 1) return <Gateway view={second} item={more[0]} />;
  if (first === 'agents' && more.length === 0) return <Agents run={second} />;
  return (
    <Empty title="There is no such page">
      <a href="/">Go to the overview</a>
    </Empty>
  );
}

function Rail({ onHelp }: { onHelp: () => void }) {
  const { path } = place.value;
  return (
    <nav class="rail" aria-label="Pages">
      <a class="brand" href="/" aria-label="cay, overview">
        <svg width="22" height="22" viewBox="0 0 32 32" aria-hidden="true">
          <rect width="32" height="32" rx="8" fill="var(--accent)" />
          <path d="M22 11.2A8 8 0 1 0 22 20.8" fill="none" stroke="#fff" stroke-width="3.600" stroke-linecap="round" />
          <circle cx="16" cy="16" r="2.600" fill="#fff" />
        </svg>
        <span>cay</span>
      </a>
      {pages.map((p) => (
        <a key={p.path} href={p.path} class="rail-item" aria-current={(p.path === '/' ? path === '/' : path.startsWith(p.path)) ? 'page' : undefined} title={`${p.title} (g ${p.key})`}>
          <Icon name={p.icon} size={18} />
          <span>{p.name}</span>
        </a>
      ))}
      <div class="rail-space" />
      {!connected.value && (
        <div class="rail-note" role="status">
          <span class="spinner" aria-hidden="true" />
          <span>Reconnecting</span>
        </div>
      )}
      <ThemeButton />
      <button class="rail-item help" onClick={onHelp} title="Keys (?)">
        <Icon name="help" size={18} />
        <span>Keys</span>
      </button>
      <button class="rail-item" onClick={() => logOut().catch(complain)} title="Log out">
        <Icon name="leave" size={18} />
        <span>Log out</span>
      </button>
    </nav>
  );
}

const themes: { choice: Choice; icon: IconName; name: string }[] = [
  { choice: 'auto', icon: 'auto', name: 'System theme' },
  { choice: 'dark', icon: 'moon', name: 'Dark theme' },
  { choice: 'light', icon: 'sun', name: 'Light theme' },
];

function ThemeButton() {
  const at = themes.findIndex((t) => t.choice === choice.value);
  const t = themes[at]!;
  const next = themes[(at + 1) % themes.length]!;
  return (
    <button class="rail-item" onClick={() => choose(next.choice)} title={`${t.name}; change to ${next.name.toLowerCase()}`}>
      <Icon name={t.icon} size={18} />
      <span>{t.name}</span>
    </button>
  );
}

function App() {
  const [help, setHelp] = useState(false);
  useEffect(() => {
    let g = 0; // when g was pressed
    const onKey = (e: KeyboardEvent) => {
      if (e.ctrlKey || e.metaKey || e.altKey) return;
      if (isTyping(e.target)) {
        if (e.key === 'Escape' && e.target instanceof HTMLElement && !e.target.closest('.xterm')) e.target.blur();
        return;
      }
      if (document.querySelector('dialog[open]')) return;
      const page = Date.now() - g < 1200 && pages.find((p) => p.key === e.key);
      g = e.key === 'g' ? Date.now() : 0;
      if (page) go(page.path);
      else if (e.key === '?') setHelp(true);
      else if (e.key === '/') {
        const filter = document.querySelector<HTMLInputElement>('[data-filter]');
        if (!filter) return;
        e.preventDefault();
        filter.focus();
        filter.select();
      }
    };
    window.addEventListener('keydown', onKey);
    return () => window.removeEventListener('keydown', onKey);
  }, []);
  if (!loggedIn.value || place.value.path === '/ui/login')
    return (
      <>
        <Login />
        <Toasts />
      </>
    );
  return (
    <div class="frame" onClick={followLinks}>
      <Rail onHelp={() => setHelp(true)} />
      <main id="main">
        <Page />
      </main>
      {help && <KeysDialog pages={pages.map((p) => [`g ${p.key}`, p.name])} onClose={() => setHelp(false)} />}
      <Asking />
      <Toasts />
    </div>
  );
}

render(<App />, document.getElementById('app')!);
