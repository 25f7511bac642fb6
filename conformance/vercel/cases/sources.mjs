import assert from 'node:assert/strict';
import { refused, sh, unique } from '../case.mjs';

const repository = 'http://git.example.com/project.git';
const secret = 'http://git.example.com/private/project.git';

export default ({ all, from, sdk }) => {
  // With images a repository is cloned below the working directory, with runtimes into it.
  all('source: git into the working directory of a runtime', async (c) => {
    const box = await c.fresh({ runtime: 'node24', source: { type: 'git', url: repository } });
    assert.equal(await sh(box, 'cat greeting.txt; git rev-list --count HEAD; git status --porcelain'), 'the second greeting\n2\n');
    assert.equal(await sh(box, 'touch mine && stat -c %U greeting.txt'), await sh(box, 'id -un'));
  });

  from(3)('source: git below the working directory of an image', async (c) => {
    const box = await c.fresh({ source: { type: 'git', url: repository } });
    assert.equal(await sh(box, 'cat project/greeting.txt'), 'the second greeting\n');
  });

  all('source: git, shallow, and at a revision', async (c) => {
    const [shallow, tagged, branch] = await Promise.all([
      c.fresh({ runtime: 'node24', source: { type: 'git', url: repository, depth: 1 } }),
      c.fresh({ runtime: 'node24', source: { type: 'git', url: repository, revision: 'v1' } }),
      c.fresh({ runtime: 'node24', source: { type: 'git', url: repository, revision: 'side', depth: 1 } }),
    ]);
    assert.equal(await sh(shallow, 'git rev-list --count HEAD; cat greeting.txt'), '1\nthe second greeting\n');
    assert.equal(await sh(tagged, 'cat greeting.txt'), 'the first greeting\n');
    assert.equal(await sh(branch, 'cat greeting.txt'), 'a greeting from the side\n');
  });

  all('source: git with a password, which stays outside', async (c) => {
    const box = await c.fresh({ runtime: 'node24', source: { type: 'git', url: secret, username: 'x-access-token', password: 'open-sesame' } });
    assert.equal(await sh(box, 'cat greeting.txt'), 'the second greeting\n');
    const found = await sh(box, `cat .git/config; env; grep -rl sesame . "$HOME" /tmp /etc 2>/dev/null || true`);
    assert.doesNotMatch(found, /sesame/);
  });

  all('source: what cannot be got makes no sandbox', async (c) => {
    const name = unique('unmade');
    for (const source of [
      { type: 'git', url: secret },
      { type: 'git', url: secret, username: 'x', password: 'wrong' },
      { type: 'git', url: repository, revision: 'no-such-branch' },
      { type: 'tarball', url: 'http://files.example.com/status/404' },
      { type: 'tarball', url: 'http://no-such-name.example.com/x.tar.gz' },
      { type: 'snapshot', snapshotId: 'snap_00000000000000000000' },
    ]) {
      const [status, code] = source.type === 'snapshot' ? [404, 'not_found'] : [400, 'bad_request'];
      const said = await refused(c.fresh({ name, source }), status, code).catch((err) => { throw new Error(JSON.stringify(source), { cause: err }); });
      assert.doesNotMatch(said.message, /wrong/);
    }
    if (sdk.major > 1) await refused(sdk.get({ name }), 404, 'not_found');
  });

  all('source: tarball', async (c) => {
    const box = await c.fresh({ source: { type: 'tarball', url: 'http://archive.example.com/project.tar.gz' } });
    assert.equal(await sh(box, 'cat package.json sub/file.txt; ./run'), '{"name":"tarball"}\nin the archive\nit runs\n');
    assert.equal(await sh(box, 'stat -c %U run'), await sh(box, 'id -un'));
  });

  all('source: under a policy', async (c) => {
    const source = { type: 'tarball', url: 'http://archive.example.com/project.tar.gz' };
    await refused(c.fresh({ source, networkPolicy: 'deny-all' }), 400, 'bad_request');
    const box = await c.fresh({ source, networkPolicy: { allow: ['archive.example.com'] } });
    assert.equal(await sh(box, 'cat sub/file.txt'), 'in the archive\n');
  });
};
