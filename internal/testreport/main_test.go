package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "fast.json")
	events := `# a build says something
{"Action":"start","Package":"github.com/cayhq/cay/a"}
{"Action":"run","Package":"github.com/cayhq/cay/a","Test":"TestOnce"}
{"Action":"output","Package":"github.com/cayhq/cay/a","Test":"TestOnce","Output":"=== RUN   TestOnce\n"}
{"Action":"output","Package":"github.com/cayhq/cay/a","Test":"TestOnce","Output":"    a_test.go:1: by chance\n"}
{"Action":"output","Package":"github.com/cayhq/cay/a","Test":"TestOnce","Output":"--- FAIL: TestOnce (1.50s)\n"}
{"Action":"fail","Package":"github.com/cayhq/cay/a","Test":"TestOnce","Elapsed":1.5}
{"Action":"run","Package":"github.com/cayhq/cay/a","Test":"TestAlways"}
{"Action":"output","Package":"github.com/cayhq/cay/a","Test":"TestAlways","Output":"    a_test.go:2: always\n"}
{"Action":"fail","Package":"github.com/cayhq/cay/a","Test":"TestAlways","Elapsed":0.5}
{"Action":"fail","Package":"github.com/cayhq/cay/a","Elapsed":3}
{"Action":"start","Package":"github.com/cayhq/cay/a"}
{"Action":"run","Package":"github.com/cayhq/cay/a","Test":"TestOnce"}
{"Action":"output","Package":"github.com/cayhq/cay/a","Test":"TestOnce","Output":"    a_test.go:1: this time it is well\n"}
{"Action":"pass","Package":"github.com/cayhq/cay/a","Test":"TestOnce","Elapsed":1}
{"Action":"run","Package":"github.com/cayhq/cay/a","Test":"TestAlways"}
{"Action":"fail","Package":"github.com/cayhq/cay/a","Test":"TestAlways","Elapsed":0.5}
{"Action":"fail","Package":"github.com/cayhq/cay/a","Elapsed":2}
{"Action":"pass","Package":"github.com/cayhq/cay/b","Elapsed":7}`
	if err := os.WriteFile(name, []byte(events), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newReport()
	if err := r.read(name); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	r.print(&b, 1)
	want := `
slowest packages:
    7.0 s  b

slowest tests:
    2.5 s  a TestOnce

FLAKY: failed, and passed when run again. Find out which is wrong, the test or the program:
--- FLAKY a TestOnce
    a_test.go:1: by chance
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
