package early

// Start is where cay-sentry begins, and then goes on to where Go programs do: see the
// Makefile. As there is one thread yet, it gives up capabilities by 43 system calls,
// where the Go runtime would have all its threads wait for each other 43 times.
func Start()
