// The lists of hooks and schedules: read again when the API says that they have changed.
import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { path, type Page, type Query } from '../../api';
import { Empty, ErrorView, Loading } from '../../components/state';
import { useGet, watch, type Loaded } from '../../live';
import { changes, type Change } from './list';
import { Live, Views } from './views';

export interface Listed<T> extends Loaded<Page<T>> {
  /** what changes comes by itself */
  live: boolean;
}

/** noRuns selects none: only what is said of other lists is wanted. */
const noRuns = { until: new Date(0).toISOString() };

/** useListed is the list of hooks or of schedules, as it is now. */
export function useListed<T>(kind: 'hooks' | 'schedules', query: Query = {}): Listed<T> {
  const asked = useGet<Page<T>>(path('workflows', kind), query);
  const [live, setLive] = useState(false);
  const [known, set] = useState(0);
  const project = query.project;
  useEffect(() => {
    const stop = new AbortController();
    const again = () => set((n) => n + 1);
    watch<Change>(changes, { ...noRuns, project }, stop.signal, {
      onReady: again,
      onChanges: (all) => all.some((c) => c.type === kind) && again(),
      onLive: setLive,
    }).catch(() => setLive(false)); // the list itself says why
    return () => stop.abort();
  }, [kind, project]);
  useEffect(() => {
    if (known) asked.reload();
  }, [known]);
  return { ...asked, live };
}

/** ListPage is the page of such a list. */
export function ListPage<T>({ of: list, at, empty, children }: { of: Listed<T>; at: string; empty: { title: string; command: string; text: string } | undefined; children: (items: T[]) => ComponentChildren }) {
  return (
    <div class="page">
      <header class="page-head">
        <div class="title">
          <h1>Workflows</h1>
          <Views at={at} />
        </div>
        {list.value && <Live on={list.live} />}
      </header>
      {!list.value ? (
        list.error ? (
          <ErrorView error={list.error} retry={list.reload} />
        ) : (
          <Loading />
        )
      ) : list.value.items.length === 0 && empty ? (
        <Empty title={empty.title} command={empty.command}>
          {empty.text}
        </Empty>
      ) : (
        children(list.value.items)
      )}
    </div>
  );
}
