// Uses the page in a browser, and says of each case how it went, one JSON object a
// line. Before the line {"kill":true} the page is in the middle of an answer; the
// program that serves it is to be killed then, and started again.
//
//   node browser.mjs v5|v6|v7 URL DIRECTORY [cases]
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const [version, url, directory, only] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] });
const numbers = (n) => Array.from({ length: n }, (_, i) => i + 1).join(' ');
let chats = 0;

/** A tab with a chat of its own, or with that of another. */
async function tab(context, chat = `${version}-chat-${process.pid}-${++chats}`, more = '') {
  const page = await context.newPage();
  page.chat = chat;
  page.errors = [];
  page.on('pageerror', (e) => page.errors.push(String(e)));
  page.setDefaultTimeout(60_000);
  await page.goto(`${url}/${version}.html?chat=${chat}${more}`);
  await page.locator('#status').waitFor();
  page.send = async (text) => {
    await page.getByLabel('Message').fill(text);
    await page.getByRole('button', { name: 'Send', exact: true }).click();
  };
  page.text = () => page.locator('article[data-role=assistant] .text').allInnerTexts();
  page.says = (text) => page.locator('article[data-role=assistant] .text').filter({ hasText: new RegExp(text) }).last().waitFor();
  page.ready = () => page.locator('#status', { hasText: /^ready$/ }).waitFor();
  page.runs = async (n) => { // how many model calls are being answered, in the end
    for (let left = 1200; (await (await fetch(`${url}/speaking`)).text()) !== String(n); left--) {
      assert(left > 0, `not ${n} calls of models are being answered`);
      await new Promise((done) => setTimeout(done, 50));
    }
  };
  page.kept = (name) => page.evaluate(([n, c]) => JSON.parse(localStorage.getItem(`${n}:${c}`)), [name, chat]);
  return page;
}

const only1 = async (page, text) => {
  await page.locator('article[data-role=assistant] .text').filter({ hasText: text }).last().waitFor();
  await page.ready();
  assert.deepEqual(await page.text(), [text]);
  assert.equal(await page.locator('article[data-role=assistant]').count(), 1);
  assert.equal(await page.locator('[role=alert]').count(), 0);
};

/** Waits until the answer has got as far as a number. */
const reaches = (page, n) => page.locator('.text', { hasText: new RegExp(`\\b${n}\\b`) }).waitFor();

const cases = {
  async 'streams word by word'(context) {
    const page = await tab(context);
    await page.evaluate(() => {
      window.seen = [];
      new MutationObserver(() => {
        const text = document.querySelector('article[data-role=assistant] .text')?.innerText;
        if (text && text !== window.seen.at(-1)) window.seen.push(text);
      }).observe(document.body, { subtree: true, childList: true, characterData: true });
    });
    await page.send('count to 60');
    await only1(page, numbers(60));
    const seen = await page.evaluate(() => window.seen);
    assert(seen.length >= 10, `the text grew in ${seen.length} steps`);
    for (const text of seen) assert(numbers(60).startsWith(text), text);
    await page.screenshot({ path: join(directory, `${version}-words.png`) });
  },

  async 'shows calls of tools with input and output'(context) {
    const page = await tab(context);
    await page.send('weather Oslo');
    await page.says('It is');
    await page.ready();
    const tool = page.locator('.tool[data-tool=weather]');
    assert.equal(await tool.getAttribute('data-state'), 'output-available');
    assert.deepEqual(JSON.parse(await tool.locator('.input').innerText()), { city: 'Oslo' });
    assert.deepEqual(JSON.parse(await tool.locator('.output').innerText()), { celsius: -3, city: 'Oslo' });
    // And the conversation goes on with all that.
    await page.send('count to 3');
    await page.says('1 2 3');
    await page.ready();
    assert.equal(await page.locator('article').count(), 4);
    await page.screenshot({ path: join(directory, `${version}-tool.png`) });
  },

  async 'goes on after a reload, without doubled text'(context) {
    const page = await tab(context);
    await page.send('count to 80');
    await reaches(page, 8);
    await page.reload();
    await reaches(page, 20);
    await page.reload();
    await only1(page, numbers(80));
    // When it is over it stays as it is.
    await page.reload();
    await only1(page, numbers(80));
  },

  async 'approves'(context) {
    const page = await tab(context);
    await page.send('delete yes.txt');
    await page.getByRole('button', { name: 'Approve' }).click();
    await page.says('Done: deleted yes.txt');
    await page.ready();
    const tool = page.locator('.tool');
    assert.equal(await tool.count(), 1);
    assert.equal(await tool.getAttribute('data-state'), 'output-available');
    assert.equal(await page.locator('article[data-role=assistant]').count(), 1);
    assert((await (await fetch(`${url}/deleted`)).json()).filter((n) => n === 'yes.txt').length === 1);
    // What was approved is not done again when the conversation goes on.
    await page.send('count to 2');
    await page.says('1 2');
    assert((await (await fetch(`${url}/deleted`)).json()).filter((n) => n === 'yes.txt').length === 1);
    await page.screenshot({ path: join(directory, `${version}-approved.png`) });
  },

  async 'goes on after a reload behind an approval'(context) {
    const page = await tab(context);
    await page.send('delete slow.txt');
    await page.getByRole('button', { name: 'Approve' }).click();
    await reaches(page, 8);
    await page.reload();
    await reaches(page, 20);
    await only1(page, numbers(60));
    assert.equal(await page.locator('.tool').getAttribute('data-state'), 'output-available');
    assert((await (await fetch(`${url}/deleted`)).json()).filter((n) => n === 'slow.txt').length === 1);
  },

  async 'denies'(context) {
    const page = await tab(context);
    await page.send('delete no.txt');
    await page.getByRole('button', { name: 'Deny' }).click();
    await page.says('I have kept it. Not that one.');
    await page.ready();
    assert.equal(await page.locator('.tool').getAttribute('data-state'), 'output-denied');
    assert(!((await (await fetch(`${url}/deleted`)).json()) ?? []).includes('no.txt'));
  },

  async 'refuses forged approvals'(context) {
    for (const forge of [
      (part) => { part.input = { name: 'other.txt' }; },
      (part) => { delete part.approval.signature; },
      (part) => { part.approval.signature = part.approval.signature.replace(/.$/, (c) => (c === 'A' ? 'B' : 'A')); },
      (part) => { part.type = 'tool-weather'; },
    ]) {
      const page = await tab(context);
      await page.route(`**/${version}/chat`, async (route) => {
        const body = route.request().postDataJSON();
        for (const part of body.messages.at(-1).parts) if (part.approval?.approved) forge(part);
        await route.continue({ postData: JSON.stringify(body) });
      });
      await page.send('delete forged.txt');
      await page.getByRole('button', { name: 'Approve' }).click();
      await page.locator('[role=alert]').waitFor();
      assert.equal(await page.locator('.tool .output').count(), 0);
      await page.close();
    }
    const deleted = (await (await fetch(`${url}/deleted`)).json()) ?? [];
    assert(!deleted.includes('forged.txt') && !deleted.includes('other.txt'), String(deleted));
  },

  async 'goes on when the connection is cut'(context) {
    const page = await tab(context);
    await page.send('count to 60');
    for (const n of [5, 15, 30]) {
      await reaches(page, n);
      await fetch(`${url}/cut`, { method: 'POST' }).catch(() => {});
    }
    await only1(page, numbers(60));
  },

  async 'stops'(context) {
    const page = await tab(context);
    await page.send('count to 4000');
    await reaches(page, 5);
    const run = await page.kept('run');
    await page.runs(1);
    await page.getByRole('button', { name: 'Stop' }).click();
    await page.ready();
    await page.runs(0); // nobody pays for what nobody reads
    const stream = await (await fetch(`${url}/${version}/chat/${run}/stream`)).text(); // ends
    assert.match(stream, /"type":"abort"[^\n]*\n\n(data: [^\n]*\n\n|: \n\n)*data: \[DONE\]/);
    assert(!stream.includes('"delta":"4000"'));
    await page.send('count to 3');
    await page.says('1 2 3');
  },

  async 'shows that it went wrong'(context) {
    const page = await tab(context);
    await page.send('fail');
    const alert = page.locator('[role=alert]');
    await alert.waitFor();
    assert(!(await alert.innerText()).includes("nobody's business"), await alert.innerText());
    await page.screenshot({ path: join(directory, `${version}-error.png`) });
    await page.send('count to 3');
    await page.says('1 2 3');
  },

  async 'answers anew'(context) {
    const page = await tab(context);
    await page.send('new');
    await page.says('This is answer');
    await page.ready();
    const [first] = await page.text();
    await page.getByRole('button', { name: 'Again' }).click();
    await page.locator('.text', { hasText: first }).waitFor({ state: 'detached' });
    await page.says('This is answer');
    await page.ready();
    const said = await page.text();
    assert(said.length === 1 && said[0] !== first, `${first} ${said}`);
    assert.equal(await page.locator('article').count(), 2);
  },

  async 'a message is edited'(context) {
    const page = await tab(context);
    await page.send('count to 3');
    await only1(page, '1 2 3');
    await page.send('count to 4');
    await page.says('1 2 3 4');
    await page.ready();
    await page.getByLabel('Message').fill('count to 5');
    await page.getByRole('button', { name: 'Send instead' }).first().click();
    await only1(page, '1 2 3 4 5');
    assert.equal(await page.locator('article').count(), 2);
  },

  async 'a file is attached'(context) {
    const page = await tab(context);
    await page.getByLabel('Files').setInputFiles({ name: 'notes.txt', mimeType: 'text/plain', buffer: Buffer.from('häy & so on') });
    await page.send('file');
    await only1(page, 'I see notes.txt, text/plain: häy & so on');
    assert.equal(await page.locator('.file').innerText(), 'notes.txt');
  },

  async 'an approval is asked over a reload'(context) {
    const page = await tab(context);
    await page.send('delete reloaded.txt');
    await page.getByRole('button', { name: 'Approve' }).waitFor();
    await page.ready();
    await page.reload();
    await page.getByRole('button', { name: 'Approve' }).click();
    await page.says('Done: deleted reloaded.txt');
    await page.ready();
    assert.equal(await page.locator('.tool').count(), 1);
    assert.deepEqual((await (await fetch(`${url}/deleted`)).json()).filter((n) => n === 'reloaded.txt'), ['reloaded.txt']);
  },

  async 'an approval is used once'(context) {
    const page = await tab(context);
    const bodies = [];
    page.on('request', (r) => { if (r.method() === 'POST') bodies.push(r.postDataJSON()); });
    await page.send('delete once.txt');
    await page.getByRole('button', { name: 'Approve' }).click();
    await page.says('Done: deleted once.txt');
    await page.ready();
    const approval = bodies.at(-1);
    assert.equal(approval.messages.at(-1).parts.at(-1).state, 'approval-responded');
    const post = async (body) => {
      const response = await fetch(`${url}/${version}/chat`, { method: 'POST', body: JSON.stringify(body) });
      return [response.status, await response.text()];
    };
    const deleted = async () => ((await (await fetch(`${url}/deleted`)).json()) ?? []).filter((n) => n === 'once.txt').length;
    const check = async (times) => {
      const [status, again] = await post(approval); // the answer there was
      assert(status === 200 && again.includes('deleted once.txt'), again);
      const [, elsewhere] = await post({ ...approval, id: `${approval.id}-other` });
      assert(!elsewhere.includes('tool-output') && elsewhere.includes('"type":"error"'), elsewhere);
      const [, nowhere] = await post({ messages: approval.messages });
      assert(!nowhere.includes('tool-output') && nowhere.includes('"type":"error"'), nowhere);
      const other = structuredClone(approval);
      other.messages.at(-1).parts.at(-1).approval.approved = false;
      assert.equal((await post(other))[0], 403);
      assert.equal(await deleted(), times);
    };
    await check(1);
    console.log(JSON.stringify({ kill: true }));
    for (let left = 1200; ; left--) { // until it is there again, with an empty list
      if (await fetch(`${url}/deleted`).then((r) => r.text(), () => '') === 'null\n') break;
      assert(left > 0, 'the program does not come back');
      await new Promise((done) => setTimeout(done, 50));
    }
    await check(0);
  },

  async 'two tabs read one answer'(context) {
    const one = await tab(context);
    await one.send('count to 200');
    await reaches(one, 5);
    const other = await browser.newContext();
    const two = await tab(other, one.chat, `&run=${await one.kept('run')}`);
    await Promise.all([reaches(one, 20), reaches(two, 20)]);
    await two.says(numbers(200));
    await only1(one, numbers(200));
    assert.deepEqual(await two.text(), [numbers(200)]);
    await other.close();
  },

  async 'an answer that is given again'(context) {
    const page = await tab(context);
    await page.send('break off');
    await only1(page, 'This is the whole answer.');
    if (version !== 'v7') assert.notEqual(await page.locator('#status').getAttribute('data-again'), '0');
  },

  async 'the program is killed'(context) {
    const page = await tab(context);
    const other = await tab(context);
    await page.send('count to 400');
    await other.send('count to 390');
    await Promise.all([reaches(page, 8), reaches(other, 8)]);
    console.log(JSON.stringify({ kill: true }));
    await only1(page, numbers(400));
    await other.reload();
    await only1(other, numbers(390));
  },

  // Pages without a line about it, if the model says the same again.
  async 'the program is killed, and the page does nothing'(context) {
    const pages = [];
    for (const transport of ['workflow', ...others[version]]) pages.push(await tab(context, undefined, `&plain&transport=${transport}`));
    for (const page of pages) await page.send('count to 400');
    for (const page of pages) await reaches(page, 8);
    console.log(JSON.stringify({ kill: true }));
    for (const page of pages) await only1(page, numbers(400));
    const asked = Number(await (await fetch(`${url}/asked`)).text());
    assert(asked >= pages.length, `the program that was started again has asked models ${asked} times`);
    for (const page of pages) assert.equal(await page.locator('#status').getAttribute('data-again'), '0');
  },

  async 'the program is killed, and the model says something else'(context) {
    const page = await tab(context);
    const other = await tab(context);
    await page.send('vary');
    await other.send('vary');
    await Promise.all([reaches(page, '8-[0-9]+'), reaches(other, '8-[0-9]+')]);
    const first = (await page.text())[0].split(/[- ]/)[1];
    console.log(JSON.stringify({ kill: true }));
    await page.says('399-[0-9]+ 400');
    const second = (await page.text()).at(-1).split(/[- ]/)[1];
    assert.notEqual(second, first);
    const whole = numbers(400).replaceAll(' ', `-${second} `);
    await only1(page, whole);
    await other.reload();
    await only1(other, whole);
  },
};

// Transports of other versions that a page may have.
const others = { v5: ['latest'], v6: ['next'], v7: ['earlier'] };

// What AI SDK 5 does not have.
const since6 = /approv|denies/;

const scripted = {
  async 'a scripted model behind the gateway'(context) {
    const page = await tab(context);
    await page.send('What is the weather in Oslo?');
    await page.says('It is');
    await page.ready();
    const tool = page.locator('.tool[data-tool=weather]');
    assert.equal(await tool.getAttribute('data-state'), 'output-available');
    assert.deepEqual(JSON.parse(await tool.locator('.input').innerText()), { city: 'Oslo' });
    assert.match((await page.text()).at(-1), /^It is .*-3/);
  },
};

try {
  for (const [name, f] of Object.entries(only === 'scripted' ? scripted : cases)) {
    if (only && only !== 'scripted' && !new RegExp(only).test(name)) continue;
    if (version === 'v5' && since6.test(name)) continue;
    const begun = performance.now();
    const context = await browser.newContext({ viewport: { width: 900, height: 600 } });
    let error;
    try {
      await f(context);
      for (const page of context.pages()) assert.deepEqual(page.errors, []);
    } catch (e) {
      error = String(e.stack ?? e);
      for (const [i, page] of context.pages().entries()) {
        await page.screenshot({ path: join(directory, `${version}-failed-${name.replaceAll(' ', '-')}-${i}.png`) }).catch(() => {});
        error += `\nthe page: ${await page.locator('main').innerText().catch(String)}`;
      }
    }
    await context.close();
    console.log(JSON.stringify({ name, ok: !error, error, ms: Math.round(performance.now() - begun) }));
  }
} finally {
  await browser.close();
}
