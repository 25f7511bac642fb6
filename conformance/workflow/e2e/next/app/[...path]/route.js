// The routes of the tests, in the app router.
import { readFileSync } from 'node:fs';
import { handle } from '../../routes.mjs';
import * as workflows from '../workflows';

export const dynamic = 'force-dynamic';

// Importing the workflows makes them part of the build, which leaves this manifest.
const manifest = () => JSON.parse(readFileSync('app/.well-known/workflow/v1/manifest.json', 'utf8'));
const answer = (request) => handle(request, manifest(), workflows);

export { answer as GET, answer as POST };
