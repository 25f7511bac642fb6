// What the API says of workflows; only what pages use.

export type RunStatus = 'pending' | 'running' | 'completed' | 'failed' | 'cancelled';

export interface Run {
  id: string;
  project?: string;
  workflow: string;
  status: RunStatus;
  build?: string;
  key?: string;
  group?: string;
  priority?: number;
  parent?: string;
  root?: string;
  previous?: string;
  next?: string;
  attributes?: Record<string, string>;
  created_at: string;
  not_before?: string;
  started_at?: string;
  completed_at?: string;
  updated_at: string;
  expires_at?: string;
  cancel_requested?: boolean;
  cancel_reason?: string;
  error_code?: string;
  recoveries?: number;
  events: number;
}

/** Payload is a value as it travels: what is JSON as itself, what is sealed or mere bytes in base64. */
export type Payload = { json: unknown } | { base64: string } | null | undefined;

export interface Event {
  slot: number;
  type: string;
  at: string;
  id?: string;
  name?: string;
  payload?: Payload;
  input?: Payload;
  attempt?: number;
  started_at?: string;
  until?: string;
  token?: string;
  key?: string;
  code?: string;
  reason?: string;
  attributes?: Record<string, string>;
  webhook?: boolean;
  /** ours: its payloads were too much to keep, and have to be asked for again */
  dropped?: boolean;
}

export interface Attempt {
  number: number;
  status: string;
  started_at: string;
  ended_at?: string;
  code?: string;
}

export interface Span {
  kind: 'step' | 'hook' | 'wait' | 'child' | 'version';
  id: string;
  name?: string;
  status: string;
  slot: number;
  begins_at: string;
  ends_at?: string;
  code?: string;
  attempts?: Attempt[];
  until?: string;
  token?: string;
  webhook?: boolean;
  received?: { slot: number; at: string; key?: string }[];
  run?: string;
  version?: number;
}

export interface Mark {
  type: string;
  slot: number;
  at: string;
  reason?: string;
  step?: string;
  attributes?: Record<string, string>;
}

export interface Timeline {
  run: Run;
  spans: Span[];
  marks: Mark[];
}

export interface Hook {
  run: string;
  id: string;
  token: string;
  webhook?: boolean;
  metadata?: Payload;
  created_at: string;
}

export interface StreamInfo {
  name: string;
  chunks: number;
  closed: boolean;
}

export interface Chunk {
  index: number;
  data: Payload;
}

export interface Schedule {
  id: string;
  workflow: string;
  cron: string;
  zone?: string;
  input?: Payload;
  overlap?: boolean;
  paused?: boolean;
  next_at?: string;
  last_at?: string;
  created_at?: string;
  last_run?: string;
}

/** ended reports whether a run in this state goes on no more. */
export const ended = (s: string): boolean => s === 'completed' || s === 'failed' || s === 'cancelled';
