// Finds the primes below a limit and writes them down: what a build has to do
// before a program can run.
import { writeFileSync } from "node:fs";

const limit = 5_000_000;
const composite = new Uint8Array(limit);
const primes = [];
for (let n = 2; n < limit; n++) {
  if (composite[n]) continue;
  primes.push(n);
  for (let m = n * n; m < limit; m += n) composite[m] = 1;
}
writeFileSync("primes.json", JSON.stringify(primes));
console.log(`${primes.length} primes`);
