// How pages look: on a phone, and, where pictures are asked for, in all sizes and themes.

const phone = { width: 390, height: 844 };
const desktop = { width: 1440, height: 900 };
const pictures = Boolean(process.env.CAY_SCREENSHOTS);

/** eachLook calls see(name) for each look; the page is as it was when they have been seen. */
export async function eachLook(page, see) {
  for (const scheme of pictures ? ['dark', 'light'] : ['dark']) {
    for (const [size, viewport] of pictures ? [['desktop', desktop], ['phone', phone]] : [['phone', phone]]) {
      await page.emulateMedia({ colorScheme: scheme });
      await page.setViewportSize(viewport);
      await see(`${size}-${scheme}`);
    }
  }
  await page.setViewportSize(desktop);
  await page.emulateMedia({ colorScheme: 'dark' });
}

/** settled waits until a page that is to be taken a picture of shows all it will. */
export async function settled(page) {
  if (pictures) await page.waitForLoadState('networkidle', { timeout: 700 }).catch(() => {});
}
