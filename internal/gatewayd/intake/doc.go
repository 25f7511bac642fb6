// Package intake reads the bodies of requests. It bounds their sizes, the memory for all of
// them, the time that each may take, and each key's concurrency.
package intake
