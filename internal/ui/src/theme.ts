// Dark and light: as the system says, unless somebody has chosen.
import { computed, signal } from '@preact/signals';

export type Choice = 'auto' | 'dark' | 'light';

const name = 'cay.theme';
const dark = window.matchMedia('(prefers-color-scheme: dark)');
const system = signal(dark.matches);
dark.addEventListener('change', () => {
  system.value = dark.matches;
  apply();
});

const stored = localStorage.getItem(name);
export const choice = signal<Choice>(stored === 'dark' || stored === 'light' ? stored : 'auto');

/** theme is what is shown. */
export const theme = computed(() => (choice.value === 'auto' ? (system.value ? 'dark' : 'light') : choice.value));

function apply(): void {
  document.documentElement.dataset.theme = theme.value;
}

export function choose(c: Choice): void {
  choice.value = c;
  localStorage.setItem(name, c);
  apply();
}

apply();
