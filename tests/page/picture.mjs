// Renders the screenshot in the README.

import { join } from 'node:path';

import { simulate } from './simulated.mjs';
import { Browser, Site, until } from './support.mjs';

const site = await Site.open();
const many = await simulate(site.address.split('#')[0]);
const browser = await Browser.open();
try {
  const page = await browser.page(`${many.address}#/?group=site`);
  await until('groups', () => page.evaluate(() => document.querySelector('select').value === 'site'));
  await page.locator('.plot').waitFor();
  await page.setViewportSize({ width: 1180, height: 816 });
  await page.waitForTimeout(500);
  await page.screenshot({ path: join(import.meta.dirname, '../../docs/page.png') });
} finally {
  await browser.close();
  await many.close();
  await site.close();
}
