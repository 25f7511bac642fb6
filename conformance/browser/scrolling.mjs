// What it costs a page to draw a list while somebody scrolls through it.

/**
 * screenCost scrolls a page's table to its end, and returns what its thread computes for a screen, in ms: not how long that takes,
 * since this machine may be busy with else.
 */
export async function screenCost(page) {
  const cdp = await page.context().newCDPSession(page);
  await cdp.send('Performance.enable', { timeDomain: 'threadTicks' });
  const computed = async () => (await cdp.send('Performance.getMetrics')).metrics.find((m) => m.name === 'TaskDuration').value * 1000;
  const before = await computed();
  await page.evaluate(async () => {
    const table = document.querySelector('.table');
    for (let i = 0; i < 40; i++) {
      table.scrollTop = (table.scrollHeight / 40) * i;
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    }
  });
  return ((await computed()) - before) / 40;
}
