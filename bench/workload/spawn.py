# Runs the program of its arguments to its end for each line it is sent, and prints
# how many milliseconds that took.
import os, sys, time

for _ in sys.stdin:
    begun = time.monotonic()
    pid = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ)
    _, status = os.waitpid(pid, 0)
    took = time.monotonic() - begun
    if status != 0:
        sys.exit(f"{sys.argv[1]} ended with {status:#x}")
    print(took * 1e3, flush=True)
