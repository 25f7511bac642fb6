// Asks the agent of a page a question, reloads the page in the middle of the answer, and
// says what the page shows: {"before":[...],"after":[...],"again":[...]}, the texts of each
// message of the agent when the page was reloaded, at the answer's end, and after another reload.
//
//   node chat.mjs URL DIRECTORY NAME
//
// It takes CHROMIUM; a picture goes to DIRECTORY/NAME.png.
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const [url, directory, name] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] });
const page = await browser.newPage();
page.setDefaultTimeout(120_000);
const errors = [];
page.on('pageerror', (e) => errors.push(e.stack));
const answers = async () => Promise.all((await page.locator('section[data-role=assistant]').all()).map(async (m) => (await m.locator('> p').allInnerTexts()).join(' ')));

await page.goto(url);
await page.getByRole('button', { name: 'Send' }).click();
await page.getByText('I need a moment.').waitFor();
const before = await answers();
await page.reload();
await page.getByText('The sum is').waitFor();
await page.getByRole('status').filter({ hasText: /^ready$/ }).waitFor();
const after = await answers();
await page.screenshot({ path: join(directory, `${name}.png`), fullPage: true });
await page.reload();
await page.getByText('The sum is').waitFor();
const again = await answers();
await browser.close();
if (errors.length) throw new Error(errors.join('\n'));
console.log(JSON.stringify({ before, after, again }));
