// Command testreport reads the output of `go test -json` in the given files, and
// prints a summary: tests that failed and passed when they were run again, each
// with its first failure, and the slowest tests.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	slow := flag.Int("slow", 15, "how many of the slowest packages and tests are printed")
	flag.Parse()
	r := newReport()
	for _, name := range flag.Args() {
		if err := r.read(name); err != nil {
			fmt.Fprintln(os.Stderr, "testreport:", err)
			os.Exit(1)
		}
	}
	r.print(os.Stdout, *slow)
}

// module is the prefix that is removed from the names of packages.
const module = "github.com/cayhq/cay/"

// maxOutput is how many bytes are printed of a failure: its end.
const maxOutput = 4 << 10

// test is a test or, without a name, a package, in the file of events of a
// stage.
type test struct{ stage, pkg, name string }

func (t test) String() string {
	s := strings.TrimPrefix(t.pkg, module)
	if t.name != "" {
		s += " " + t.name
	}
	return s
}

type result struct {
	took    time.Duration // of all its runs
	failed  bool
	passed  bool   // in the end
	failure string // the output of its first failure
}

type report struct {
	results map[test]*result
	output  map[test]*strings.Builder // of the run under way
	order   []test                    // as they failed first
}

func newReport() *report {
	return &report{results: map[test]*result{}, output: map[test]*strings.Builder{}}
}

// read adds a file of events. Lines that are not events are skipped: go test
// prints build errors among them.
func (r *report) read(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if json.Unmarshal(line, &e) == nil {
			r.add(name, e)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
	}
}

// event is an event of `go doc test2json`.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

func (r *report) add(stage string, e event) {
	t := test{stage, e.Package, e.Test}
	switch e.Action {
	case "run", "start":
		r.output[t] = new(strings.Builder)
	case "output":
		if b := r.output[t]; b != nil && !isMark(e.Output) {
			b.WriteString(e.Output)
		}
	case "pass", "fail", "skip":
		res := r.results[t]
		if res == nil {
			res = new(result)
			r.results[t] = res
		}
		res.took += time.Duration(e.Elapsed * float64(time.Second))
		res.passed = e.Action != "fail"
		if e.Action == "fail" && !res.failed {
			res.failed = true
			if b := r.output[t]; b != nil {
				res.failure = b.String()
			}
			r.order = append(r.order, t)
		}
		delete(r.output, t)
	}
}

// isMark reports whether a line shows a test's progress, not its output.
func isMark(line string) bool {
	line = strings.TrimLeft(line, " ")
	return strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ")
}

func (r *report) print(w io.Writer, slow int) {
	r.printSlowest(w, "packages", slow, func(t test) bool { return t.name == "" })
	r.printSlowest(w, "tests", slow, func(t test) bool { return t.name != "" && !strings.Contains(t.name, "/") })
	flaky := slices.DeleteFunc(slices.Clone(r.order), func(t test) bool { return t.name == "" || !r.results[t].passed })
	if len(flaky) == 0 {
		return
	}
	fmt.Fprintf(w, "\nFLAKY: failed, and passed when run again. Find out which is wrong, the test or the program:\n")
	for _, t := range flaky {
		fmt.Fprintf(w, "--- FLAKY %s\n%s", t, last(r.results[t].failure, maxOutput))
	}
}

func (r *report) printSlowest(w io.Writer, what string, most int, is func(test) bool) {
	var all []test
	for t := range r.results {
		if is(t) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b test) int {
		return cmp.Or(cmp.Compare(r.results[b].took, r.results[a].took), cmp.Compare(a.String(), b.String()))
	})
	if len(all) == 0 || most == 0 {
		return
	}
	fmt.Fprintf(w, "\nslowest %s:\n", what)
	for _, t := range all[:min(most, len(all))] {
		fmt.Fprintf(w, "%7.1f s  %s\n", r.results[t].took.Seconds(), t)
	}
}

// last returns the last lines of s, size bytes at most.
func last(s string, size int) string {
	if len(s) <= size {
		return s
	}
	s = s[len(s)-size:]
	return "...\n" + s[strings.IndexByte(s, '\n')+1:]
}
