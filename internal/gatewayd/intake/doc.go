// Package intake reads the bodies of requests within bounds: of their sizes, of the memory
// that all of them have, of their time, and of each key's concurrency.
package intake
