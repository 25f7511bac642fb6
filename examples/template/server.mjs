// Answers whether a number is prime. It loads all it knows before it listens:
// what a program has to do before it is of use.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";

const primes = new Set(JSON.parse(readFileSync("primes.json", "utf8")));
let requests = 0;

createServer((req, res) => {
  const n = Number(req.url.slice(1));
  res.setHeader("content-type", "application/json");
  res.end(JSON.stringify({ n, prime: primes.has(n), known: primes.size, requests: ++requests }) + "\n");
}).listen(3000, () => console.log(`knows ${primes.size} primes`));
