// Uses the inspector's pages of the gateway and of agents as a person does, and says at each step what it saw.
//
//   node models.mjs URL DIRECTORY
//
// It takes CAY_TOKEN, CAY_GATEWAY (its address) and CHROMIUM; pictures go to DIRECTORY. The daemon has been asked nothing yet.
// Of its providers, spare always fails; a worker has the agent "assistant": see inspector_models_test.go.
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { chromium } from 'playwright-core';
import { cost, looks } from './looks.mjs';

const [url, directory] = process.argv.slice(2);
const { CAY_TOKEN: token, CAY_GATEWAY: gateway, CHROMIUM: executablePath } = process.env;

async function api(method, path, body) {
  const answer = await fetch(url + path, { method, headers: { Authorization: `Bearer ${token}`, ...(body && { 'Content-Type': 'application/json' }) }, body: body && JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  return answer.status === 204 ? undefined : answer.json();
}
/** chat calls a model, and returns the status of the answer. */
async function chat(model, { key = token, user = '', tags = [], text = 'Hello.', options } = {}) {
  const answer = await fetch(gateway + '/v1/chat/completions', {
    method: 'POST',
    headers: { Authorization: `Bearer ${key}`, 'Content-Type': 'application/json', ...(user && { 'x-cay-user': encodeURIComponent(user) }), ...(tags.length && { 'x-cay-tags': tags.map(encodeURIComponent).join(',') }) },
    body: JSON.stringify({ model, max_tokens: 200, messages: [{ role: 'user', content: text }], ...(options && { providerOptions: { gateway: options } }) }),
  });
  await answer.text();
  return answer.status;
}
const start = async (prompt) => (await api('POST', '/v1/workflows/runs', { workflow: 'assistant', input: { json: { prompt } } })).run.id;

const hostile = ['<img src=x onerror=alert(1)>', '"><script>alert(2)</script>', 'BEGIN\u202Egnp.exe'];

const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
const failures = [];
const watch = (page) => {
  page.on('console', (m) => {
    if (m.type() === 'error' || /Content Security Policy|TrustedHTML/.test(m.text())) failures.push(m.text());
  });
  page.on('pageerror', (e) => failures.push(e.stack));
  page.on('dialog', (d) => {
    failures.push(`a dialog: ${d.message()}`);
    d.dismiss();
  });
  page.on('popup', (p) => failures.push(`a window: ${p.url()}`));
};
let passed = 0;
const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, colorScheme: 'dark' });
const page = await context.newPage();
page.setDefaultTimeout(60_000);
watch(page);
const shot = (name) => page.screenshot({ path: join(directory, `${name}.png`) });
const step = async (name, run) => {
  const began = performance.now();
  try {
    await run();
    assert.deepEqual(failures, [], name);
    assert.equal(await page.locator('main img, main script, main iframe').count(), 0, 'markup is text');
    passed++;
    console.log(`ok ${name} (${((performance.now() - began) / 1000).toFixed(1)} s)`);
  } catch (e) {
    await shot('models-failed').catch(() => {});
    throw new Error(`${name}: ${e.stack}`, { cause: e });
  }
};
const row = (text) => page.getByRole('row').filter({ hasText: text });

try {
  await step('log in, and be told how to begin', async () => {
    await page.goto(url + '/gateway/requests');
    await page.getByLabel('Token').fill(token);
    await page.keyboard.press('Enter');
    await page.getByText('No model call yet').waitFor();
    await page.getByText('cay gateway keys create first').waitFor();
    await looks(page, 'requests-empty');
    await page.keyboard.press('g');
    await page.keyboard.press('a');
    await page.getByText('No agent has run yet').waitFor();
    await looks(page, 'agents-empty');
    await page.keyboard.press('g');
    await page.keyboard.press('g');
    await page.getByRole('heading', { name: 'AI gateway' }).waitFor();
    assert.equal(page.url(), url + '/gateway');
  });

  await step('requests are there as they end', async () => {
    await page.getByRole('navigation', { name: 'Gateway' }).getByRole('link', { name: 'Requests' }).click();
    await page.locator('.list-foot').getByText('live', { exact: true }).waitFor();
    assert.equal(await chat('acme/small', { user: 'ada', tags: ['nightly'] }), 200);
    await row('acme/small').getByText('succeeded').waitFor();
    assert.equal(await chat('acme/large', { user: hostile[0], tags: [hostile[1]], text: hostile[0], options: { order: ['spare', 'house'] } }), 200);
    await row('acme/large').getByText(hostile[1]).waitFor();
    assert.equal(await chat(hostile[2], { user: 'grace' }), 404);
    await row('BEGIN\\u202egnp.exe').getByText('refused').waitFor();
  });

  await step('filters are parts of the address', async () => {
    await page.getByRole('button', { name: 'Refused' }).click();
    await row('acme/small').waitFor({ state: 'detached' });
    assert.match(page.url(), /status=refused/);
    await page.getByRole('button', { name: 'All', exact: true }).click();
    await page.keyboard.press('/');
    await page.keyboard.type('user:ada');
    await page.keyboard.press('Enter');
    await row('acme/large').waitFor({ state: 'detached' });
    await row('acme/small').waitFor();
    assert.match(page.url(), /[?&]user=ada/);
    await page.reload();
    await row('acme/small').waitFor();
    // What others do is left out of the feed, too.
    assert.equal(await chat('house/tiny', { user: 'grace' }), 200);
    assert.equal(await chat('acme/small', { user: 'ada', tags: ['second'] }), 200);
    await row('second').waitFor();
    assert.equal(await row('house/tiny').count(), 0);
    await page.getByRole('group', { name: 'Only' }).getByRole('button').click();
    await row('house/tiny').waitFor();
  });

  await step('a request shows its attempts, its tokens, its cost and its bodies', async () => {
    await row('acme/large').click();
    const falls = page.locator('.waterfall > li');
    await falls.nth(1).waitFor();
    const all = await falls.count();
    assert.ok(all >= 2, `${all} attempts`);
    await falls.first().getByText('503').waitFor();
    await falls.first().getByText('Overloaded ' + hostile[0]).waitFor();
    await falls.last().getByText('house').waitFor();
    const begins = await page.locator('.lane-bar').evaluateAll((bars) => bars.map((b) => Math.round(b.getBoundingClientRect().left)));
    assert.deepEqual(begins, begins.toSorted((a, b) => a - b), 'each attempt begins after the one before');
    assert.ok(begins.at(-1) > begins[0] + 100, `the last attempt begins late: ${begins}`);
    await page.getByText('Read from cache').waitFor();
    await page.getByRole('link', { name: hostile[0] }).waitFor(); // the user
    await page.getByRole('button', { name: 'Show', exact: true }).click();
    await page.locator('.body-text').first().getByText(hostile[0]).waitFor();
    await page.locator('.body-text').nth(1).getByText('<b>bold</b>').waitFor();
    await looks(page, 'request-bodies');
    await page.getByRole('button', { name: 'Delete' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
    await page.getByText('They were deleted.').waitFor();
    await page.getByRole('link', { name: hostile[0] }).click();
    await row('acme/large').waitFor();
    assert.equal(new URL(page.url()).searchParams.get('user'), hostile[0]);
  });

  await step('a request that was refused says why', async () => {
    await page.goto(url + '/gateway/requests?status=refused');
    await row('BEGIN\\u202egnp.exe').click();
    await page.locator('.title').getByText('refused').waitFor();
    await page.getByText('there is no model "BEGIN\\u202egnp.exe"').first().waitFor();
    await looks(page, 'request-refused');
  });

  await step('the dashboard adds up, by what is asked, and goes on', async () => {
    await page.goto(url + '/gateway');
    const total = page.getByLabel('Totals').locator('.card').first();
    await total.getByText('5', { exact: true }).waitFor();
    await page.locator('.plot canvas').nth(3).waitFor();
    await page.getByLabel('Totals').getByText('20%').waitFor(); // one of five was refused
    assert.equal(await chat('house/tiny', { user: 'ada' }), 200);
    await total.getByText('6', { exact: true }).waitFor();
    await page.getByRole('button', { name: 'User', exact: true }).click();
    await row('ada').waitFor();
    assert.match(page.url(), /by=user/);
    await row('ada').click();
    await total.getByText('3', { exact: true }).waitFor();
    assert.match(page.url(), /user=ada/);
    await page.getByRole('button', { name: '1 hour' }).click();
    await total.getByText('3', { exact: true }).waitFor();
    assert.equal(await chat('house/tiny', { user: 'ada' }), 200);
    await total.getByText('4', { exact: true }).waitFor();
    await page.getByRole('group', { name: 'Only' }).getByRole('button').click();
    await total.getByText('7', { exact: true }).waitFor();
    for (const range of ['7 days', '30 days']) {
      await page.getByRole('button', { name: range }).click();
      await total.getByText('7', { exact: true }).waitFor();
    }
  });

  let secret;
  await step('a key is made, shown once, disabled and deleted', async () => {
    await page.goto(url + '/gateway/keys');
    await page.getByRole('button', { name: 'New key' }).click();
    await page.getByLabel('Name', { exact: true }).fill(hostile[0]);
    await page.getByLabel('Models').fill('acme/small, house/*');
    await page.getByLabel('Budget in dollars').fill('2.50');
    await page.getByText('Limits, tags, expiry').click();
    await page.getByLabel('Requests a minute').fill('50');
    await page.getByLabel('Tags').fill('web');
    await page.getByRole('button', { name: 'Create', exact: true }).click();
    const shown = page.getByRole('dialog', { name: 'The key' });
    secret = await shown.locator('.secret code').innerText();
    await looks(page, 'key-shown');
    assert.match(secret, /^cgk_[A-Za-z0-9_-]{43}$/);
    await shown.getByRole('button', { name: 'I have it' }).click();
    assert.ok(!(await page.content()).includes(secret) && !page.url().includes(secret), 'the secret is gone');
    assert.equal(await chat('acme/small', { key: secret }), 200);
    assert.equal(await chat('acme/large', { key: secret }), 403);
    await row(hostile[0]).click();
    for (const text of ['acme/small', 'house/*', '50 requests']) await page.locator('.split-view').getByText(text).waitFor();
    await page.locator('.split-view').getByText(/of \$2\.50/).waitFor();
    await page.getByRole('button', { name: 'Disable' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Disable' }).click();
    await row(hostile[0]).getByText('disabled').waitFor();
    assert.equal(await chat('acme/small', { key: secret }), 401);
    await page.getByRole('button', { name: 'Enable', exact: true }).click();
    await row(hostile[0]).getByText('active').waitFor();
    assert.equal(await chat('acme/small', { key: secret }), 200);
  });

  await step('a key is edited, and replaced by another', async () => {
    const view = page.locator('.split-view');
    await view.getByRole('button', { name: 'Edit' }).click();
    const form = page.getByRole('dialog', { name: 'Edit the key' });
    assert.equal(await form.getByLabel('Models').inputValue(), 'acme/small, house/*');
    await form.getByLabel('Models').fill('acme/*');
    await form.getByLabel('Requests a minute').fill('');
    await form.getByLabel('Requests at once').fill('3');
    await form.getByLabel('Tags').fill('web, edited');
    await form.getByLabel('Answers are kept for').fill('a while');
    await form.getByRole('button', { name: 'Save' }).click();
    await form.getByRole('alert').waitFor(); // in the API's words, and the form stays
    await looks(page, 'key-form');
    failures.length = 0; // the browser tells of the status
    await form.getByLabel('Answers are kept for').fill('10m');
    await form.getByLabel('Expires').fill('2099-01-02T03:04');
    await form.getByRole('button', { name: 'Save' }).click();
    await form.waitFor({ state: 'detached' });
    await view.getByText('acme/*').waitFor();
    const { items } = await api('GET', '/v1/gateway/keys');
    const key = items.find((k) => k.name === hostile[0]);
    assert.deepEqual([key.models, key.requests_per_minute ?? 0, key.concurrency, key.tags, key.cache], [['acme/*'], 0, 3, ['web', 'edited'], '10m0s']);
    assert.match(key.expires_at, /^2099-01-0/);
    assert.equal(await chat('acme/large', { key: secret }), 200);
    await view.getByRole('button', { name: 'Edit' }).click();
    await form.getByLabel('Expires').fill('');
    await form.getByRole('button', { name: 'Save' }).click();
    await form.waitFor({ state: 'detached' });
    await view.getByText('never').waitFor();
    await view.getByRole('button', { name: 'Replace' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Make the new key' }).click();
    const shown = page.getByRole('dialog', { name: 'The key' });
    const next = await shown.locator('.secret code').innerText();
    assert.notEqual(next, secret);
    await shown.getByRole('button', { name: 'I have it' }).click();
    assert.equal(await chat('acme/small', { key: next }), 200);
    const made = (await api('GET', '/v1/gateway/keys')).items.filter((k) => k.name === hostile[0]);
    assert.equal(made.length, 2);
    assert.deepEqual(made.map((k) => [k.models, k.concurrency, k.budget?.limit]), [[['acme/*'], 3, '2.5'], [['acme/*'], 3, '2.5']]);
    await api('DELETE', `/v1/gateway/keys/${made.find((k) => k.id !== key.id).id}`);
  });

  await step('budgets are set, filled and deleted', async () => {
    await page.goto(url + '/gateway/budgets');
    await page.getByRole('row').filter({ hasText: hostile[0] }).getByText(/of \$2\.50/).waitFor(); // the key's
    await page.getByRole('button', { name: 'Set a budget' }).click();
    await page.getByLabel('Its name').fill('ada');
    await page.getByLabel('Dollars').fill('0.01');
    await page.getByLabel('Warn at percent').fill('80');
    await looks(page, 'budget-form');
    await page.getByRole('button', { name: 'Set', exact: true }).click();
    await row('ada').getByText('$0 of $0.01').waitFor();
    assert.equal(await chat('acme/small', { user: 'ada' }), 200);
    await page.waitForFunction(() => [...document.querySelectorAll('[role=row]')].some((r) => r.textContent.includes('ada') && Number(r.querySelector('[role=meter]').getAttribute('aria-valuenow')) > 0));
    await row('ada').click();
    await page.getByLabel('Dollars').fill('3');
    await page.getByRole('button', { name: 'Set', exact: true }).click();
    await row('ada').getByText(/of \$3\.00/).waitFor();
    await page.getByRole('button', { name: 'Delete the budget of user/ada' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
    await row('ada').waitFor({ state: 'detached' });
    await api('PUT', '/v1/gateway/budgets/user', { limit: '1', period: 'weekly' });
  });

  await step('providers are checked, and models are found', async () => {
    await page.goto(url + '/gateway/providers');
    await page.getByRole('button', { name: 'Check house' }).click();
    await row('house').getByText(/ ms$/).waitFor();
    await page.getByRole('button', { name: 'Check spare' }).click();
    await row('spare').getByText('failed').waitFor();
    await row('spare').click();
    await page.locator('.split-view').getByText('the file').waitFor();
    await looks(page, 'provider-failed');
    assert.equal(await page.getByText('secret-').count(), 0);
    await page.goto(url + '/gateway/models');
    await row('acme/small').waitFor(); // keys are for a page that is there
    await page.keyboard.press('/');
    await page.keyboard.type('acme spare');
    await row('acme/small').waitFor({ state: 'detached' });
    await row('acme/large').click();
    await page.locator('.endpoints').getByText('$2.50 in, $10.00 out').waitFor();
    assert.match(page.url(), /q=acme\+spare.*view=acme%2Flarge/);
  });

  let told;
  await step('a provider is set up, and its key is not shown again', async () => {
    await page.goto(url + '/gateway/providers');
    await page.getByRole('button', { name: 'Set a provider' }).click();
    const form = page.getByRole('dialog');
    await form.getByLabel('Name', { exact: true }).fill('mine');
    await form.getByLabel('Key', { exact: true }).fill('sk-very-secret');
    assert.equal(await form.getByLabel('Key', { exact: true }).getAttribute('type'), 'password');
    await form.getByRole('button', { name: 'Set', exact: true }).click();
    await form.getByRole('alert').waitFor(); // it has neither kind nor address
    failures.length = 0; // the browser tells of the status
    await form.getByLabel('Formats').fill('chatcompletions');
    await form.getByLabel('Address').fill(new URL((await api('GET', '/v1/gateway/providers/house')).base_url).href);
    await form.getByText('Other settings, as JSON').first().click();
    await form.getByLabel('Other settings, as JSON').fill('{"unlisted": true}');
    await looks(page, 'provider-form');
    await form.getByRole('button', { name: 'Set', exact: true }).click();
    await form.waitFor({ state: 'detached' });
    await row('mine').click();
    assert.equal(await chat('mine/anything'), 200);
    assert.ok(!(await page.content()).includes('sk-very-secret'), 'the key is gone');
    await page.getByRole('button', { name: 'Edit' }).click();
    await form.getByText('to be typed again').waitFor();
    assert.equal(await form.getByLabel('Key', { exact: true }).inputValue(), '');
    assert.match(await form.getByLabel('Other settings, as JSON').inputValue(), /"unlisted": true/);
    await form.getByLabel('Key', { exact: true }).fill('sk-another');
    await form.getByLabel('Disabled').check();
    await form.getByRole('button', { name: 'Set', exact: true }).click();
    await row('mine').getByText('disabled').waitFor();
    await page.getByRole('button', { name: 'Delete' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
    await row('mine').waitFor({ state: 'detached' });
  });

  await step('a project is given a credential of its own, and it is taken away', async () => {
    await page.goto(url + '/gateway/credentials');
    await page.getByText('No project has a credential').waitFor();
    await page.getByRole('button', { name: 'Set a credential' }).click();
    const form = page.getByRole('dialog');
    await form.getByLabel('Provider').fill('house');
    await form.getByLabel('Key', { exact: true }).fill('sk-of-theirs');
    await looks(page, 'credential-form');
    await form.getByLabel("Try the operator's").check();
    await form.getByRole('button', { name: 'Set', exact: true }).click();
    await row('house/main').getByText('used', { exact: true }).waitFor();
    assert.ok(!(await page.content()).includes('sk-of-theirs'), 'it is not shown');
    const [credential] = (await api('GET', '/v1/gateway/credentials')).items;
    assert.deepEqual([credential.provider, credential.name, credential.fallback], ['house', 'main', true]);
    await looks(page, 'credentials-some');
    await page.getByRole('button', { name: 'Take away house/main' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Take away' }).click();
    await page.getByText('No project has a credential').waitFor();
  });

  await step('what an agent says is there word by word', async () => {
    await page.goto(url + '/agents');
    told = await start('slow ' + hostile[0]);
    await row('assistant').getByText('running').waitFor(); // by itself
    await row('assistant').click();
    const said = page.locator('.said .say');
    await said.getByText('word1 ').waitFor();
    await page.locator('.bubble').getByText(hostile[0]).waitFor();
    const { base_url } = await api('GET', '/v1/gateway/providers/house');
    assert.equal((await fetch(new URL('/seen', base_url), { method: 'POST' })).status, 204); // and the model goes on
    await said.getByText('word40').waitFor();
    const words = (await said.innerText()).trim().split(' ');
    assert.deepEqual(words, Array.from({ length: 40 }, (_, i) => `word${i + 1}`));
    await page.locator('.title').getByText('completed').waitFor();
    // The same, from the beginning.
    await page.reload();
    await said.getByText('word40').waitFor();
    assert.deepEqual((await said.innerText()).trim().split(' '), words);
  });

  await step('an answer that broke off is shown once', async () => {
    const id = await start('break off');
    await page.goto(`${url}/agents/${id}`);
    await page.locator('.title').getByText('completed').waitFor();
    await page.getByText('This is the whole answer.').waitFor();
    assert.equal(await page.getByText('This will never be').count(), 0);
    await page.getByText('The answer broke off, and was begun again.').waitFor();
    assert.equal(await page.locator('.step').count(), 1);
  });

  let asked;
  await step('tools, reasoning, steps and what they cost', async () => {
    const id = await start('Do I need an umbrella?');
    await page.goto(`${url}/agents/${id}`);
    await page.locator('.title').getByText('completed').waitFor();
    assert.equal(await page.getByText('They ask about rain.').isVisible(), false); // folded
    await page.getByText('Reasoning', { exact: true }).click();
    await page.getByText('They ask about rain.').waitFor();
    const tool = page.locator('.tool').filter({ hasText: 'weather' });
    assert.equal(await tool.getByText('"overcast').isVisible(), false);
    await tool.locator('summary').first().click();
    await tool.getByText('"overcast ' + hostile[0].replaceAll('"', '\\"') + '"').waitFor();
    await page.locator('.step-foot').nth(1).getByText('cay/scripted').waitFor();
    await page.locator('.side').getByText('$0', { exact: true }).waitFor();
    assert.equal(await page.getByRole('link', { name: 'Workflow run' }).getAttribute('href'), `/workflows/${id}`);
    await page.locator('.step-foot').first().getByRole('link', { name: 'model call' }).click();
    await page.getByText(/^gen_/).first().waitFor();
    await page.getByRole('link', { name: 'the run that asked' }).click();
    await page.locator('.title').getByText('completed').waitFor();
    await page.getByRole('link', { name: 'Model calls' }).click();
    await page.getByText('2 requests', { exact: true }).waitFor();
  });

  await step('hostile text of a model is text', async () => {
    await page.goto(`${url}/agents/${await start('hostile')}`);
    await page.locator('.said').getByText('<img src=x onerror=alert(1)><script>alert(2)</script> [click](javascript:alert(3)) \\u202egnp.exe \\x1b]0;evil\\x07 # not a heading **nor bold**').waitFor();
    assert.equal(await page.locator('.said a, .said b, .said h1').count(), 0);
    assert.equal(await page.title(), 'assistant · cay');
  });

  await step('an agent that says nothing to the stream is read from the log', async () => {
    const { run } = await api('POST', '/v1/workflows/runs', { workflow: 'assistant', input: { json: { prompt: 'Do I need an umbrella?', quiet: true, instructions: hostile[0] } } });
    await page.goto(`${url}/agents/${run.id}`);
    await page.getByText('writes nothing to its stream').waitFor();
    await page.locator('.tool').getByText('weather').waitFor();
    await page.locator('.said').getByText('Take a light jacket.').waitFor();
    await page.getByText('Instructions').click();
    await page.getByText(hostile[0]).waitFor();
  });

  await step('what a program writes to its stream may be anything', async () => {
    const id = await start('delete it');
    await page.goto(`${url}/agents/${id}`);
    await page.getByRole('button', { name: 'Approve' }).waitFor();
    const odd = { toString: 1, __proto__: null, constructor: { name: hostile[0] } };
    const chunks = [
      null, 5, 'text', [], { type: 7 }, { type: 'constructor' }, { type: 'tool-__proto__', toolCallId: odd }, { type: 'text-delta', id: odd, delta: odd }, { type: 'tool-output-available', output: odd },
      { type: 'tool-input-available', toolCallId: 'h', toolName: hostile[1], input: { [hostile[0]]: [odd, hostile[1]] } }, { type: 'file', url: 'javascript:alert(3)', filename: hostile[0], mediaType: 'text/html' },
      { type: 'source-url', url: 'javascript:alert(4)', title: hostile[2] }, { type: 'data-' + hostile[0], data: { html: hostile[0] } }, { type: 'error', errorText: hostile[0] }, { type: 'finish-step' }, { type: 'text-end', id: 'none' },
      { type: 'start-step', step: odd }, { type: 'text-start', id: 'z' }, { type: 'text-delta', id: 'z', delta: 'the end of it' },
    ];
    await api('POST', `/v1/workflows/runs/${id}/stream?name=ui`, { chunks: [...chunks.map((json) => ({ json })), { base64: 'ZW5jcg==' }] });
    await page.getByText('the end of it').waitFor();
    await page.getByText('pieces are sealed or have another form').waitFor();
    await page.locator('.attached').getByText('javascript:alert(3)').waitFor();
    await page.locator('.attached').getByText('BEGIN\\u202egnp.exe').waitFor();
    await page.locator('.answer').getByRole('alert').getByText(hostile[0]).waitFor();
    const links = await page.locator('main a').evaluateAll((all) => all.map((a) => new URL(a.href).origin));
    assert.deepEqual([...new Set(links)], [url]);
    await looks(page, 'agent-odd');
    await api('POST', `/v1/workflows/runs/${id}/cancel`, {});
    await page.locator('.title').getByText('cancelled').waitFor();
    await api('DELETE', `/v1/workflows/runs/${id}`);
  });

  await step('a tool waits for an approval, and is denied and approved', async () => {
    const denied = await start('delete it');
    await page.goto(`${url}/agents/${denied}`);
    await page.locator('.title').getByText('waits for approval').waitFor();
    await page.locator('.approve').getByText('"report <b>old</b>.txt"').waitFor();
    await page.getByLabel('Reason').fill('It is still needed');
    await page.getByRole('button', { name: 'Deny' }).click();
    await page.locator('.tool').getByText(/^Denied by .*It is still needed/).waitFor();
    await page.locator('.title').getByText('completed').waitFor();
    await page.locator('.tool').getByText('denied', { exact: true }).waitFor();
    await looks(page, 'agent-denied');
    asked = await start('delete it');
    await page.goto(url + '/agents');
    await row('waits').first().click();
    await page.locator('.title').getByText('waits for approval').waitFor();
    assert.equal(page.url(), `${url}/agents/${asked}`);
    await page.getByRole('button', { name: 'Approve' }).click();
    await page.getByText('Done: deleted report <b>old</b>.txt').waitFor();
    await page.locator('.tool').getByText('done', { exact: true }).waitFor();
    await page.locator('.title').getByText('completed').waitFor();
  });

  await step('the list of hooks, and the run, ask for an approval as the agent does', async () => {
    for (const at of [() => '/workflows/hooks', (id) => `/workflows/${id}?tab=hooks`]) {
      const id = await start('delete it');
      await page.goto(url + at(id));
      const form = page.locator('.approve');
      await form.getByText('May assistant call delete_file with this?').waitFor();
      await form.getByText('"report <b>old</b>.txt"').waitFor();
      assert.equal(await page.getByText('approval_id').count(), 0, 'the question is not shown as JSON');
      assert.equal(await page.getByLabel('Value, as JSON').count(), 0);
      await form.getByRole('button', { name: 'Deny' }).click();
      await form.waitFor({ state: 'detached' });
      await api('GET', `/v1/workflows/runs/${id}/wait`);
    }
  });

  await step('a run is cancelled', async () => {
    const id = await start('delete it');
    await page.goto(`${url}/agents/${id}`);
    await page.getByRole('button', { name: 'Approve' }).waitFor();
    await page.getByRole('button', { name: 'Cancel' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel the run' }).click();
    await page.locator('.title').getByText('cancelled').waitFor();
    await page.getByText('The answer was stopped.').waitFor();
    assert.equal(await page.getByRole('button', { name: 'Approve' }).count(), 0);
    await page.goto(url + '/agents?status=cancelled');
    await row('assistant').waitFor();
    assert.equal(await page.getByRole('row').count(), 2); // with the head
  });

  await step('all pages can be used by everybody, dark and light, wide and narrow', async () => {
    const waits = await start('delete it');
    for (let i = 0; i < 24; i++) await chat(['acme/small', 'house/tiny', 'cay/scripted', 'acme/large'][i % 4], { user: ['grace', 'alan', 'linus'][i % 3], tags: [['nightly', 'web', 'eu'][i % 3]] });
    const { items } = await api('GET', '/v1/gateway/requests?limit=200');
    const failed = items.find((r) => r.attempts?.length > 1);
    const umbrella = items.filter((r) => r.session).at(-1).session;
    await api('PUT', '/v1/gateway/budgets/user?ref=grace', { limit: '0.05', period: 'daily' });
    const { items: keys } = await api('GET', '/v1/gateway/keys');
    const views = [
      ['gateway', '/gateway'], ['gateway-hour', '/gateway?range=1h&by=user'], ['requests', '/gateway/requests'], ['request', `/gateway/requests/${failed.id}`],
      ['keys', '/gateway/keys'], ['key', `/gateway/keys?view=${keys[0].id}`], ['budgets', '/gateway/budgets'], ['providers', '/gateway/providers'], ['credentials', '/gateway/credentials'], ['models', '/gateway/models?show=all&view=acme/large'],
      ['agents', '/agents'], ['agent', `/agents/${umbrella}`], ['agent-asks', `/agents/${waits}`],
      ['hooks-approval', '/workflows/hooks'], ['run-approval', `/workflows/${waits}?tab=hooks`],
    ];
    for (const [name, path] of views) {
      await page.goto(url + path);
      await page.locator('main .page').waitFor();
      await page.waitForFunction(() => !document.querySelector('main .loading'));
      if (name.startsWith('gateway')) await page.locator('.plot canvas').nth(3).waitFor();
      await looks(page, name);
    }
  });

  await step('ten thousand requests are as quick as ten', async () => {
    const like = (await api('GET', '/v1/gateway/requests?limit=1')).items[0];
    await page.route(/\/v1\/gateway\/requests\?/, (route) => {
      const from = Number(new URL(route.request().url()).searchParams.get('cursor') || 0);
      const items = Array.from({ length: 1000 }, (_, i) => ({ ...like, id: `gen_${String(99_999 - from - i).padStart(26, '0')}`, model: `m/${from + i}` }));
      return route.fulfill({ json: { items, next: from < 9000 ? String(from + 1000) : undefined } });
    });
    await page.goto(url + '/gateway/requests');
    await row('m/0').waitFor();
    for (let n = 2; n <= 10; n++) {
      await page.evaluate(() => document.querySelector('.table').scrollTo(0, 1e9));
      await page.getByText(`${(n * 1000).toLocaleString('en-US')} requests`).waitFor();
    }
    await page.evaluate(() => document.querySelector('.table').scrollTo(0, 1e9));
    await row('m/9999').waitFor();
    assert.ok((await page.getByRole('row').count()) < 60, 'only the rows that are seen are drawn');
    await page.getByLabel('Filter').fill('m/7777');
    await page.getByText('1 request', { exact: true }).waitFor();
    await page.unrouteAll({ behavior: 'ignoreErrors' });
  });
  console.log(cost());
  console.log(`${passed} steps passed`);
} finally {
  await browser.close();
}
