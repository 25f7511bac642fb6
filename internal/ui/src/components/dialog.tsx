// Dialogs over the page: the browser keeps the focus inside, and Escape closes them.
import { signal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { complain } from './toast';

/** Dialog is open while it is there. */
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const d = ref.current!;
    if (!d.open) d.showModal();
    return () => d.close();
  }, []);
  return (
    <dialog
      ref={ref}
      aria-label={title}
      onCancel={(e) => {
        e.preventDefault();
        onClose();
      }}
      onClick={(e) => e.target === ref.current && onClose()}
    >
      <div class="dialog">
        <h2>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

interface Question {
  title: string;
  text: ComponentChildren;
  action: string;
  /** what the button says that does nothing; "Cancel" if the action is no cancelling itself */
  keep?: string;
  danger?: boolean;
  /** a value that is asked for */
  field?: { label: string; value: string; number?: boolean; required?: boolean };
  run: (value: string) => Promise<unknown>;
}

const question = signal<Question | undefined>(undefined);

/** ask asks before something is done, and does it. */
export function ask(q: Question): void {
  question.value = q;
}

/** Asking shows the question that is being asked. */
export function Asking() {
  return question.value ? <Confirm key={question.value.title} q={question.value} /> : null;
}

function Confirm({ q }: { q: Question }) {
  const [busy, set] = useState(false);
  const [value, setValue] = useState(q.field?.value ?? '');
  const close = () => (question.value = undefined);
  const run = async (e: Event) => {
    e.preventDefault();
    set(true);
    try {
      await q.run(value);
      close();
    } catch (err) {
      complain(err);
      set(false);
    }
  };
  return (
    <Dialog title={q.title} onClose={close}>
      <form onSubmit={run}>
        <p>{q.text}</p>
        {q.field && (
          <label class="field">
            {q.field.label}
            <input
              autoFocus
              inputMode={q.field.number ? 'numeric' : undefined}
              pattern={q.field.number ? '[0-9]+' : undefined}
              required={q.field.required}
              value={value}
              onInput={(e) => setValue(e.currentTarget.value)}
              autocomplete="off"
              spellcheck={false}
            />
          </label>
        )}
        <div class="buttons">
          <button type="button" onClick={close}>
            {q.keep ?? 'Cancel'}
          </button>
          <button class={q.danger ? 'danger' : 'primary'} disabled={busy} autoFocus={!q.field}>
            {busy ? 'Working…' : q.action}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
