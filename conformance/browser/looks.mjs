// Looks at pages in all sizes and themes: whether they fit their window, and whether people can use them who see little or nothing.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const sizes = { desktop: { width: 1440, height: 900 }, phone: { width: 390, height: 844 } };
const axe = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const pictures = process.env.CAY_SCREENSHOTS;
const spent = { pages: 0, looks: 0, ms: 0 };

/**
 * looks looks at a page in each size and theme. It fails if the page or a dialog is wider than its window, or if axe finds
 * something serious. With CAY_SCREENSHOTS it keeps a picture of each look. The page is large and dark before and afterwards.
 */
export async function looks(page, name) {
  const began = performance.now();
  const found = [];
  for (const [size, viewport] of Object.entries(sizes)) {
    await page.setViewportSize(viewport);
    for (const colorScheme of ['dark', 'light']) {
      await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
      const look = `${name}-${size}-${colorScheme}`;
      await page.waitForFunction((scheme) => document.documentElement.dataset.theme === scheme, colorScheme);
      const fits = () => [...document.querySelectorAll('html, main, dialog')].every((e) => e.scrollWidth <= e.clientWidth);
      if (!(await page.waitForFunction(fits, undefined, { timeout: 10_000 }).catch(() => false))) found.push(`${look} is wider than its window`); // charts follow their window a moment later
      if (pictures) await page.waitForLoadState('networkidle', { timeout: 700 }).catch(() => {});
      found.push(...(await hinders(page, colorScheme === 'dark' ? undefined : colours)).map((f) => `${look}: ${f}`));
      if (pictures) await page.screenshot({ path: join(pictures, `${look}.png`) });
      spent.looks++;
    }
  }
  await page.setViewportSize(sizes.desktop);
  await page.emulateMedia({ colorScheme: 'dark', reducedMotion: null });
  spent.pages++;
  spent.ms += performance.now() - began;
  assert.deepEqual(found, []);
}

/** cost says how long all looks have taken. */
export const cost = () => `${spent.pages} pages in ${spent.looks} looks, ${(spent.ms / 1000).toFixed(1)} s`;

/** colours are the rules of axe that look at them: others find the same in each theme. */
const colours = ['color-contrast', 'link-in-text-block'];

/** hinders returns what axe finds on a page that is serious or critical, by some of its rules or by all. */
async function hinders(page, runOnly) {
  if (!(await page.evaluate(() => 'axe' in window))) await page.evaluate(axe);
  const violations = await page.evaluate(async (runOnly) => {
    const { violations } = await axe.run(document, { resultTypes: ['violations'], preload: false, ...(runOnly && { runOnly }) });
    return violations.map((v) => ({ id: v.id, impact: v.impact, nodes: v.nodes.map((n) => `${n.target.join(' ')}: ${n.failureSummary.split('\n').slice(1).join(';')}`) }));
  }, runOnly);
  return violations.filter((v) => ['serious', 'critical'].includes(v.impact)).map((v) => `${v.id} (${v.impact}): ${v.nodes.slice(0, 5).join(' | ')}${v.nodes.length > 5 ? ` | and ${v.nodes.length - 5} more` : ''}`);
}
