package early

// Start is the entry point of cay-sentry, and continues at the entry point of Go
// programs: see the Makefile. The process has a single thread then, so Start gives up
// capabilities by 43 system calls. The Go runtime would make all its threads wait for
// each other 43 times.
func Start()
