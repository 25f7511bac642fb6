// Watches workflow runs in the web inspector as a person does, and says at each step what it saw.
//
//   node workflows.mjs URL DIRECTORY
//
// It takes CAY_TOKEN, CHROMIUM; pictures go to DIRECTORY. The workflows are those of inspector_workflows_test.go.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { chromium } from 'playwright-core';
import { cost, looks } from './looks.mjs';
import { screenCost } from './scrolling.mjs';

const [url, directory] = process.argv.slice(2);
const { CAY_TOKEN: token, CHROMIUM: executablePath } = process.env;

/** api calls the daemon as a program does. */
async function api(method, path, body) {
  const answer = await fetch(url + path, {
    method,
    headers: { Authorization: `Bearer ${token}`, ...(body !== undefined && { 'Content-Type': 'application/json' }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  return answer.status === 204 ? undefined : answer.json();
}
const start = async (workflow, input, more = {}) => (await api('POST', '/v1/workflows/runs', { workflow, input: { json: input }, ...more })).run;
const wait = (id) => api('GET', `/v1/workflows/runs/${id}/wait`);
const resume = (hook, value) => api('POST', '/v1/workflows/hooks/resume', { token: hook, payload: { json: value } });
/** until asks until the answer is one. */
async function until(ask) {
  for (const began = Date.now(); Date.now() - began < 60_000; ) {
    const v = await ask();
    if (v) return v;
    await new Promise((done) => setTimeout(done, 50));
  }
  throw new Error(`never: ${ask}`);
}
const hooked = (hook) => until(async () => (await api('GET', `/v1/workflows/hooks?token=${encodeURIComponent(hook)}`)).items[0]);

const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
const failures = []; // what a page complained of, at any time
const watch = (page, name) => {
  page.on('console', (m) => {
    if (m.type() === 'error' || /Content Security Policy|TrustedHTML/.test(m.text())) failures.push(`${name}: ${m.text()}`);
  });
  page.on('pageerror', (e) => failures.push(`${name}: ${e.stack}`));
  page.on('dialog', (d) => {
    failures.push(`${name}: a dialog: ${d.message()}`);
    d.dismiss();
  });
  page.on('popup', (p) => failures.push(`${name}: a window: ${p.url()}`));
};
let passed = 0;
const step = async (name, run) => {
  const began = performance.now();
  try {
    await run();
    assert.deepEqual(failures, [], name);
    passed++;
    console.log(`ok ${name} (${((performance.now() - began) / 1000).toFixed(1)} s)`);
  } catch (e) {
    await page.screenshot({ path: join(directory, 'failed-workflows.png') }).catch(() => {});
    throw new Error(`${name}: ${e.stack}`, { cause: e });
  }
};

const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: 'dark' });
await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: url });
const page = await context.newPage();
page.setDefaultTimeout(60_000);
watch(page, 'page');
const panel = page.getByRole('complementary', { name: 'Details' });
const timeline = page.getByRole('list', { name: 'Timeline' });
const span = (name) => timeline.getByRole('button', { name });
/** inert fails if markup of others has become elements. */
const inert = async () => assert.equal(await page.locator('main img, main script, main b.x, main a[href^="javascript"]').count(), 0);
const hostile = [`<img src=x onerror=alert(1)>`, `"><script>alert(2)</script>`, `javascript:alert(3)//BEGIN\\u202egnp.exe`];
const input = (id) => ({ id, items: [{ name: 'lamp', count: 2 }, { name: 'cable', count: 1 }], note: 'ring twice' });

try {
  await step('nothing yet, and the command that makes the first one', async () => {
    await page.goto(url + '/workflows');
    await page.getByLabel('Token').fill(token);
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'No run yet' }).waitFor();
    await page.getByText('cay workflow start order 42').waitFor();
    await looks(page, 'workflow-runs-empty');
    await page.getByRole('link', { name: 'Schedules' }).click();
    await page.getByText('cay workflow schedule set nightly').waitFor();
    await looks(page, 'workflow-schedules-empty');
    await page.getByRole('link', { name: 'Waiting hooks' }).click();
    await page.getByRole('heading', { name: 'No run waits to be told something' }).waitFor();
    await looks(page, 'workflow-hooks-empty');
    await page.keyboard.press('g');
    await page.keyboard.press('w');
    await page.getByRole('heading', { name: 'No run yet' }).waitFor();
  });

  /** see looks at pages that are named by their addresses. */
  const see = async (views) => {
    for (const [name, path] of views) {
      await page.goto(url + path);
      await page.getByRole('heading', { level: 1 }).waitFor();
      await page.waitForFunction(() => !document.querySelector('.loading'));
      await looks(page, `workflow-${name}`);
    }
  };

  await step('an empty daemon says how to begin, and how its machine is', async () => {
    await page.keyboard.press('g');
    await page.keyboard.press('o');
    const begin = page.getByRole('region', { name: 'Begin here' });
    for (const command of ['cay sandbox create first', 'cay workflow start', 'cay gateway check', 'make demo']) await begin.getByText(command).first().waitFor();
    for (const name of ['CPU', 'Load', 'Memory', 'Disk']) {
      const said = await page.getByRole('region', { name: 'This machine' }).getByRole('meter', { name }).getAttribute('aria-valuetext');
      assert.match(said, /\d/, `${name} says ${said}`);
    }
    const host = await api('GET', '/v1/host');
    await page.getByText(`of ${host.cpus} CPU`).waitFor();
    await looks(page, 'workflow-overview-empty');
  });

  await step('the overview shows what comes, and leads to it', async () => {
    const run = await start('many steps', 1);
    await page.getByRole('region', { name: 'Begin here' }).waitFor({ state: 'detached' });
    const latest = page.getByRole('region', { name: 'Latest workflow runs' });
    await latest.getByRole('link', { name: /completed.*many steps/ }).waitFor();
    await page.getByRole('link', { name: /Runs going on.*1 completed in 24 h/ }).waitFor();
    assert.equal(await page.getByText('of the last 24 hours failed').count(), 0);
    const wrong = await start('broken', 0);
    await page.getByRole('region', { name: 'Needs attention' }).getByText('1 workflow run of the last 24 hours failed').click();
    await page.waitForURL(/\/workflows\?status=failed&time=24h/);
    await page.getByRole('row').filter({ hasText: 'broken' }).waitFor();
    await page.goto(url);
    await latest.getByRole('link', { name: /many steps/ }).click();
    await page.waitForURL(`**/workflows/${run.id}`);
    await page.goto(url + '/workflows');
    await page.getByRole('row').filter({ hasText: 'broken' }).waitFor();
    for (const id of [run.id, wrong.id]) await api('DELETE', `/v1/workflows/runs/${id}`);
    await page.getByRole('heading', { name: 'No run yet' }).waitFor();
  });

  await step('all keys are listed', async () => {
    await page.keyboard.press('?');
    const keys = page.getByRole('dialog', { name: 'Keys' });
    for (const what of ['Follow what happens', 'Earlier and later; also drag', 'Select from there to here', 'Filter or search']) await keys.getByText(what).waitFor();
    await looks(page, 'workflow-keys');
    await page.keyboard.press('Escape');
    await keys.waitFor({ state: 'detached' });
  });

  let order;
  await step('a run is listed the moment it is there, and as it changes', async () => {
    order = await start('order', input(41), { key: 'order-41', attributes: { customer: 'ada', region: 'eu' } });
    const row = page.getByRole('row').filter({ hasText: 'order-41' });
    await row.getByText('running').waitFor();
    const done = await start('shipping', 7);
    await wait(done.id);
    await page.getByRole('row').filter({ hasText: 'shipping' }).getByText('completed').waitFor();
  });

  await step('the list is filtered by status, workflow, attribute, time and id, and the address says so', async () => {
    await page.getByRole('button', { name: 'Completed' }).click();
    await page.getByRole('row').filter({ hasText: 'order-41' }).waitFor({ state: 'detached' });
    assert.match(page.url(), /status=completed/);
    await page.getByRole('button', { name: 'All', exact: true }).click();
    await page.getByRole('button', { name: 'customer=ada' }).click();
    await page.getByRole('row').filter({ hasText: 'shipping' }).waitFor({ state: 'detached' });
    assert.match(page.url(), /attribute=customer%3Dada/);
    await page.reload();
    await page.getByRole('row').filter({ hasText: 'order-41' }).waitFor();
    assert.equal(await page.getByRole('row').count(), 2);
    await page.getByRole('button', { name: 'Do not filter by customer=ada' }).click();
    await page.getByRole('combobox', { name: 'Workflow' }).selectOption('shipping');
    await page.getByRole('row').filter({ hasText: 'order-41' }).waitFor({ state: 'detached' });
    await page.getByRole('combobox', { name: 'Time' }).selectOption('1h');
    assert.match(page.url(), /workflow=shipping&time=1h/);
    await page.getByRole('row').filter({ hasText: 'shipping' }).waitFor();
    await page.goto(url + '/workflows');
    await page.getByRole('row').filter({ hasText: 'order-41' }).waitFor();
    await page.keyboard.press('/');
    await page.keyboard.type('region=eu');
    await page.keyboard.press('Enter');
    await page.waitForURL(/attribute=region%3Deu/);
    await page.goto(url + '/workflows?q=' + order.id);
    await page.getByRole('row').filter({ hasText: 'order-41' }).waitFor();
    assert.equal(await page.getByRole('row').count(), 2);
    await page.getByLabel('Search runs').fill('no such thing');
    await page.getByRole('heading', { name: 'Nothing matches' }).waitFor();
    await page.getByRole('button', { name: 'Show all' }).click();
  });

  await step('keys open a run; its timeline has steps, attempts and what it waits for', async () => {
    await hooked('approve:41');
    await page.getByLabel('Search runs').fill('order-41');
    await page.keyboard.press('Escape');
    await page.keyboard.press('j');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'order', exact: true }).waitFor();
    await span('reserve stock').waitFor();
    await span('charge card').getByText('×3').waitFor();
    await timeline.locator('.piece.hook.busy').waitFor();
    // The run itself is beside it: its input.
    await panel.getByText('ring twice').waitFor();
    await span('charge card').click();
    await panel.getByRole('heading', { name: 'Attempts' }).waitFor();
    assert.equal(await panel.locator('.wf-try').count(), 3);
    await panel.getByText('charge order 41: card reader is busy').first().waitFor();
    await panel.getByText('ch_7731').first().waitFor();
    assert.match(page.url(), /view=/);
    await page.reload();
    await panel.getByRole('heading', { name: 'charge card' }).waitFor();
    await page.keyboard.press('Escape');
    await panel.getByRole('heading', { name: 'order' }).waitFor();
  });

  await step('the timeline is zoomed, moved and searched', async () => {
    const wide = async () => (await timeline.locator('.piece.bar').nth(1).boundingBox())?.width ?? 0;
    const before = await wide();
    await page.keyboard.press('+');
    await page.keyboard.press('+');
    await page.waitForFunction((w) => document.querySelectorAll('.piece.bar')[1].getBoundingClientRect().width !== w, before);
    await page.keyboard.press('h');
    await page.waitForURL(/zoom=/);
    const zoomed = page.url();
    await page.keyboard.press('0');
    await page.waitForURL((u) => !u.search.includes('zoom'));
    await page.goto(zoomed);
    await span('reserve stock').waitFor();
    await page.getByRole('button', { name: 'Fit' }).click();
    const box = await timeline.locator('.trace-axis .trace-track').boundingBox();
    await page.mouse.move(box.x + box.width * 0.1, box.y + 10);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.3, box.y + 12, { steps: 4 });
    await page.mouse.up();
    await page.waitForURL(/zoom=/);
    await page.keyboard.press('0');
    await page.keyboard.press('/');
    await page.keyboard.type('charge');
    await span('reserve stock').waitFor({ state: 'detached' });
    await span('charge card').waitFor();
    await page.getByLabel('Search steps').fill('');
    await page.keyboard.press('Escape');
    await page.keyboard.press('j');
    await page.keyboard.press('j');
    await page.keyboard.press('Enter');
    await panel.getByRole('heading', { name: 'reserve stock' }).waitFor();
    await page.keyboard.press('Escape');
  });

  await step('a hook is resumed with JSON, and the page goes on with the run', async () => {
    await page.getByRole('tab', { name: 'Hooks' }).click();
    await page.getByText(`May it be sent? ${hostile[0]}`).waitFor();
    await inert();
    await page.getByLabel('Value, as JSON').fill('{"yes": tru');
    await page.getByRole('button', { name: 'Resume' }).click();
    await page.getByRole('alert').getByText('This is not JSON').waitFor();
    await page.getByLabel('Value, as JSON').fill('{"yes": true, "number": 12345678901234567890}');
    await page.getByRole('button', { name: 'Resume' }).click();
    await page.locator('.title').getByText('completed').waitFor();
    await page.getByRole('tab', { name: 'Timeline' }).click();
    // What was typed arrived as it was typed, and is shown so.
    await span('approve:41').click();
    await panel.getByText('12345678901234567890', { exact: true }).waitFor();
    await span('shipping').click();
    await panel.getByRole('link', { name: /^wrun_/ }).waitFor();
    const log = await (await fetch(`${url}/v1/workflows/runs/${order.id}/events`, { headers: { Authorization: `Bearer ${token}` } })).text();
    assert.ok(log.includes('12345678901234567890'));
    await panel.getByRole('link', { name: /^wrun_/ }).click();
    await page.getByRole('heading', { name: 'shipping', exact: true }).waitFor();
    await page.getByText('child of').getByRole('link').click();
    await page.getByRole('heading', { name: 'order', exact: true }).waitFor();
  });

  await step('events are searched, looked at and copied', async () => {
    await page.getByRole('tab', { name: 'Events' }).click();
    const events = page.getByRole('table', { name: 'Events' });
    await events.getByText('run_completed').waitFor();
    await page.getByLabel('Search events').fill('retrying');
    await page.getByText('2 events').waitFor();
    await events.getByText('step_retrying').first().click();
    await page.locator('.split-view').getByText('charge order 41: card reader is busy').first().waitFor();
    await page.getByRole('button', { name: 'Copy JSON of the events' }).click();
    const copied = JSON.parse(await page.evaluate(() => navigator.clipboard.readText()));
    assert.deepEqual(copied.map((e) => e.type), ['step_retrying', 'step_retrying']);
    // What JavaScript would round is copied as it is.
    await page.getByLabel('Search events').fill('hook_received');
    await page.getByText('1 event', { exact: true }).waitFor();
    await page.getByRole('button', { name: 'Copy JSON of the events' }).click();
    await page.waitForFunction(() => navigator.clipboard.readText().then((t) => t.includes('12345678901234567890') && JSON.parse(t).length === 1));
    assert.match(page.url(), /tab=events.*view=\d+|view=\d+.*tab=events/);
    await page.getByLabel('Search events').fill('');
  });

  await step('streams are shown as JSON and as text', async () => {
    await page.getByRole('tab', { name: 'Streams' }).click();
    const chunks = page.getByRole('table', { name: 'Chunks' });
    await chunks.getByText('"Order "').waitFor();
    await page.getByRole('button', { name: 'Text' }).click();
    await page.getByRole('log').getByText(`on its way to you: ${hostile[0]}`).waitFor();
    await inert();
    await page.getByRole('button', { name: /^parts/ }).click();
    await page.getByRole('log').getByText('part 0, part 1, part 2').waitFor();
    await page.getByRole('button', { name: 'JSON', exact: true }).click();
    await chunks.getByRole('button').first().click();
    await page.locator('.split-view').getByText('text-delta').waitFor();
    await page.getByText('closed').waitFor();
    assert.match(page.url(), /stream=parts/);
  });

  let clock;
  await step('what a run does and writes comes by itself', async () => {
    clock = await start('clock', 2000);
    await page.goto(`${url}/workflows/${clock.id}`);
    await page.getByText('Follow').waitFor();
    const spans = () => page.locator('.wf-bar .num').first().innerText().then((t) => parseInt(t, 10));
    await until(async () => (await spans()) > 3);
    const before = await spans();
    await until(async () => (await spans()) > before + 4);
    await page.getByRole('tab', { name: 'Streams' }).click();
    await page.getByRole('table', { name: 'Chunks' }).getByText('{"tick":3}').waitFor();
    await page.getByText('live').waitFor();
  });

  await step('a run is cancelled, and run again', async () => {
    await page.getByRole('button', { name: 'Cancel', exact: true }).click();
    await page.getByLabel('Reason').fill(`enough ${hostile[0]}`);
    await looks(page, 'workflow-cancel');
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel the run' }).click();
    await page.locator('.title').getByText('cancelled').waitFor();
    await page.getByText(`enough ${hostile[0]}`).first().waitFor();
    await inert();
    await page.getByRole('button', { name: 'Run again' }).click();
    await looks(page, 'workflow-run-again');
    await page.getByRole('dialog').getByRole('button', { name: 'Run again' }).click();
    await page.waitForURL((u) => u.pathname.startsWith('/workflows/wrun_') && !u.pathname.includes(clock.id));
    await page.locator('.title').getByText('running').waitFor();
    await page.getByRole('button', { name: 'Cancel', exact: true }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel the run' }).click();
    await page.locator('.title').getByText('cancelled').waitFor();
  });

  await step('a sleep is woken', async () => {
    const sleeper = await start('remind', 3);
    await page.goto(`${url}/workflows/${sleeper.id}`);
    await timeline.locator('.piece.sleep.busy').waitFor();
    await timeline.getByRole('button', { name: /wait, open/ }).click();
    await panel.getByText('Until', { exact: true }).waitFor();
    await panel.getByRole('button', { name: 'Wake it now' }).click();
    await page.locator('.title').getByText('completed').waitFor();
  });

  let broken;
  await step('a failure says what, where and why', async () => {
    broken = await start('broken', 0, { attributes: { customer: 'grace' } });
    await wait(broken.id);
    await page.goto(`${url}/workflows/${broken.id}`);
    await page.locator('.wf-why').getByText('integer divide by zero').waitFor();
    await span('divide').click();
    await panel.getByText('panic: runtime error: integer divide by zero').first().waitFor();
    assert.match(await panel.locator('.wf-position code').innerText(), /inspector_workflows_test\.go:\d+$/);
    await panel.getByText('Stack', { exact: true }).waitFor();
    assert.equal(await panel.locator('.wf-try').count(), 2);
  });

  let evil;
  await step('what hostile runs say is text', async () => {
    evil = await start('evil <img src=x onerror=alert(4)>', hostile[1], { key: hostile[0] });
    await wait(evil.id);
    await page.goto(`${url}/workflows?q=evil`);
    await page.getByRole('link', { name: 'evil <img src=x onerror=alert(4)>' }).waitFor();
    await page.getByRole('button', { name: `${hostile[0]}=${hostile[1]}` }).click();
    await page.getByRole('button', { name: `Do not filter by ${hostile[0]}=${hostile[1]}` }).waitFor();
    await page.getByRole('link', { name: 'evil <img src=x onerror=alert(4)>' }).waitFor();
    await inert();
    for (const tab of ['timeline', 'events', 'streams', 'hooks']) {
      await page.goto(`${url}/workflows/${evil.id}?tab=${tab}`);
      await page.getByRole('heading', { name: 'evil <img src=x onerror=alert(4)>', exact: true, level: 1 }).waitFor();
      await inert();
    }
    await page.goto(`${url}/workflows/${evil.id}`);
    await timeline.getByRole('button', { name: /step <b class=x/ }).click();
    // The mark that turns writing round is seen.
    await panel.getByText(hostile.join(' ')).first().waitFor();
    await inert();
    assert.equal(await page.title(), 'evil <img src=x onerror=alert(4)> · cay');
    // Nor do addresses make anything of what is in them.
    for (const q of ['view=%3Cimg%20src%3Dx%20onerror%3Dalert(5)%3E', 'zoom=1e999_2', 'tab=events&view=__proto__', 'stream=%3Cb%3E&tab=streams']) {
      await page.goto(`${url}/workflows/${evil.id}?${q}`);
      await page.getByRole('heading', { level: 1 }).waitFor();
      await inert();
    }
  });

  await step('many are selected and cancelled', async () => {
    for (let i = 0; i < 4; i++) await start('remind', 30 + i);
    await page.goto(`${url}/workflows?workflow=remind&status=running`);
    await page.getByRole('row').nth(4).waitFor();
    await page.getByRole('checkbox').nth(0).click();
    await page.getByRole('checkbox').nth(2).click({ modifiers: ['Shift'] });
    await page.getByText('3 selected').waitFor();
    await looks(page, 'workflow-selected');
    await page.getByRole('button', { name: 'Cancel 3' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel them' }).click();
    await page.getByText('3 of 3 cancelled').waitFor();
    await page.waitForFunction(() => document.querySelectorAll('[role=row]').length === 2);
    await page.getByRole('button', { name: 'Cancel all that match' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel them' }).click();
    await page.getByRole('heading', { name: 'Nothing matches' }).waitFor();
  });

  await step('hooks of all runs are listed, and webhooks have an address', async () => {
    await start('order', input(42), { key: 'order-42', attributes: { customer: 'alan' } });
    const hook = await start('webhook', '');
    await hooked('approve:42');
    await page.goto(url + '/workflows/hooks');
    const item = page.getByRole('listitem').filter({ hasText: 'approve:42' });
    await item.getByText('May it be sent?').waitFor();
    await page.getByText('/.well-known/workflow/v1/webhook/').first().waitFor();
    await item.getByRole('button', { name: 'Resume…' }).click();
    await item.getByLabel('Value, as JSON').fill('{"yes": fal');
    await item.getByRole('button', { name: 'Resume', exact: true }).click();
    await item.getByRole('alert').waitFor();
    await looks(page, 'workflow-hooks-resume');
    await item.getByLabel('Value, as JSON').fill('{"yes": false}');
    await item.getByRole('button', { name: 'Resume', exact: true }).click();
    await item.waitFor({ state: 'detached' });
    await page.goto(`${url}/workflows/${hook.id}?tab=hooks`);
    const address = await page.locator('code', { hasText: '/.well-known/' }).first().innerText();
    assert.equal(await (await fetch(address, { method: 'POST', body: hostile[0] })).text(), 'thanks');
    await page.locator('.title').getByText('completed').waitFor();
    await page.getByText('Received').first().waitFor();
  });

  await step('what changes comes by itself, and nothing is asked for again and again', async () => {
    const waiting = await start('order', input(61), { key: 'order-61' });
    await hooked('approve:61');
    const places = ['/', '/workflows', '/workflows/hooks', '/workflows/schedules', '/agents', `/workflows/${waiting.id}`];
    const opened = [];
    // One browser has few connections for all its pages, and they go on all the same.
    const other = await browser.newContext({ viewport: { width: 1440, height: 900 }, storageState: await context.storageState() });
    for (const at of places) {
      const p = await other.newPage();
      p.setDefaultTimeout(60_000);
      watch(p, at);
      const asked = new Map();
      const count = (r) => asked.set(r.url(), (asked.get(r.url()) ?? 0) + 1);
      p.on('request', count);
      p.on('websocket', count);
      await p.goto(url + at);
      await p.getByRole('heading', { level: 1 }).waitFor();
      opened.push({ at, p, asked });
    }
    await page.waitForTimeout(2000); // what is asked for at first
    for (const o of opened) o.asked.clear();
    const began = Date.now();
    await page.waitForTimeout(7000);
    const seconds = (Date.now() - began) / 1000;
    for (const { at, asked } of opened) {
      // The machine's load has no events: it is looked at every five seconds. What has come late is asked for once.
      for (const [to, n] of asked) assert.ok(n <= (to.endsWith('/v1/host') ? 1 + seconds / 5 : 1), `${at} asked ${n} times for ${to} in ${seconds} s, and nothing had happened`);
      if (at === '/') assert.ok(asked.has(`${url}/v1/host`), 'the machine is looked at');
    }
    // Elsewhere, a run starts, an agent, and a schedule is made.
    await start('order', input(62), { key: 'order-62' });
    await start('remind', 9, { key: 'agent-62', attributes: { $agent: 'concierge', '$agent.model': 'anthropic/claude' } });
    await api('PUT', '/v1/workflows/schedules/comes', { workflow: 'shipping', cron: '0 3 * * *', paused: true });
    await resume('approve:61', { yes: true });
    const seen = Object.fromEntries(opened.map((o) => [o.at, o.p]));
    await seen['/workflows'].getByRole('row').filter({ hasText: 'order-62' }).waitFor();
    await seen['/workflows'].getByRole('row').filter({ hasText: 'order-61' }).getByText('completed').waitFor();
    await seen['/workflows/hooks'].getByText('approve:62').waitFor();
    await seen['/workflows/hooks'].getByText('approve:61').waitFor({ state: 'detached' });
    await seen['/workflows/schedules'].getByText('comes', { exact: true }).waitFor();
    await seen['/agents'].getByRole('row').filter({ hasText: 'concierge' }).waitFor();
    await seen['/'].getByRole('region', { name: 'Latest workflow runs' }).getByText('concierge').waitFor();
    await seen[`/workflows/${waiting.id}`].locator('.title').getByText('completed').waitFor();
    // What does not fit a filter any more leaves the list.
    await seen['/workflows'].goto(`${url}/workflows?status=running&workflow=remind`);
    const row = seen['/workflows'].getByRole('row').filter({ hasText: 'agent-62' });
    await row.waitFor();
    const [{ id }] = (await api('GET', '/v1/workflows/runs?key=agent-62')).items;
    await api('POST', `/v1/workflows/runs/${id}/cancel`, { force: true });
    await row.waitFor({ state: 'detached' });
    await api('DELETE', '/v1/workflows/schedules/comes');
    await seen['/workflows/schedules'].getByText('comes', { exact: true }).waitFor({ state: 'detached' });
    await api('DELETE', `/v1/workflows/runs/${id}`);
    await resume('approve:62', {});
    await other.close();
  });

  await step('a list of agents says why one has failed', async () => {
    const { id } = await start('broken', 0, { attributes: { $agent: 'doomed' } });
    await wait(id);
    const { error_code: why } = await api('GET', `/v1/workflows/runs/${id}`);
    assert.ok(why);
    await page.goto(url + '/agents');
    await page.getByRole('row').filter({ hasText: 'doomed' }).getByRole('cell').nth(2).getByText(why, { exact: true }).waitFor();
    await api('DELETE', `/v1/workflows/runs/${id}`);
  });

  await step('an agent that is a tool shows what it does, and what it did', async () => {
    const run = await start('remind', 8, { attributes: { $agent: 'planner' } });
    const write = (...chunks) => api('POST', `/v1/workflows/runs/${run.id}/stream?name=ui`, { chunks: chunks.map((json) => ({ json })) });
    const work = (said, more = {}) => ({
      type: 'tool-output-available', toolCallId: 'c1', preliminary: true,
      output: { id: 'm', role: 'assistant', parts: [{ type: 'step-start' }, { type: 'text', text: said }, { type: 'dynamic-tool', toolName: 'search', toolCallId: 'c2', state: 'output-available', input: { q: hostile[0], big: 1 }, output: { hits: 3 }, ...more }, null, 7] },
    });
    await write({ type: 'start', messageId: 'a' }, { type: 'start-step' }, ...['c1', 'c3'].map((toolCallId) => ({ type: 'tool-input-available', toolCallId, toolName: toolCallId === 'c1' ? 'researcher' : 'clock', input: { prompt: 'look' } })), work('I look for it.'));
    await page.goto(`${url}/agents/${run.id}`);
    await page.getByText('What it does').waitFor();
    await page.getByText('I look for it.').waitFor();
    await page.getByText('search', { exact: true }).waitFor();
    await page.getByText('clock', { exact: true }).waitFor(); // of the same answer, at the same time
    await inert();
    await write(work('I look for it. Found.'), { type: 'tool-output-available', toolCallId: 'c1', output: 'There are three.' });
    await page.getByText('What it did').click();
    await page.getByText('I look for it. Found.').waitFor();
    await inert();
    await looks(page, 'workflow-subagent');
    await api('DELETE', `/v1/workflows/runs/${run.id}`).catch(() => api('POST', `/v1/workflows/runs/${run.id}/cancel`, { force: true }));
  });

  await step('what may be old says so, until it is not', async () => {
    const other = await browser.newContext({ viewport: { width: 1440, height: 900 }, storageState: await context.storageState() });
    const p = await other.newPage(); // the browser complains of connections that fail: that is not of ours
    let broken = true;
    await p.route(/\/runs\/changes/, (route) => (broken ? route.abort() : route.continue()));
    await p.routeWebSocket(/\/runs\/changes/, (socket) => (broken ? socket.close({ code: 1011 }) : socket.connectToServer()));
    await p.goto(url + '/workflows');
    await p.getByRole('row').filter({ hasText: 'order-61' }).waitFor();
    await p.getByText('not connected, may be old').waitFor();
    await p.getByText('Reconnecting').waitFor();
    await looks(p, 'workflow-reconnecting');
    broken = false;
    await p.getByText('live', { exact: true }).waitFor();
    await p.getByText('Reconnecting').waitFor({ state: 'detached' });
    await p.unrouteAll({ behavior: 'ignoreErrors' }); // of what is just being asked
    await other.close();
  });

  await step('schedules are paused, resumed, and deleted', async () => {
    for (const [id, cron] of [['nightly', '0 3 * * *'], ['weekly-report', '30 6 * * 1']])
      await api('PUT', `/v1/workflows/schedules/${id}`, { workflow: 'shipping', cron, zone: 'Europe/Berlin', input: { json: { region: 'eu', note: hostile[0] } } });
    await page.goto(url + '/workflows/schedules');
    const item = page.getByRole('listitem').filter({ hasText: 'nightly' });
    await item.getByRole('button', { name: 'Pause' }).click();
    await item.getByText('paused').waitFor();
    const [kept] = (await api('GET', '/v1/workflows/schedules')).items.filter((s) => s.id === 'nightly');
    assert.deepEqual([kept.paused, kept.cron, kept.zone, kept.input], [true, '0 3 * * *', 'Europe/Berlin', { json: { region: 'eu', note: hostile[0] } }]);
    await item.getByRole('button', { name: 'Resume' }).click();
    await item.getByText('on', { exact: true }).waitFor();
    await inert();
    await looks(page, 'workflow-schedules-some');
    await item.getByRole('button', { name: 'Delete' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
    await item.waitFor({ state: 'detached' });
    // A number that JavaScript cannot hold is shown as it is, and stays.
    await fetch(`${url}/v1/workflows/schedules/exact`, { method: 'PUT', headers: { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' }, body: '{"workflow":"shipping","cron":"0 4 * * *","input":{"json":{"n":12345678901234567890,"d":0.12345678901234567891}}}' });
    const exact = page.getByRole('listitem').filter({ hasText: 'exact' });
    await exact.getByText('12345678901234567890', { exact: true }).waitFor();
    await exact.getByText('0.12345678901234567891', { exact: true }).waitFor();
    await exact.getByRole('button', { name: 'Pause' }).click();
    await exact.getByText('paused').waitFor();
    const kept2 = await (await fetch(`${url}/v1/workflows/schedules`, { headers: { Authorization: `Bearer ${token}` } })).text();
    assert.ok(kept2.includes('12345678901234567890') && kept2.includes('"paused":true'), kept2);
  });

  let many;
  await step('a timeline of a thousand steps draws what is seen', async () => {
    many = await start('many steps', 1000);
    await wait(many.id);
    await page.goto(`${url}/workflows/${many.id}`);
    await span('step 3').first().waitFor();
    await page.getByText('1,000 spans').first().waitFor();
    assert.ok((await timeline.getByRole('listitem').count()) < 70);
    await timeline.evaluate((b) => (b.scrollTop = b.scrollHeight));
    await span('step 999').waitFor();
    await page.getByRole('tab', { name: 'Events' }).click();
    await page.getByRole('table', { name: 'Events' }).getByText('run_created').waitFor();
    assert.ok((await page.getByRole('row').count()) < 70);
    // An address leads to a row that is far down.
    await page.goto(`${url}/workflows/${many.id}?tab=events&view=700`);
    await page.locator('.row.selected').getByText('700', { exact: true }).waitFor();
  });

  await step('all pages can be used by everybody, dark and light, wide and narrow', async () => {
    for (let i = 0; i < 6; i++) await start(['shipping', 'order', 'remind'][i % 3], i % 3 === 1 ? input(100 + i) : i + 2, { key: `k-${i}`, attributes: { customer: ['ada', 'alan', 'grace'][i % 3], region: i % 2 ? 'us' : 'eu' } });
    await start('clock', 500);
    const waiting = await start('order', input(77), { key: 'order-77', attributes: { customer: 'ada', '$agent': 'packer', '$agent.model': 'anthropic/claude', '$agent.tokens': '18234', '$agent.cost': '0.0421' } });
    await hooked('approve:77');
    const views = [
      ['overview', '/'], ['agents', '/agents'], ['runs', '/workflows'], ['run', `/workflows/${order.id}`], ['run-waiting', `/workflows/${waiting.id}`], ['run-failed', `/workflows/${broken.id}?view=step_divide.1`],
      ['run-step', `/workflows/${order.id}?view=step_charge%20card.1`], ['run-events', `/workflows/${order.id}?tab=events&view=6`], ['run-streams', `/workflows/${order.id}?tab=streams`],
      ['run-text', `/workflows/${order.id}?tab=streams&as=text`], ['run-hooks', `/workflows/${waiting.id}?tab=hooks`], ['run-hooks-received', `/workflows/${order.id}?tab=hooks`], ['run-hostile', `/workflows/${evil.id}?view=step_${encodeURIComponent('step <b class=x onclick=alert(5)>bold')}.1`], ['run-many', `/workflows/${many.id}`], ['hooks', '/workflows/hooks'], ['schedules', '/workflows/schedules'],
    ];
    await see(views);
  });

  await step('a list of 10,000 runs is as quick as one of ten', async () => {
    const other = await browser.newContext({ viewport: { width: 1440, height: 900 }, storageState: await context.storageState() });
    const p = await other.newPage();
    watch(p, 'many');
    const begin = Date.parse('2026-11-01T12:00:00Z');
    const run = (n) => ({ ...order, id: `wrun_${String(99_999 - n).padStart(26, '0')}`, workflow: `job-${n}`, key: `key-${n}`, status: n % 7 ? 'completed' : 'failed', created_at: new Date(begin - n * 1000).toISOString(), started_at: new Date(begin - n * 1000 + 20).toISOString(), completed_at: new Date(begin - n * 1000 + 900).toISOString() });
    await p.route(/\/v1\/workflows\/runs\?/, (route) => {
      const q = new URL(route.request().url()).searchParams;
      const from = Number(q.get('cursor') ?? 0);
      const limit = Number(q.get('limit'));
      return route.fulfill({ json: { items: Array.from({ length: Math.min(limit, 10_000 - from) }, (_, i) => run(from + i)), next: from + limit < 10_000 ? String(from + limit) : undefined } });
    });
    // A filter that selects none of those that go on elsewhere.
    await p.goto(url + '/workflows?workflow=job');
    await p.getByText('200 runs').waitFor();
    // Pages come as somebody scrolls.
    await p.locator('.table').evaluate((b) => (b.scrollTop = b.scrollHeight));
    await p.getByText('400 runs').waitFor();
    const began = Date.now();
    await p.getByLabel('Search runs').fill('key-9999');
    await p.getByText('1 run of the latest 10,000').waitFor();
    const searched = Date.now() - began;
    await p.getByLabel('Search runs').fill('');
    await p.getByText('10,000 runs').waitFor();
    assert.ok((await p.getByRole('row').count()) < 60, 'only the rows that are seen are drawn');
    const took = await screenCost(p);
    await p.getByRole('row', { name: /job-9[0-9]{3}/ }).first().waitFor();
    console.log(`10,000 runs: a screen in ${Math.round(took)} ms of CPU, all read and searched in ${searched} ms`);
    assert.ok(took > 0 && took < 400, `a screen takes ${took} ms of CPU`); // some 50, and noise
    await p.unrouteAll({ behavior: 'ignoreErrors' }); // of what is just being asked
    await other.close();
  });

  await step('a run that is not there', async () => {
    await page.goto(`${url}/workflows/wrun_${'0'.repeat(26)}`);
    await page.getByRole('alert').getByText('not found').waitFor();
    await looks(page, 'workflow-not-found');
    failures.length = 0; // the browser says that it was answered 404
  });
  console.log(cost());
  console.log(`${passed} steps passed`);
} finally {
  await browser.close();
}
