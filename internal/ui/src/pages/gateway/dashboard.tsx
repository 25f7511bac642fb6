// How much is asked of models, what it costs, how long it takes and how often it fails.
import { useMemo } from 'preact/hooks';
import { visible } from '../../text';
import { Name } from '../../components/show';
import { Empty, ErrorView, Loading } from '../../components/state';
import { Table, type Column } from '../../components/table';
import { place, setQuery } from '../../router';
import { chosen, withFilters } from './filter';
import { count, dollars, millis, percent } from './money';
import { Chosen, Frame } from './page';
import { Plot, type Row } from './plot';
import { dimensions, ranges, useReport, type Dimension, type Report, type Sum } from './report';
import { Begin } from './requests';
import { useNames } from './names';

const colours = ['--chart-1', '--chart-2', '--chart-3', '--chart-4', '--chart-5'];

export function Dashboard() {
  const { query } = place.value;
  const range = ranges.find((r) => r.id === query.get('range')) ?? ranges[1];
  const by = dimensions.find((d) => d.id === query.get('by')) ?? dimensions[0];
  const filter = chosen(['session']);
  const { report, error, cut, live } = useReport(range, by, filter);
  return (
    <Frame
      view=""
      actions={
        <div class="chips" role="group" aria-label="Time">
          {ranges.map((r) => (
            <button key={r.id} class="chip" aria-pressed={r === range} onClick={() => setQuery({ range: r.id === '24h' ? '' : r.id })}>
              {r.name}
            </button>
          ))}
        </div>
      }
    >
      <Chosen />
      {!report ? error ? <ErrorView error={error} /> : <Loading /> : <Report report={report} by={by} live={live} cut={cut} quiet={Object.keys(filter).length === 0 && range.id === '30d'} />}
    </Frame>
  );
}

function Report({ report, by, live, cut, quiet }: { report: Report; by: Dimension; live: boolean; cut: boolean; quiet: boolean }) {
  const { total, parts, times, step } = report;
  const name = useNames(by.id);
  if (total.requests === 0)
    return quiet ? (
      <Begin />
    ) : (
      <Empty title="No request in this time" command="cay gateway requests --follow">
        It is shown here as soon as there is one.
      </Empty>
    );
  const bad = total.failed + total.refused;
  const row = (label: string, colour: string, of: (s: Sum) => number, show = count): Row => ({
    name: label,
    colour,
    values: parts.map(of),
    total: show(of(total)),
  });
  const shares = groupRows(report, name);
  return (
    <>
      <section class="cards five" aria-label="Totals">
        <Figure name="Requests" value={count(total.requests)} note={live ? <span class="live">live</span> : undefined} />
        <Figure name="Failed or refused" value={percent(bad, total.requests)} note={bad ? `${count(bad)} of ${count(total.requests)}` : undefined} tone={bad ? 'bad' : ''} />
        <Figure name="Tokens" value={count(total.input + total.output)} note={`${count(total.input)} in, ${count(total.output)} out`} />
        <Figure name="Cost" value={dollars(total.cost)} note={total.unpriced ? `and ${count(total.unpriced)} of unknown cost` : undefined} />
        <Figure name="Latency, p50" value={total.p50 === undefined ? '–' : millis(total.p50)} note={total.p95 === undefined ? undefined : `p95 ${millis(total.p95)}`} />
      </section>
      {cut && <p class="dim">There were more requests than are counted here: these are the newest.</p>}
      <section class="plots" aria-label="Over time">
        <Plot
          title="Requests"
          times={times}
          step={step}
          format={count}
          rows={[
            row('succeeded', '--chart-2', (s) => s.requests - s.failed - s.refused - s.cancelled),
            row('cancelled', '--idle', (s) => s.cancelled),
            row('refused', '--chart-4', (s) => s.refused),
            row('failed', '--bad', (s) => s.failed),
          ].filter((r, i) => i === 0 || r.values.some((v) => v))}
        />
        <Plot title="Tokens" times={times} step={step} format={count} rows={[row('in', '--chart-1', (s) => s.input), row('out', '--chart-3', (s) => s.output)]} />
        <Plot title={`${total.cost > 0 ? 'Cost' : 'Requests'} by ${by.name.toLowerCase()}`} times={times} step={step} format={total.cost > 0 ? dollars : count} rows={shares} />
        <Plot
          title="Latency"
          lines
          times={times}
          step={step}
          format={millis}
          rows={[
            { name: 'p50', colour: '--chart-3', values: parts.map((p) => p.p50 ?? null), total: total.p50 === undefined ? '–' : millis(total.p50) },
            { name: 'p95', colour: '--chart-4', values: parts.map((p) => p.p95 ?? null), total: total.p95 === undefined ? '–' : millis(total.p95) },
          ]}
        />
      </section>
      <Groups report={report} by={by} name={name} />
    </>
  );
}

/** groupRows are the five groups that cost most, the last of them all others; by requests, if all of it was free. */
function groupRows(report: Report, name: (id: string) => string): Row[] {
  const paid = report.total.cost > 0;
  const of = (s?: Sum) => (s ? (paid ? s.cost : s.requests) : 0);
  const groups = paid ? report.groups.filter((g) => g.cost > 0) : report.groups;
  const make = (label: string, i: number, some: Sum[]): Row => ({
    name: label,
    colour: colours[i]!,
    values: report.times.map((_, t) => some.reduce((n, g) => n + of(report.byGroup.get(g.name)?.[t]), 0)),
    total: (paid ? dollars : count)(some.reduce((n, g) => n + of(g), 0)),
  });
  const whole = groups.length <= 5 ? groups : groups.slice(0, 4);
  const rows = whole.map((g, i) => make(name(g.name), i, [g]));
  if (groups.length > 5) rows.push(make('others', 4, groups.slice(4)));
  return rows;
}

function Figure({ name, value, note, tone = '' }: { name: string; value: string; note?: preact.ComponentChildren; tone?: string }) {
  return (
    <div class={`card ${tone}`}>
      <span class="dim">{name}</span>
      <span class="card-n num">{value}</span>
      <span class="dim card-note num">{note}</span>
    </div>
  );
}

function Groups({ report, by, name }: { report: Report; by: Dimension; name: (id: string) => string }) {
  const top = Math.max(...report.groups.map((g) => g.cost), 0);
  const busiest = Math.max(...report.groups.map((g) => g.requests), 1);
  const columns = useMemo<Column<Sum>[]>(
    () => [
      {
        name: by.name,
        width: 'minmax(110px, 2fr)',
        main: true,
        show: (g) => (g.name ? <Name class="strong">{name(g.name)}</Name> : <span class="dim">none</span>),
      },
      {
        name: '',
        width: 'minmax(60px, 1.2fr)',
        class: 'wide',
        show: (g) => (
          <span class="share">
            <span style={{ width: `${Math.max(1, (top > 0 ? g.cost / top : g.requests / busiest) * 100)}%` }} />
          </span>
        ),
      },
      { name: 'Requests', width: '76px', class: 'num', show: (g) => count(g.requests) },
      { name: 'Failed', width: '64px', class: 'num wide', show: (g) => (g.failed + g.refused ? <span class="bad-text">{percent(g.failed + g.refused, g.requests)}</span> : '0%') },
      { name: 'Tokens', width: '76px', class: 'num wide', show: (g) => count(g.input + g.output) },
      { name: 'p50', width: '80px', class: 'num wide', show: (g) => (g.p50 === undefined ? '–' : millis(g.p50)) },
      { name: 'p95', width: '80px', class: 'num wide', show: (g) => (g.p95 === undefined ? '–' : millis(g.p95)) },
      { name: 'Cost', width: '84px', class: 'num', show: (g) => (g.requests === g.unpriced ? <span class="dim">unknown</span> : (g.unpriced ? '≥ ' : '') + dollars(g.cost)) },
    ],
    [by, name, top, busiest],
  );
  return (
    <section class="groups" aria-label={`By ${by.name.toLowerCase()}`}>
      <div class="chips" role="group" aria-label="By">
        {dimensions.map((d) => (
          <button key={d.id} class="chip" aria-pressed={d === by} onClick={() => setQuery({ by: d.id === 'model' ? '' : d.id })}>
            {d.name}
          </button>
        ))}
        <a class="chip button" href={withFilters('/gateway/requests')}>
          All requests
        </a>
      </div>
      <Table
        label={`By ${by.name.toLowerCase()}`}
        rowHeight={34}
        columns={columns}
        rows={report.groups}
        id={(g) => g.name}
        onOpen={(g) => g.name && setQuery({ [by.filter]: place.value.query.get(by.filter) === g.name ? '' : g.name })}
        selected={place.value.query.get(by.filter) || undefined}
      />
      <p class="dim note">{by.id === 'tag' ? 'A request with several tags is in several rows. ' : ''}Open a row to see it alone: {visible(by.name.toLowerCase())} is then a filter above.</p>
    </section>
  );
}
