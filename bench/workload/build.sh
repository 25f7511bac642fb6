# Unpacks a source tree, compiles it, runs a program for each of 100 files, and
# packs the result. Writes how long each part took, in microseconds.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
now() { echo $(($(date +%s%N) / 1000)); }

t0=$(now)
tar -xf /tmp/bench-sources.tar
t1=$(now)
python3 -m compileall -q python3.13
t2=$(now)
find python3.13 -name '*.py' | sort | head -n 100 | while read -r file; do
	sha256sum "$file"
done >sums
test "$(wc -l <sums)" = 100
t3=$(now)
tar -cf - python3.13 | gzip -1 >build.tar.gz
t4=$(now)

echo $((t1 - t0)) $((t2 - t1)) $((t3 - t2)) $((t4 - t3))
