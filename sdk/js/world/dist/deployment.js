// The id of the build that runs here: as "cay vercel exec" derives it.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
// The files of builders that differ between two builds.
const buildFiles = [
    ['.next/BUILD_ID'],
    ['.output/nitro.json'],
    ['.svelte-kit/output/client/_app/version.json'],
    ['.well-known/workflow/v1/flow.js', '.well-known/workflow/v1/step.js', '.well-known/workflow/v1/flow.mjs'],
];
const derived = 'dpl_cay';
const ids = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$/;
const devCommand = /^([^/]*[:=_.-])?dev([:=_.-][^/]*)?$/;
/**
 * deploymentId is CAY_DEPLOYMENT, else VERCEL_DEPLOYMENT_ID, else an id of the build in the
 * working directory, else one of the directory.
 */
export function deploymentId(env = process.env, dir = process.cwd(), argv = process.argv) {
    const set = env.CAY_DEPLOYMENT;
    if (set) {
        if (!ids.test(set))
            throw new Error(`CAY_DEPLOYMENT is ${JSON.stringify(set)}; it takes letters, digits, _, . and -, at most 128`);
        return set;
    }
    if (env.VERCEL_DEPLOYMENT_ID && !env.VERCEL_DEPLOYMENT_ID.startsWith(derived))
        return env.VERCEL_DEPLOYMENT_ID;
    if (env.NODE_ENV !== 'development' && !argv.some((a) => devCommand.test(a))) {
        for (const files of buildFiles) {
            const id = buildId(dir, files);
            if (id)
                return id;
        }
    }
    return `${derived}dev${short(createHash('sha256').update(`${hostname()}\n${dir}\n`))}`;
}
function buildId(dir, files) {
    const sum = createHash('sha256');
    let found = false;
    for (const name of files) {
        const text = read(join(dir, name));
        if (!text)
            continue;
        found = true;
        sum.update(`${name}\n`).update(text);
    }
    if (!found)
        return undefined;
    const text = read(join(dir, 'package.json'));
    if (text) {
        try {
            // An app of another name may have the same build id, of a revision of their repository.
            sum.update(`${JSON.parse(text.toString()).name ?? ''}\n`);
        }
        catch {
            // No package of npm's.
        }
    }
    return derived + short(sum);
}
function read(path) {
    try {
        return readFileSync(path);
    }
    catch (err) {
        if (err.code === 'ENOENT')
            return undefined;
        throw err;
    }
}
const short = (sum) => sum.digest().subarray(0, 10).toString('hex');
