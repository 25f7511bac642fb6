// What the API says of runs of agents, and what agents write; only what pages use. See package agent: Chunk, Call, answer.

export interface Run {
  id: string;
  project?: string;
  workflow: string;
  status: 'pending' | 'running' | 'completed' | 'failed' | 'cancelled';
  attributes?: Record<string, string>;
  created_at: string;
  started_at?: string;
  completed_at?: string;
  error_code?: string;
  cancel_requested?: boolean;
}

/** The attributes of a run that agents set. */
export const attribute = { agent: '$agent', model: '$agent.model', tokens: '$agent.tokens', cost: '$agent.cost' } as const;

/** Payload is a value, or the bytes of one that is sealed. */
export interface Payload {
  json?: unknown;
  base64?: string;
}

export interface Event {
  slot: number;
  type: string;
  at: string;
  id?: string;
  name?: string;
  payload?: Payload | null;
  attempt?: number;
  started_at?: string;
  until?: string;
  token?: string;
  code?: string;
  reason?: string;
  attributes?: Record<string, string>;
}

export interface Chunk {
  type: string;
  id?: string;
  delta?: string;
  messageId?: string;
  finishReason?: string;
  errorText?: string;
  reason?: string;
  toolCallId?: string;
  toolName?: string;
  title?: string;
  input?: unknown;
  inputTextDelta?: string;
  output?: unknown;
  preliminary?: boolean;
  providerExecuted?: boolean;
  approvalId?: string;
  sourceId?: string;
  url?: string;
  mediaType?: string;
  filename?: string;
  data?: unknown;
  step?: string;
}

export interface Usage {
  calls: number;
  input: number;
  cache_read?: number;
  cache_write?: number;
  output: number;
  reasoning?: number;
  cost: string;
  cost_known: boolean;
}

/** Answer is what a model has answered, as the run's log has it: the result of a step named "agent.model". */
export interface Answer {
  agent?: string;
  model?: string;
  message?: { content?: unknown };
  usage?: Usage;
  generation_id?: string;
}

/** Question is the metadata of a hook at which a call of a tool waits for somebody's approval. */
export interface Question {
  approval_id: string;
  call_id: string;
  agent: string;
  tool: string;
  input: unknown;
  /** only an answer that is signed counts, which takes the agent's secret */
  signed?: boolean;
}
