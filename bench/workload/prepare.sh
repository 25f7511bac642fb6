# Packs the sources the workload builds: Python's standard library.
set -eu
tar -cf /tmp/bench-sources.tar -C /usr/lib --exclude=__pycache__ python3.13
