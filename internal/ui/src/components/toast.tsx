// Short messages that go by themselves.
import { signal } from '@preact/signals';
import { ApiError } from '../api';
import { visible } from '../text';

interface Message {
  id: number;
  text: string;
  tone: 'good' | 'bad';
}

const messages = signal<Message[]>([]);
let last = 0;

export function toast(text: string, tone: Message['tone'] = 'good'): void {
  const id = ++last;
  messages.value = [...messages.value.slice(-3), { id, text, tone }];
  window.setTimeout(() => (messages.value = messages.value.filter((m) => m.id !== id)), tone === 'bad' ? 8000 : 3500);
}

/** complain tells of a failure in the API's words. */
export function complain(e: unknown): void {
  if (e instanceof ApiError) toast(e.hint ? `${e.message}: ${e.hint}` : e.message, 'bad');
  else if (e instanceof Error) toast(e.message, 'bad');
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {messages.value.map((m) => (
        <div key={m.id} class={`toast ${m.tone}`}>
          {visible(m.text)}
        </div>
      ))}
    </div>
  );
}
