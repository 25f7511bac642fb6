// The pages of workflows: runs, one of them, hooks that wait, and schedules.
import './workflow.css';
import { HooksPage } from './hooks';
import { RunPage } from './run';
import { RunsPage } from './runs';
import { SchedulesPage } from './schedules';

/** Workflows is the page at /workflows/<view>. */
export function Workflows({ view }: { view?: string }) {
  if (!view) return <RunsPage />;
  if (view === 'hooks') return <HooksPage />;
  if (view === 'schedules') return <SchedulesPage />;
  return <RunPage key={view} id={view} />;
}
