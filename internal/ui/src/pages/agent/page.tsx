// The pages of agents: their runs, and the conversation of one of them.
import '../gateway/gateway.css';
import './agent.css';
import { AgentRuns } from './list';
import { AgentRun } from './run';

export function Agents({ run }: { run?: string }) {
  return run ? <AgentRun key={run} id={run} /> : <AgentRuns />;
}
