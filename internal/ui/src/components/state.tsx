// What is shown where there is nothing else to show.
import type { ComponentChildren } from 'preact';
import { ApiError } from '../api';
import { visible } from '../text';
import { Code } from './show';

/** Empty says that there is nothing, and which command makes the first one. */
export function Empty({ title, command, children }: { title: string; command?: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children && <p>{children}</p>}
      {command && <Code>{command}</Code>}
    </div>
  );
}

/** ErrorView says what went wrong in the API's words. */
export function ErrorView({ error, retry }: { error: unknown; retry?: () => void }) {
  const e = error instanceof ApiError ? error : new ApiError('internal', error instanceof Error ? error.message : String(error));
  return (
    <div class="empty" role="alert">
      <h2>{visible(e.message)}</h2>
      {e.hint && <p>{visible(e.hint)}</p>}
      <p class="dim">{e.code}</p>
      {retry && <button onClick={retry}>Try again</button>}
    </div>
  );
}

export function Loading() {
  return (
    <div class="loading" role="status">
      <span class="spinner" aria-hidden="true" /> Loading
    </div>
  );
}
