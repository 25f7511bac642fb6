// Logging in: by the code in the address of a link, or by a token.
import { useEffect, useState } from 'preact/hooks';
import { ApiError, loggedIn, logIn } from '../api';
import { visible } from '../text';
import { go, place } from '../router';

/** after is where somebody was going who had to log in. */
function after(): string {
  const { path, query } = place.value;
  return path === '/ui/login' ? '/' : path + (query.size ? '?' + query : '');
}

export function Login() {
  const [code] = useState(() => {
    const c = location.pathname === '/ui/login' ? location.hash.slice(1) : '';
    // Out of the address, so that it is not kept among the pages that were seen.
    if (c) history.replaceState(null, '', location.pathname);
    return c;
  });
  const [token, setToken] = useState('');
  const [busy, setBusy] = useState(code !== '');
  const [error, setError] = useState<ApiError>();

  const enter = async (how: { token: string } | { code: string }) => {
    setBusy(true);
    setError(undefined);
    try {
      await logIn(how);
      go(after(), true);
    } catch (e) {
      setError(e as ApiError);
      setBusy(false);
    }
  };
  useEffect(() => {
    if (code) void enter({ code });
    else if (loggedIn.value) go('/', true);
  }, []);

  return (
    <main class="login">
      <form
        class="login-card"
        onSubmit={(e) => {
          e.preventDefault();
          void enter({ token: token.trim() });
        }}
      >
        <svg width="44" height="44" viewBox="0 0 32 32" aria-hidden="true">
          <rect width="32" height="32" rx="8" fill="var(--accent)" />
          <path d="M22 11.2A8 8 0 1 0 22 20.8" fill="none" stroke="#fff" stroke-width="3.600" stroke-linecap="round" />
          <circle cx="16" cy="16" r="2.600" fill="#fff" />
        </svg>
        <h1>Log in to cay</h1>
        <label class="field">
          Token
          <input
            type="password"
            name="token"
            autocomplete="off"
            spellcheck={false}
            placeholder="cay_…"
            autoFocus
            required
            value={token}
            onInput={(e) => setToken(e.currentTarget.value)}
          />
        </label>
        {error && (
          <p class="wrong" role="alert">
            {visible(error.message)}
            {error.hint && <span>{visible(error.hint)}</span>}
          </p>
        )}
        <button class="primary" disabled={busy}>
          {busy ? 'Logging in…' : 'Log in'}
        </button>
        <p class="dim">
          Or have a link: <code>cay ui</code>
        </p>
      </form>
    </main>
  );
}
