// Opens a preview in a browser, waits for its live-reload connection, says so,
// and waits for the page to become another one.
//
//   node preview.mjs URL HEADING CHANGED DIRECTORY
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const [url, heading, changed, directory] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] });
try {
  const page = await browser.newPage({ viewport: { width: 900, height: 500 } });
  const failed = [];
  page.on('requestfailed', (r) => failed.push(`${r.url()}: ${r.failure().errorText}`));
  page.on('pageerror', (e) => failed.push(String(e)));
  await page.goto(url);
  await page.getByRole('heading', { name: heading }).waitFor();
  await page.locator('html[data-live=open]').waitFor();
  await page.screenshot({ path: join(directory, 'before.png') });
  console.log('live');
  await page.getByRole('heading', { name: changed }).waitFor();
  await page.screenshot({ path: join(directory, 'after.png') });
  if (failed.length) throw new Error(failed.join('\n'));
  console.log('changed');
} finally {
  await browser.close();
}
