// What is shown of a tab that needs a sandbox that runs.
import { post, path } from '../../api';
import { Empty } from '../../components/state';
import { complain } from '../../components/toast';
import type { Sandbox } from '../../types';

/** canResume reports whether what has ended can be made to run again. */
export const canResume = (s: Sandbox): boolean => s.status === 'paused' || s.status === 'hibernated' || (s.persistent && (s.status === 'stopped' || s.status === 'failed'));

/** Asleep says why there is nothing, and offers to start it: looking at a sandbox starts none. */
export function Asleep({ sandbox: s, what }: { sandbox: Sandbox; what: string }) {
  if (canResume(s))
    return (
      <Empty title={`The sandbox is ${s.status}`}>
        <span>{what} takes a sandbox that runs.</span>
        <button class="primary" onClick={() => post(path('sandboxes', s.id, 'resume')).catch(complain)}>
          Resume
        </button>
      </Empty>
    );
  return <Empty title={`The sandbox is ${s.status}`}>{what} takes a sandbox that runs.</Empty>;
}
