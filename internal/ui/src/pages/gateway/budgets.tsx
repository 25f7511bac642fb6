// Budgets: who may spend how much, and how much of it is spent.
import { useEffect, useState } from 'preact/hooks';
import { call, path } from '../../api';
import { ask } from '../../components/dialog';
import { Name, Time } from '../../components/show';
import { Empty, ErrorView, Loading } from '../../components/state';
import { Table, type Column } from '../../components/table';
import { toast } from '../../components/toast';
import { place, setQuery } from '../../router';
import { useAfterCalls } from './calls';
import { Check, Choice, Field, FormDialog, list, periods } from './form';
import { Spending } from './keys';
import { useAll } from './list';
import { Frame } from './page';
import { useNames } from './names';
import type { Budget } from './types';

const scopes: [string, string][] = [
  ['team', 'the team'],
  ['project', 'a project'],
  ['key', 'a key'],
  ['user', 'a user'],
  ['tag', 'a tag'],
];

const id = (b: Budget) => `${b.scope}/${b.ref ?? ''}`;

export function Budgets() {
  const { items, cut, error, reload } = useAll<Budget>(path('gateway', 'budgets'));
  useAfterCalls(reload);
  const keyName = useNames(items?.some((b) => b.scope === 'key') ? 'key' : '');
  const { query } = place.value;
  const [editing, edit] = useState<Partial<Budget>>();
  const asked = query.get('set');
  useEffect(() => {
    // A link from a key's page.
    if (!asked || !items) return;
    const ref = query.get('ref') ?? '';
    edit(items.find((b) => b.scope === asked && (b.ref ?? '') === ref) ?? { scope: asked, ref });
    setQuery({ set: '', ref: '' });
  }, [asked, !items]);
  const columns: Column<Budget>[] = [
    { name: 'Of', width: '72px', show: (b) => <span class="dim">{b.scope}</span> },
    {
      name: 'Who',
      width: 'minmax(90px, 1.2fr)',
      main: true,
      show: (b) => (b.ref ? <Name class="strong">{b.scope === 'key' ? keyName(b.ref) : b.ref}</Name> : <span class="strong">{b.scope === 'team' ? 'the team' : `each ${b.scope}`}</span>),
    },
    { name: 'Spent', width: 'minmax(130px, 2.4fr)', show: (b) => <Spending of={b} label={`Spent of the budget of ${id(b)}`} /> },
    { name: 'For', width: '84px', class: 'wide', show: (b) => <span class="dim">{b.period === 'none' ? 'for good' : b.period}</span> },
    { name: 'Begins anew', width: '100px', class: 'wide num', show: (b) => (b.reset_at ? <Time at={b.reset_at} /> : <span class="dim">never</span>) },
    {
      name: '',
      width: '76px',
      class: 'num wide',
      show: (b) => (
        <button
          class="ghost tiny danger over"
          aria-label={`Delete the budget of ${id(b)}`}
          onClick={(e) => {
            e.stopPropagation();
            remove(b);
          }}
        >
          Delete
        </button>
      ),
    },
  ];
  const remove = (b: Budget) =>
    ask({
      title: 'Delete the budget?',
      text: (
        <>
          {b.scope} <Name class="strong">{b.ref || 'each'}</Name> may then spend without this limit.
        </>
      ),
      action: 'Delete',
      danger: true,
      run: async () => {
        await call('DELETE', path('gateway', 'budgets', b.scope), { query: { ref: b.ref } });
        toast('Deleted');
        reload();
      },
    });
  return (
    <Frame
      view="budgets"
      full
      actions={
        <button class="primary" onClick={() => edit({})}>
          Set a budget
        </button>
      }
    >
      {!items ? (
        error ? (
          <ErrorView error={error} retry={reload} />
        ) : (
          <Loading />
        )
      ) : items.length === 0 ? (
        <Empty title="No budget yet" command="cay gateway budgets set user --limit 2.50 --period daily">
          A budget bounds what a team, project, key, user or tag may spend. What a call can cost is set aside before a provider hears of it.
        </Empty>
      ) : (
        <>
          <Table fill label="Budgets" rowHeight={46} columns={columns} rows={items} id={id} onOpen={edit} />
          {cut && <p class="list-foot dim">The first {items.length.toLocaleString()} are shown.</p>}
        </>
      )}
      {editing && <BudgetForm of={editing} onClose={() => edit(undefined)} onSet={reload} onRemove={editing.limit ? () => remove(editing as Budget) : undefined} />}
    </Frame>
  );
}

function BudgetForm({ of: b, onClose, onSet, onRemove }: { of: Partial<Budget>; onClose: () => void; onSet: () => void; onRemove?: () => void }) {
  const fixed = b.limit !== undefined;
  const [v, set] = useState({
    scope: b.scope ?? 'user',
    ref: b.ref ?? '',
    limit: b.limit ?? '',
    period: b.period ?? 'monthly',
    alerts: b.alert_at?.join(', ') ?? '',
    byok: b.include_byok ?? false,
    unpriced: b.allow_unpriced ?? false,
  });
  const to = (k: keyof typeof v) => (x: string | boolean) => set((o) => ({ ...o, [k]: x }));
  const send = async () => {
    await call('PUT', path('gateway', 'budgets', v.scope), {
      query: { ref: v.ref.trim() },
      json: { limit: v.limit.trim(), period: v.period, alert_at: list(v.alerts)?.map(Number), include_byok: v.byok || undefined, allow_unpriced: v.unpriced || undefined },
    });
    toast('The budget is set');
    onSet();
  };
  return (
    <FormDialog title={fixed ? 'Change the budget' : 'Set a budget'} action="Set" onClose={onClose} send={send}>
      <div class="pair">
        <Choice label="Of" value={v.scope} set={to('scope')} options={scopes} disabled={fixed} />
        <Field label={v.scope === 'key' || v.scope === 'project' || v.scope === 'team' ? 'Its id' : 'Its name'} value={v.ref} set={to('ref')} placeholder={v.scope === 'team' ? 'this one' : 'each that has none'} disabled={fixed} />
      </div>
      <div class="pair">
        <Field label="Dollars" value={v.limit} set={to('limit')} placeholder="2.50" amount required autoFocus />
        <Choice label="for" value={v.period} set={to('period')} options={periods} />
      </div>
      <Field label="Warn at percent" value={v.alerts} set={to('alerts')} placeholder="80, 95" />
      <Check label="Count calls that are paid with a caller's own key, too" value={v.byok} set={to('byok')} />
      <Check label="Let calls pass whose price is not known" value={v.unpriced} set={to('unpriced')} />
      {onRemove && (
        <p>
          <button
            type="button"
            class="ghost remove"
            onClick={() => {
              onClose();
              onRemove();
            }}
          >
            Delete this budget
          </button>
        </p>
      )}
    </FormDialog>
  );
}
