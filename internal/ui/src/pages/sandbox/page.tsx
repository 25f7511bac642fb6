// One sandbox: what it is, and tabs for all that can be seen of it.
import { useEffect } from 'preact/hooks';
import { Icon } from '../../components/icons';
import { Badge, Code, Name, Time } from '../../components/show';
import { ErrorView, Loading } from '../../components/state';
import { chosenTab, Tabs } from '../../components/tabs';
import { useSandbox } from '../../live';
import { visible } from '../../text';
import { Actions } from './actions';
import { Commands } from './commands';
import { Files } from './files';
import { NetworkTab } from './network';
import { OverviewTab } from './overview';
import { Ports } from './ports';
import { Snapshots } from './snapshots';
import { TerminalTab } from './terminal';

const tabs = [
  { id: 'overview', name: 'Overview' },
  { id: 'commands', name: 'Commands' },
  { id: 'files', name: 'Files' },
  { id: 'terminal', name: 'Terminal' },
  { id: 'ports', name: 'Ports' },
  { id: 'network', name: 'Network' },
  { id: 'snapshots', name: 'Snapshots' },
];

export function SandboxPage({ id }: { id: string }) {
  const { sandbox: s, error } = useSandbox(id);
  useEffect(() => {
    document.title = s ? `${visible(s.name)} · cay` : 'cay';
    return () => {
      document.title = 'cay';
    };
  }, [s?.name]);
  if (!s) return <div class="page">{error ? <ErrorView error={error} /> : <Loading />}</div>;
  const tab = chosenTab(tabs);
  return (
    <div class={`page${tab === 'overview' || tab === 'ports' || tab === 'snapshots' ? '' : ' full'}`}>
      <header class="page-head">
        <div class="title">
          <a class="ghost back" href="/sandboxes" aria-label="All sandboxes">
            <Icon name="back" />
          </a>
          <h1>
            <Name>{s.name}</Name>
          </h1>
          <Badge status={s.status} />
          <span class="dim ends">
            {s.expires_at ? (
              <>
                ends <Time at={s.expires_at} />
              </>
            ) : s.message ? (
              visible(s.message)
            ) : (
              s.reason?.replace(/_/g, ' ')
            )}
          </span>
          <span class="wide">
            <Code>{s.id}</Code>
          </span>
        </div>
        <Actions sandbox={s} />
      </header>
      <Tabs tabs={tabs.map((t) => (t.id === 'ports' && s.ports?.length ? { ...t, note: <span class="tab-note num">{s.ports.length}</span> } : t))} label="Views of the sandbox" />
      <section class="tab-body" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        {tab === 'overview' && <OverviewTab sandbox={s} />}
        {tab === 'commands' && <Commands sandbox={s} />}
        {tab === 'files' && <Files sandbox={s} />}
        {tab === 'terminal' && <TerminalTab sandbox={s} />}
        {tab === 'ports' && <Ports sandbox={s} />}
        {tab === 'network' && <NetworkTab sandbox={s} />}
        {tab === 'snapshots' && <Snapshots sandbox={s} />}
      </section>
    </div>
  );
}
