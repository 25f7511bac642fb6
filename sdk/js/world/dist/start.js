/**
 * Connects an app to its daemon as soon as it listens, before anybody asks it for something: runs
 * go on by themselves after a restart. Load it first, with `NODE_OPTIONS=--import=@cayhq/world/start`,
 * or import it where the app starts. It does nothing without CAY_URL and CAY_TOKEN.
 *
 * @module
 */
import { createWorld } from "./index.js";
createWorld();
