// The suite starts an app of its own for each test, with the World at that path.
import { createTestSuite } from '@workflow/world-testing/dist/src/index.mjs';

createTestSuite(process.env.CAY_TEST_WORLD);
