import assert from 'node:assert/strict';
import { sh } from '../case.mjs';

const fails = (call, code) => assert.rejects(call, (err) => err.code === code || assert.fail(`${err.code}, not ${code}: ${err.stack}`));

export default ({ all, sdk }) => {
  all('fs: write, append, read', async (c) => {
    const { fs } = await c.box();
    assert.ok(fs instanceof sdk.FileSystem);
    const dir = await c.dir();
    await fs.writeFile(`${dir}/f`, 'one\n');
    await fs.appendFile(`${dir}/f`, Buffer.from('two\n'));
    await fs.appendFile(`${dir}/new`, 'from nothing');
    assert.equal(await fs.readFile(`${dir}/f`, 'utf8'), 'one\ntwo\n');
    assert.ok(Buffer.from('from nothing').equals(await fs.readFile(`${dir}/new`)));
    assert.equal(await fs.readFile(`${dir}/new`, { encoding: 'base64' }), 'ZnJvbSBub3RoaW5n');
    await fs.writeFile(`${dir}/hex`, '00ff', 'hex');
    assert.deepEqual([...await fs.readFile(`${dir}/hex`)], [0, 255]);
    await fails(fs.readFile(`${dir}/missing`), 'ENOENT');
  });

  all('fs: directories', async (c) => {
    const { fs } = await c.box();
    const dir = await c.dir();
    await fs.mkdir(`${dir}/a`);
    await fs.mkdir(`${dir}/b/c/d`, { recursive: true });
    await fs.writeFile(`${dir}/file`, 'x');
    await fs.symlink('file', `${dir}/link`);
    assert.deepEqual((await fs.readdir(dir)).sort(), ['a', 'b', 'file', 'link']);
    const entries = (await fs.readdir(dir, { withFileTypes: true })).sort((x, y) => x.name.localeCompare(y.name));
    assert.deepEqual(entries.map((e) => [e.name, e.isDirectory(), e.isFile(), e.isSymbolicLink()]), [
      ['a', true, false, false], ['b', true, false, false], ['file', false, true, false], ['link', false, false, true],
    ]);
    await fails(fs.readdir(`${dir}/missing`), 'ENOENT');
    await fails(fs.rmdir(`${dir}/b`), 'ENOTEMPTY');
    await fs.rmdir(`${dir}/a`);
    await fails(fs.rm(`${dir}/missing`), 'ENOENT');
    await fs.rm(`${dir}/missing`, { force: true });
    await fs.rm(`${dir}/b`, { recursive: true });
    assert.deepEqual((await fs.readdir(dir)).sort(), ['file', 'link']);
    const made = await fs.mkdtemp(`${dir}/t-`);
    assert.match(made, new RegExp(`^${dir}/t-.{6}$`));
    assert.ok((await fs.stat(made)).isDirectory());
  });

  all('fs: stat and lstat', async (c) => {
    const box = await c.box();
    const { fs } = box;
    const dir = await c.dir();
    await fs.writeFile(`${dir}/f`, 'twelve bytes');
    await fs.chmod(`${dir}/f`, 0o640);
    await fs.symlink('f', `${dir}/l`);
    const [stat, link] = [await fs.stat(`${dir}/l`), await fs.lstat(`${dir}/l`)];
    assert.deepEqual([stat.size, stat.mode & 0o777, stat.isFile(), stat.isSymbolicLink()], [12, 0o640, true, false]);
    assert.deepEqual([link.isFile(), link.isSymbolicLink()], [false, true]);
    assert.equal(`${stat.uid} ${stat.gid} ${stat.ino}\n`, await sh(box, `stat -c '%u %g %i' ${dir}/f`));
    assert.ok(Math.abs(stat.mtimeMs - Date.now()) < 120_000, `mtime ${stat.mtime}`);
    assert.ok((await fs.stat('/dev/null')).isCharacterDevice());
    await fails(fs.stat(`${dir}/missing`), 'ENOENT');
    await fails(fs.lstat(`${dir}/missing`), 'ENOENT');
  });

  all('fs: names and links', async (c) => {
    const { fs } = await c.box();
    const dir = await c.dir();
    await fs.writeFile(`${dir}/a`, 'content');
    await fs.copyFile(`${dir}/a`, `${dir}/b`);
    await fs.rename(`${dir}/a`, `${dir}/c`);
    assert.deepEqual([await fs.exists(`${dir}/a`), await fs.exists(`${dir}/b`), await fs.exists(`${dir}/c`)], [false, true, true]);
    await fs.symlink('b', `${dir}/l`);
    await fails(fs.symlink('b', `${dir}/l`), 'EEXIST');
    assert.equal(await fs.readlink(`${dir}/l`), 'b');
    assert.equal(await fs.realpath(`${dir}/l`), `${dir}/b`);
    await fails(fs.readlink(`${dir}/b`), 'EINVAL');
    await fs.access(`${dir}/l`);
    await fails(fs.access(`${dir}/a`), 'ENOENT');
    await fs.unlink(`${dir}/l`);
    await fails(fs.unlink(`${dir}/l`), 'ENOENT');
    await fails(fs.rename(`${dir}/a`, `${dir}/x`), 'ENOENT');
    await fails(fs.copyFile(`${dir}/a`, `${dir}/x`), 'ENOENT');
    await fails(fs.realpath(`${dir}/no/thing`), 'ENOENT');
  });

  all('fs: mode, owner and length', async (c) => {
    const box = await c.box();
    const { fs } = box;
    const dir = await c.dir();
    await fs.writeFile(`${dir}/f`, 'abcdef');
    await fs.chmod(`${dir}/f`, '700');
    await fs.truncate(`${dir}/f`, 3);
    assert.equal(await fs.readFile(`${dir}/f`, 'utf8'), 'abc');
    assert.equal((await fs.stat(`${dir}/f`)).mode & 0o777, 0o700);
    await fs.truncate(`${dir}/f`);
    assert.equal((await fs.stat(`${dir}/f`)).size, 0);
    const { uid, gid } = await fs.stat(`${dir}/f`);
    await fs.chown(`${dir}/f`, uid, gid);
    await fails(fs.chown(`${dir}/f`, 0, 0), 'EACCES');
    await fails(fs.chmod(`${dir}/missing`, 0o600), 'ENOENT');
  });
};
