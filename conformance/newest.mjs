// Rewrites package.json in the working directory: of each package, the newest version that is
// pinned there becomes the newest that there is. Older ones, which stand for users who have
// not updated, stay.
import { readFileSync, writeFileSync } from 'node:fs';

const file = JSON.parse(readFileSync('package.json', 'utf8'));
const pins = Object.entries(file.devDependencies).map(([name, spec]) => {
  const alias = /^npm:(.+)@([^@]+)$/.exec(spec);
  return { name, package: alias?.[1] ?? name, version: alias?.[2] ?? spec, alias: Boolean(alias) };
});

const newest = new Map();
for (const pin of pins) {
  if (pin.version.includes('-')) continue; // "latest" may be older than a beta
  const other = newest.get(pin.package);
  if (!other || pin.version.localeCompare(other.version, 'en', { numeric: true }) > 0) newest.set(pin.package, pin);
}
for (const pin of newest.values()) {
  file.devDependencies[pin.name] = pin.alias ? `npm:${pin.package}@latest` : 'latest';
  console.log(`${pin.package}: ${pin.version}, and newer`);
}
writeFileSync('package.json', JSON.stringify(file, null, 2) + '\n');
