// Fields of forms in dialogs.
import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { ApiError } from '../../api';
import { Dialog } from '../../components/dialog';
import { visible } from '../../text';

/** FormDialog is a dialog that sends something; it closes itself when that has worked, unless send returns false. */
export function FormDialog({ title, action, onClose, send, children }: { title: string; action: string; onClose: () => void; send: () => Promise<boolean | void>; children: ComponentChildren }) {
  const [busy, set] = useState(false);
  const [error, setError] = useState<ApiError>();
  const submit = async (e: Event) => {
    e.preventDefault();
    set(true);
    setError(undefined);
    try {
      if ((await send()) !== false) onClose();
    } catch (err) {
      setError(err instanceof ApiError ? err : new ApiError('invalid', err instanceof Error ? err.message : String(err)));
    }
    set(false);
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form class="form" onSubmit={submit}>
        {children}
        {error && (
          <p class="wrong" role="alert">
            {visible(error.message)}
            {error.hint && <span>{visible(error.hint)}</span>}
          </p>
        )}
        <div class="buttons">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button class="primary" disabled={busy}>
            {busy ? 'Working…' : action}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

interface FieldProps {
  label: string;
  value: string;
  set: (v: string) => void;
  placeholder?: string;
  number?: boolean;
  amount?: boolean;
  required?: boolean;
  autoFocus?: boolean;
  disabled?: boolean;
  /** it is not shown while it is typed, and nothing offers to remember it */
  secret?: boolean;
}

export function Field({ label, value, set, placeholder, number, amount, required, autoFocus, disabled, secret }: FieldProps) {
  return (
    <label class="field">
      {label}
      <input
        {...(secret && ({ type: 'password' } as object))}
        value={value}
        placeholder={placeholder}
        required={required}
        disabled={disabled}
        autoFocus={autoFocus}
        inputMode={number ? 'numeric' : amount ? 'decimal' : undefined}
        pattern={number ? '[0-9]+' : amount ? '[0-9]*[.]?[0-9]+' : undefined}
        title={number ? 'A whole number' : amount ? 'Dollars, such as 2.50' : undefined}
        autocomplete={secret ? 'new-password' : 'off'}
        autocapitalize="off"
        spellcheck={false}
        onInput={(e) => set(e.currentTarget.value)}
      />
    </label>
  );
}

export function Choice({ label, value, set, options, disabled }: { label: string; value: string; set: (v: string) => void; options: [string, string][]; disabled?: boolean }) {
  return (
    <label class="field">
      {label}
      <select value={value} disabled={disabled} onChange={(e) => set(e.currentTarget.value)}>
        {options.map(([v, name]) => (
          <option key={v} value={v}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}

export function Check({ label, value, set }: { label: string; value: boolean; set: (v: boolean) => void }) {
  return (
    <label class="check">
      <input type="checkbox" checked={value} onChange={(e) => set(e.currentTarget.checked)} />
      {label}
    </label>
  );
}

/** list reads values that are separated by commas or spaces. */
export const list = (text: string): string[] | undefined => {
  const all = text.split(/[\s,]+/).filter(Boolean);
  return all.length ? all : undefined;
};

export const whole = (text: string): number | undefined => (text.trim() ? Number(text) : undefined);

export const periods: [string, string][] = [
  ['daily', 'a day'],
  ['weekly', 'a week'],
  ['monthly', 'a month'],
  ['none', 'for good'],
];
