// The line of the SDK that the app uses.
import { createRequire } from 'node:module';
import { join } from 'node:path';
/**
 * specVersion is the newest version of the World's protocol that the app's runtime writes: 3 of
 * the 4.x line, 6 or 7 of 5.0. A World must not declare a newer one.
 */
export function specVersion() {
    const known = installed();
    if (known)
        return known;
    // The runtime is part of the app's bundle. That of 5.0 says that it is there.
    if (!(Symbol.for('@workflow/world//getWorldFn') in globalThis))
        return 3;
    return /^(0|false|off|no)$/i.test(process.env.WORKFLOW_SEALED_LOG ?? '') ? 6 : 7;
}
function installed() {
    const app = join(process.cwd(), 'package.json');
    for (const path of [['workflow', '@workflow/core'], ['workflow/api', '@workflow/core'], ['@workflow/core'], []]) {
        try {
            let from = createRequire(app);
            for (const name of path)
                from = createRequire(from.resolve(name));
            const world = from('@workflow/world');
            const version = world.mintedSpecVersion?.() ?? world.SPEC_VERSION_CURRENT;
            if (Number.isInteger(version))
                return version;
        }
        catch {
            // It is installed in another way.
        }
    }
    return undefined;
}
