/**
 * specVersion is the newest version of the World's protocol that the app's runtime writes: 3 of
 * the 4.x line, 6 or 7 of 5.0. A World must not declare a newer one.
 */
export declare function specVersion(): number;
