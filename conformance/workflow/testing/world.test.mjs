// The suite starts an app of its own for each test, with this World.
import { createTestSuite } from '@workflow/world-testing/dist/src/index.mjs';

createTestSuite('vercel');
