// What the API says of the gateway; only what pages use. Amounts are dollars as decimal texts, null if not known.

export interface Tokens {
  input: number;
  cache_read?: number;
  cache_write?: number;
  cache_write_1h?: number;
  output: number;
  reasoning?: number;
  estimated?: boolean;
}

export interface Attempt {
  model: string;
  provider: string;
  provider_model: string;
  byok?: boolean;
  started_at: string;
  latency_ms: number;
  status?: number;
  ok: boolean;
  error?: string;
  response_id?: string;
  cost?: string;
}

export type Status = 'succeeded' | 'failed' | 'cancelled' | 'refused';

export interface ModelCall {
  id: string;
  created_at: string;
  project_id: string;
  key_id: string;
  user?: string;
  tags?: string[];
  session?: string;
  deployment?: string;
  app?: string;
  surface: string;
  kind: string;
  model: string;
  served?: string;
  provider?: string;
  byok?: boolean;
  streamed?: boolean;
  cached?: boolean;
  status: Status;
  http_status: number;
  error_kind?: string;
  error?: string;
  finish_reason?: string;
  tokens: Tokens;
  searches?: number;
  cost: string | null;
  market_cost?: string;
  input_cost?: string;
  output_cost?: string;
  price_version?: string;
  unpriced?: string[];
  latency_ms: number;
  first_token_ms?: number;
  bytes_in: number;
  bytes_out: number;
  capture?: 'kept' | 'dropped' | 'gone';
  attempts: Attempt[] | null;
}

export interface Body {
  content_type: string;
  text: string;
  size: number;
  cut?: boolean;
  assembled?: boolean;
  omitted?: string;
}

export interface Bodies {
  id: string;
  request?: Body;
  answer?: Body;
}

export interface Spend {
  group: Record<string, string>;
  requests: number;
  failed: number;
  cancelled: number;
  refused: number;
  unpriced: number;
  cost: string;
  tokens: Tokens;
  latency?: { p50_ms: number; p95_ms: number; first_token_p50_ms?: number; first_token_p95_ms?: number };
}

export interface Scope {
  models?: string[];
  providers?: string[];
  requests_per_minute?: number;
  tokens_per_minute?: number;
  concurrency?: number;
  max_output_tokens?: number;
  cache?: string;
}

export interface Key extends Scope {
  id: string;
  project_id: string;
  name: string;
  prefix: string;
  secret?: string;
  tags?: string[];
  disabled?: boolean;
  created_at: string;
  expires_at?: string;
  last_used_at?: string;
  budget?: Budget;
}

export interface BudgetParams {
  limit: string;
  period: string;
  alert_at?: number[];
  include_byok?: boolean;
  allow_unpriced?: boolean;
}

export interface Budget extends BudgetParams {
  scope: string;
  ref?: string;
  spent: string;
  held: string;
  unsettled?: string;
  since: string;
  reset_at?: string;
}

export interface Provider {
  name: string;
  kind?: string;
  source: 'file' | 'api' | 'environment' | 'known';
  formats: string[];
  configured: boolean;
  health: string;
  disabled?: boolean;
  base_url?: string;
  credentials?: string[];
}

export interface Check {
  provider: string;
  ok: boolean;
  latency_ms: number;
  models?: number;
  error?: string;
  hint?: string;
}

export interface Price {
  version: string;
  input: string;
  output: string;
  cache_read?: string;
  cache_write?: string;
  cache_write_1h?: string;
  reasoning?: string;
  request?: string;
  image?: string;
  search?: string;
  tools?: Record<string, string>;
  tiers?: { above: number; input: string; output: string }[];
  service_tiers?: Record<string, number>;
}

export interface Endpoint {
  provider: string;
  model: string;
  price: Price | null;
  context?: number;
  max_output?: number;
  region?: string;
  zero_retention?: boolean;
  no_training?: boolean;
  configured: boolean;
  health: { state: string; success?: number; first_token_p50_ms?: number; tokens_per_second?: number };
}

export interface Model {
  id: string;
  name: string;
  description?: string;
  kind: string;
  context?: number;
  max_output?: number;
  input?: string[];
  output?: string[];
  capabilities?: string[];
  aliases?: string[];
  released?: string;
  endpoints: Endpoint[];
}
