// What a sandbox is, and what it uses now.
import { useEffect, useState } from 'preact/hooks';
import { path } from '../../api';
import { Chart } from '../../components/chart';
import { Bytes, Code, Duration, Facts, JSONView, Meter, Name, Time } from '../../components/show';
import { bytes, mebibytes } from '../../text';
import type { Sandbox, Stats } from '../../types';
import { follow } from './follow';

interface Point {
  at: number; // seconds
  stats: Stats;
}

const keep = 300; // points: ten minutes

/** read keeps the readings of the session that was looked at last, for when somebody comes back to the page. */
let read: { session: string; points: Point[] } = { session: '', points: [] };

/** useStats reads a sandbox's counters while somebody looks. The daemon keeps none from before. */
function useStats(s: Sandbox): Point[] {
  const session = `${s.id} ${s.session_id}`;
  const awake = s.status === 'running' || s.status === 'paused';
  const [points, set] = useState<Point[]>(awake && read.session === session ? read.points : []);
  useEffect(() => {
    if (read.session !== session) read = { session, points: [] };
    set(awake ? read.points : []);
    if (!awake) return;
    return follow<Stats>(path('sandboxes', s.id, 'stats'), {
      onLine: (stats) => {
        if (read.session !== session) return;
        read.points = [...read.points.slice(1 - keep), { at: Date.now() / 1000, stats }];
        set(read.points);
      },
    });
  }, [session, awake]);
  return points;
}

/** rested reports whether nobody looked before a point, so that no line leads to it. */
const rested = (points: Point[], i: number): boolean => i > 0 && points[i]!.at - points[i - 1]!.at > 15;

/** rate is how fast a counter grew before each point, but the first; null where it was not read for a while. */
function rate(points: Point[], count: (s: Stats) => number, per: number): (number | null)[] {
  return points.map((p, i) => {
    const before = points[i - 1];
    if (!before || rested(points, i)) return null;
    return Math.max(0, ((count(p.stats) - count(before.stats)) / (p.at - before.at)) * per);
  });
}

const perSecond = (n: number) => `${bytes(Math.round(n))}/s`;

export function OverviewTab({ sandbox: s }: { sandbox: Sandbox }) {
  const points = useStats(s);
  const times = points.map((p) => p.at);
  const last = points.at(-1)?.stats;
  const made = s.annotations?.['workflow.run'];
  return (
    <div class="stack">
      {s.status === 'running' && (
        <div class="charts">
          <div class="panel">
            <Chart
              title={`CPU, of ${s.vcpus * 100}%`}
              data={[times, rate(points, (p) => p.usage.active_cpu_ms, 0.1)]}
              series={[{ name: 'CPU', colour: '--chart-1' }]}
              format={(v) => `${Math.round(v)}%`}
              max={10}
            />
          </div>
          <div class="panel">
            <Chart
              title={`Memory, of ${mebibytes(s.memory_mb)}`}
              data={[times, points.map((p, i) => (rested(points, i) ? null : p.stats.memory_bytes))]}
              series={[{ name: 'Memory', colour: '--chart-2' }]}
              format={(v) => bytes(Math.round(v))}
              max={64 << 20}
            />
          </div>
          <div class="panel">
            <Chart
              title="Network"
              data={[times, rate(points, (p) => p.usage.ingress_bytes, 1), rate(points, (p) => p.usage.egress_bytes, 1)]}
              series={[
                { name: 'In', colour: '--chart-3' },
                { name: 'Out', colour: '--chart-4' },
              ]}
              format={perSecond}
              max={1024}
            />
          </div>
        </div>
      )}
      {s.status === 'running' && <p class="dim">The charts begin when this page is opened: no readings are kept from before. The sums since the sandbox was created are below.</p>}
      {last && (
        <div class="panel meters across">
          <Meter label="Memory" value={last.memory_bytes} max={last.memory_limit_bytes} text={`${bytes(last.memory_bytes)} of ${bytes(last.memory_limit_bytes)}`} />
          <Meter label="Disk" value={last.disk_bytes} max={last.disk_limit_bytes} text={`${bytes(last.disk_bytes)} of ${bytes(last.disk_limit_bytes)}`} />
          <div class="figures num">
            <span>
              <b>{last.processes}</b> {last.processes === 1 ? 'process' : 'processes'}
            </span>
            <span>
              <b>{last.commands}</b> {last.commands === 1 ? 'command' : 'commands'} running
            </span>
          </div>
        </div>
      )}
      <div class="columns even">
        <section class="panel">
          <h2>Machine</h2>
          <Facts
            of={[
              ['Id', <Code>{s.id}</Code>],
              ['Session', <Code>{s.session_id}</Code>],
              ['Image', <Name>{s.image}</Name>],
              ['Digest', s.digest && <Code short>{s.digest}</Code>],
              ['Runtime', s.runtime && <Name>{s.runtime}</Name>],
              ['Limits', `${s.vcpus} vCPU, ${mebibytes(s.memory_mb)} memory, ${mebibytes(s.disk_mb)} disk`],
              ['User', <Name>{s.user}</Name>],
              ['Directory', <Name>{s.workdir}</Name>],
              ['Network', s.network.mode],
              ['Persistent', s.persistent ? 'yes: stopping it saves its files' : 'no'],
              ['Made by', made && <a class="wf-link" href={`/workflows/${encodeURIComponent(made)}?view=${encodeURIComponent(s.annotations!['workflow.step'] ?? '')}`}>a step of a workflow</a>],
              ['Starts from', s.snapshot_id && <Code>{s.snapshot_id}</Code>],
              ['Drives', s.mounts?.length ? <Name>{s.mounts.map((m) => `${m.drive} at ${m.path}`).join(', ')}</Name> : undefined],
            ]}
          />
        </section>
        <section class="panel">
          <h2>Time and use</h2>
          <Facts
            of={[
              ['Created', <Time at={s.created_at} />],
              ['Started', s.started_at && <Time at={s.started_at} />],
              ['Ends', s.expires_at && <Time at={s.expires_at} />],
              ['Ended', s.stopped_at && <Time at={s.stopped_at} />],
              ['Does not answer since', s.unresponsive_since && <Time at={s.unresponsive_since} />],
              ['Because', s.reason && <Name>{s.message || s.reason}</Name>],
              ['Timeout', <Duration ms={s.timeout_ms} />],
              ['When idle', s.idle_timeout_ms ? <Duration ms={s.idle_timeout_ms} /> : undefined],
              ['CPU time', <Duration ms={s.total.active_cpu_ms} />],
              ['Ran for', <Duration ms={s.total.wall_time_ms} />],
              ['Memory peak', <Bytes of={s.total.memory_peak_bytes} />],
              ['Received', <Bytes of={s.total.ingress_bytes} />],
              ['Sent', <Bytes of={s.total.egress_bytes} />],
            ]}
          />
        </section>
      </div>
      {(Object.keys(s.env ?? {}).length > 0 || Object.keys(s.tags ?? {}).length > 0) && (
        <section class="panel">
          <h2>Labels and environment</h2>
          <JSONView value={{ ...(s.tags && { tags: s.tags }), ...(s.env && { env: s.env }) }} />
        </section>
      )}
    </div>
  );
}
