// How the machine bears its work, for those who may know: operators.
import { signal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { get } from '../../api';
import { Gauge } from '../../components/spark';
import { bytes, duration } from '../../text';

export interface Host {
  version: string;
  uptime_ms: number;
  read_at: string;
  cpus: number;
  load: [number, number, number];
  cpu_busy: number | null;
  memory_total_bytes: number;
  memory_available_bytes: number;
  disk_total_bytes: number;
  disk_free_bytes: number;
  daemon_memory_bytes: number;
}

/** pace is how often the machine is looked at while somebody sees it, in ms: load has no events. */
const pace = 5000;
/** kept is how many readings are, ten minutes of them. */
const kept = 120;

/** readings are those since this page was loaded, oldest first. */
const readings = signal<readonly Host[]>([]);

/** useHost looks at the machine, unless off, and returns the last reading. */
export function useHost(off: boolean): Host | undefined {
  useEffect(() => {
    if (off) return;
    const stop = new AbortController();
    let timer = 0;
    const read = async () => {
      window.clearTimeout(timer);
      if (!document.hidden) {
        try {
          const h = await get<Host>('/v1/host', undefined, stop.signal);
          const last = readings.peek();
          // What was before the page was left for long is no part of the line.
          const gap = last.length > 0 && Date.parse(h.read_at) - Date.parse(last.at(-1)!.read_at) > 12 * pace;
          if (last.at(-1)?.read_at !== h.read_at) readings.value = [...(gap ? [] : last), h].slice(-kept);
        } catch {
          // The sandboxes' stream says that the daemon does not answer.
        }
      }
      if (!stop.signal.aborted) timer = window.setTimeout(read, pace);
    };
    const onSeen = () => !document.hidden && void read();
    document.addEventListener('visibilitychange', onSeen);
    void read();
    return () => {
      stop.abort();
      window.clearTimeout(timer);
      document.removeEventListener('visibilitychange', onSeen);
    };
  }, [off]);
  return off ? undefined : readings.value.at(-1);
}

const part = (free: number, total: number): number | null => (total > 0 ? 1 - free / total : null);
const percent = (v: number | null): string => (v === null ? '–' : `${Math.round(v * 100)}%`);
const round = (n: number): string => String(Math.round(n * 100) / 100);

/** HostPanel shows CPU, memory, disk and load of the last minutes. */
export function HostPanel({ of: h }: { of: Host }) {
  const all = readings.value;
  const cpus = `${round(h.cpus)} ${h.cpus === 1 ? 'CPU' : 'CPUs'}`;
  return (
    <section class="panel" aria-label="This machine">
      <div class="panel-head">
        <h2>This machine</h2>
        <span class="dim num">
          up {duration(h.uptime_ms)}, the daemon takes {bytes(h.daemon_memory_bytes)}
        </span>
      </div>
      <div class="gauges">
        <Gauge label="CPU" text={percent(h.cpu_busy)} note={`of ${cpus}`} points={all.map((r) => r.cpu_busy)} room={kept} />
        <Gauge label="Load" text={h.load[0].toFixed(2)} note={`5 min ${h.load[1].toFixed(1)}, 15 min ${h.load[2].toFixed(1)}`} points={all.map((r) => Math.min(1, r.load[0] / Math.max(1, r.cpus) / 2))} room={kept} />
        <Gauge label="Memory" text={percent(part(h.memory_available_bytes, h.memory_total_bytes))} note={`${bytes(h.memory_available_bytes)} of ${bytes(h.memory_total_bytes)} free`} points={all.map((r) => part(r.memory_available_bytes, r.memory_total_bytes))} room={kept} />
        <Gauge label="Disk" text={percent(part(h.disk_free_bytes, h.disk_total_bytes))} note={`${bytes(h.disk_free_bytes)} of ${bytes(h.disk_total_bytes)} free`} points={all.map((r) => part(r.disk_free_bytes, r.disk_total_bytes))} room={kept} />
      </div>
    </section>
  );
}
