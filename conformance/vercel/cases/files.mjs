import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { refused, sh, text, unique } from '../case.mjs';

export default ({ all, from, sdk }) => {
  all('writeFiles and readFile: relative and absolute', async (c) => {
    const box = await c.box();
    const dir = await c.dir();
    const name = unique('file');
    await box.writeFiles([
      { path: `${name}/one.txt`, content: Buffer.from('relative') },
      { path: `${dir}/deep/er/two.txt`, content: 'absolute' },
      { path: `${dir}/empty`, content: new Uint8Array() },
    ]);
    assert.equal(await text(await box.readFile({ path: `${name}/one.txt` })), 'relative');
    assert.equal((await box.readFileToBuffer({ path: `${sdk.cwd(box)}/${name}/one.txt` })).toString(), 'relative');
    assert.equal((await box.readFileToBuffer({ path: 'two.txt', cwd: `${dir}/deep/er` })).toString(), 'absolute');
    assert.equal((await box.readFileToBuffer({ path: `${dir}/empty` })).length, 0);
    assert.equal(await sh(box, `cat ${name}/one.txt ${dir}/deep/er/two.txt`), 'relativeabsolute');
  });

  all('writeFiles: owner and mode', async (c) => {
    const box = await c.box();
    const dir = await c.dir();
    await box.writeFiles([
      { path: `${dir}/plain`, content: 'x' },
      { path: `${dir}/run`, content: '#!/bin/sh\necho it runs\n', mode: 0o755 },
      { path: `${dir}/sub/secret`, content: 'x', mode: 0o600 },
    ]);
    const user = (await sh(box, 'id -un')).trim();
    assert.equal(await sh(box, `stat -c '%a %U' ${dir}/plain ${dir}/run ${dir}/sub/secret; stat -c %U ${dir}/sub`), `644 ${user}\n755 ${user}\n600 ${user}\n${user}\n`);
    assert.equal(await sh(box, `${dir}/run`), 'it runs\n');
  });

  all('writeFiles: replaces', async (c) => {
    const box = await c.box();
    const dir = await c.dir();
    await box.writeFiles([{ path: `${dir}/f`, content: 'a longer text' }]);
    await box.writeFiles([{ path: `${dir}/f`, content: 'short' }]);
    assert.equal((await box.readFileToBuffer({ path: `${dir}/f` })).toString(), 'short');
  });

  all('writeFiles: bytes and names of all kinds', async (c) => {
    const box = await c.box();
    const dir = await c.dir();
    const bytes = randomBytes(4 << 20);
    const long = `${'d'.repeat(90)}/${'e'.repeat(90)}/${'n'.repeat(120)}`;
    await box.writeFiles([
      { path: `${dir}/${long}`, content: bytes },
      { path: `${dir}/ü 'quoted' $x.txt`, content: 'named' },
    ]);
    assert.ok(bytes.equals(await box.readFileToBuffer({ path: `${dir}/${long}` })));
    assert.equal((await box.readFileToBuffer({ path: `${dir}/ü 'quoted' $x.txt` })).toString(), 'named');
  });

  all('writeFiles: not where a directory is', async (c) => {
    const box = await c.box();
    await assert.rejects(box.writeFiles([{ path: '/', content: 'x' }]));
    const dir = await c.dir();
    await sh(box, `mkdir ${dir}/full && touch ${dir}/full/file`);
    const err = await box.writeFiles([{ path: `${dir}/full`, content: 'x' }]).then(() => assert.fail('it was written'), (e) => e);
    assert.equal(err.response?.status, 400, err.stack);
    assert.match(err.json.error.message, /\w/);
    await sh(box, `test -e ${dir}/full/file`);
  });

  // As the SDK's documentation has it, though the directory is root's.
  all('writeFiles: a program for all', async (c) => {
    const box = await c.fresh();
    await box.writeFiles([{ path: '/usr/local/bin/myscript', content: '#!/bin/bash\necho hello', mode: 0o755 }]);
    assert.equal(await sh(box, 'myscript'), 'hello\n');
  });

  all('readFile: what is missing is null', async (c) => {
    const box = await c.box();
    const path = `/tmp/${unique('missing')}`;
    assert.equal(await box.readFile({ path }), null);
    assert.equal(await box.readFileToBuffer({ path }), null);
    assert.equal(await box.readFileToBuffer({ path: `${path}/below` }), null);
  });

  from(2)('readFile: a directory is no file', async (c) => {
    const box = await c.box();
    await refused(box.readFile({ path: '/tmp' }), 400, 'bad_request');
  });

  all('readFile: what a command wrote', async (c) => {
    const box = await c.box();
    const dir = await c.dir();
    await sh(box, `printf 'x%.0s' $(seq 1 3000) > ${dir}/target; ln -s target ${dir}/link`);
    assert.equal((await box.readFileToBuffer({ path: `${dir}/link` })).toString(), 'x'.repeat(3000));
  });

  all('downloadFile', async (c) => {
    const box = await c.box();
    const dir = await c.dir();
    const local = await c.localDir();
    const bytes = randomBytes(100_000);
    await box.writeFiles([{ path: `${dir}/f`, content: bytes }]);
    assert.equal(await box.downloadFile({ path: 'f', cwd: dir }, { path: 'g', cwd: local }), join(local, 'g'));
    assert.ok(bytes.equals(await readFile(join(local, 'g'))));
    const deep = join(local, 'some', 'where', 'h');
    assert.equal(await box.downloadFile({ path: `${dir}/f` }, { path: deep }, { mkdirRecursive: true }), deep);
    assert.ok(bytes.equals(await readFile(deep)));
    assert.equal(await box.downloadFile({ path: `${dir}/missing` }, { path: 'i', cwd: local }), null);
  });

  all('mkDir', async (c) => {
    const box = await c.box();
    const dir = await c.dir();
    await box.mkDir(`${dir}/a`);
    await sh(box, `touch ${dir}/a/file-of-a-command`);
    await refused(box.mkDir(`${dir}/a`), 400, 'bad_request');
    await refused(box.mkDir(`${dir}/no/parent`), 400, 'path_not_found');
    const name = unique('relative');
    await box.mkDir(name);
    await sh(box, `test -d ${sdk.cwd(box)}/${name}`);
  });

  all('abort: of file calls', async (c) => {
    const box = await c.box();
    const dir = await c.dir();
    const signal = AbortSignal.abort();
    for (const call of [
      () => box.writeFiles([{ path: `${dir}/f`, content: 'x' }], { signal }),
      () => box.readFile({ path: `${dir}/f` }, { signal }),
      () => box.mkDir(`${dir}/d`, { signal }),
    ]) await assert.rejects(call(), (err) => /abort/i.test(`${err.name} ${err.message}`));
    assert.equal(await sh(box, `ls -A ${dir}`), '');
  });
};
