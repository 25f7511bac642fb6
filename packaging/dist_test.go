package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// long skips a test that makes or installs whole packages, unless it is asked for.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("CAY_PACKAGES_TEST") == "" {
		t.Skip("make dist-test and make install-test run it")
	}
}

// output runs a program in a directory and returns what it wrote.
func output(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	out, err := command(dir, env, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// Two clones of a commit, in different places, give the same bytes.
func TestDist_Reproducible(t *testing.T) {
	long(t)
	var sums []string
	for _, name := range []string{"one", "another/place"} {
		dir := filepath.Join(t.TempDir(), name)
		output(t, ".", nil, "git", "clone", "--quiet", "--shared", "..", dir)
		env := []string{"TZ=Asia/Tokyo"}
		if len(sums) == 0 {
			env = []string{"TZ=UTC"}
		}
		if os.Getenv("FRESH") != "" {
			env = append(env, "GOCACHE="+filepath.Join(dir, "../cache"))
		}
		output(t, filepath.Join(dir, "packaging"), env, "go", "run", ".")
		b, err := os.ReadFile(filepath.Join(dir, "bin/dist/SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(b, []byte("\n")); n != 1+5*len(architectures) {
			t.Errorf("there are %d files:\n%s", n, b)
		}
		sums = append(sums, string(b))
	}
	if sums[0] != sums[1] {
		t.Errorf("the clones differ:\n%s\n%s", sums[0], sums[1])
	}
	t.Logf("twice the same:\n%s", sums[0])
}
