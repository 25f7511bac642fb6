// What the API says, as docs/api.md and GET /v1/openapi.json describe it; only what pages use.

export type Status = 'pending' | 'running' | 'paused' | 'stopping' | 'stopped' | 'failed' | 'hibernated' | 'resuming';

export interface Usage {
  active_cpu_ms: number;
  wall_time_ms: number;
  memory_peak_bytes: number;
  ingress_bytes: number;
  egress_bytes: number;
}

export interface Port {
  port: number;
  access: 'public' | 'private';
  label: string;
  url: string;
}

export interface Network {
  mode: 'allow-all' | 'deny-all' | 'custom';
  [more: string]: unknown;
}

export interface Sandbox {
  id: string;
  name: string;
  project_id: string;
  status: Status;
  reason?: string;
  message?: string;
  image: string;
  digest: string;
  runtime?: string;
  vcpus: number;
  memory_mb: number;
  disk_mb: number;
  env?: Record<string, string>;
  tags?: Record<string, string>;
  annotations?: Record<string, string>;
  user: string;
  workdir: string;
  network: Network;
  ports?: Port[];
  mounts?: { path: string; drive: string; mode?: string }[];
  persistent: boolean;
  session_id: string;
  snapshot_id?: string;
  timeout_ms: number;
  idle_timeout_ms?: number;
  created_at: string;
  status_at: string;
  started_at?: string;
  expires_at?: string;
  stopped_at?: string;
  unresponsive_since?: string;
  usage: Usage;
  total: Usage;
}

export interface Change {
  type: 'ready' | 'changed' | 'deleted' | 'missed';
  id?: string;
  sandbox?: Sandbox;
}

export interface Stats {
  usage: Usage;
  memory_bytes: number;
  memory_limit_bytes: number;
  disk_bytes: number;
  disk_limit_bytes: number;
  processes: number;
  commands: number;
}

export interface Exit {
  code: number;
  signal?: number;
  timed_out?: boolean;
  at: string;
  duration_ms: number;
}

export interface Command {
  id: string;
  argv: string[];
  workdir: string;
  user: string;
  pty?: boolean;
  pid: number;
  started_at: string;
  exit?: Exit;
  output_start: number;
  output_end: number;
}

export interface CommandChange {
  type: 'ready' | 'changed';
  command?: Command;
}

export interface OutputLine {
  type: 'start' | 'stdout' | 'stderr' | 'truncated' | 'exit' | 'error';
  cursor?: number;
  data?: string;
  encoding?: 'base64';
  exit?: Exit;
}

export interface FileInfo {
  name: string;
  name_base64?: string;
  path: string;
  type: 'file' | 'dir' | 'symlink' | 'other';
  size: number;
  mode: number;
  uid: number;
  gid: number;
  mod_time: string;
  target?: string;
}

export interface Flow {
  seq: number;
  time: string;
  protocol: string;
  name?: string;
  address?: string;
  port?: number;
  method?: string;
  path?: string;
  status?: number;
  verdict: 'allowed' | 'denied' | 'failed';
  rule: string;
  reason?: string;
  open?: boolean;
  duration_ms: number;
  ingress_bytes: number;
  egress_bytes: number;
}

export interface Snapshot {
  id: string;
  name?: string;
  kind: 'filesystem' | 'memory';
  status: string;
  automatic: boolean;
  parent_id?: string;
  sandbox_id?: string;
  sandbox_name?: string;
  size_bytes: number;
  created_at: string;
  last_used_at?: string;
  expires_at?: string;
  took_ms: number;
  paused_ms: number;
}

export interface Identity {
  token: { id: string; name: string; admin: boolean; expires_at?: string };
  team: { id: string; name: string; quota: { sandboxes: number; vcpus: number; memory_mb: number; disk_mb: number } };
  project?: { id: string; name: string };
}
