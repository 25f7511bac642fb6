// Package faults tests the promise of durable workflows: whatever dies at whatever
// moment, a program returns the result that it would have returned, and its external
// effects happen once for services that recognise idempotency keys.
//
// Programs are random (program.go): trees of steps, branches, sleeps, hooks, children,
// transactions, compensations. A model that knows nothing of workflows computes the
// program's expected result. Then the program is run while
//
//   - the store is cut off at every commit in turn, before or after (fuse_test.go);
//   - the process is killed, at every commit in turn or at random (kill_test.go);
//   - the database is killed or restarted, and comes back (postgres_test.go);
//   - another process takes its runs over (postgres_test.go);
//   - some runs end their process each time they are tried (poison_test.go);
//   - values are sent to runs that end, or continue, at that moment (hooks_test.go);
//   - the disk is full, or the clock jumps (places_test.go);
//   - chains of runs are cancelled at any moment, and clocks are changed (chains_test.go).
//
// Few rounds are run by "go test"; "make faults" runs many. A failure names the
// seed of its program.
package faults
