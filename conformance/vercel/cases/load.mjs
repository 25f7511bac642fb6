import assert from 'node:assert/strict';
import { sh, unique } from '../case.mjs';

export default ({ all, sdk }) => {
  // Many machines at once are the server's affair more than a version's.
  if (sdk.major === 3) all('fifty sandboxes at once', async (c) => {
    const prefix = unique('many');
    const boxes = await Promise.all(Array.from({ length: 50 }, async (_, i) => {
      const box = await c.fresh({ name: `${prefix}-${i}`, resources: { vcpus: 1 } });
      assert.equal(await sh(box, `echo ${i}`), `${i}\n`);
      const stopped = await box.stop();
      assert.equal(stopped.status, 'stopped');
      return box;
    }));
    assert.equal(new Set(boxes.map((b) => b.currentSession().sessionId)).size, 50);
  });

  all('writeFiles: a thousand files', async (c) => {
    const box = await c.box();
    const dir = await c.dir();
    await box.writeFiles(Array.from({ length: 1000 }, (_, i) => ({ path: `${dir}/${i % 10}/file-${i}.txt`, content: `content ${i}` })));
    assert.equal(await sh(box, `find ${dir} -type f | wc -l; cat ${dir}/7/file-997.txt`), '1000\ncontent 997');
  });
};
