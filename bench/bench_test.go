package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay"
)

func TestSummarize(t *testing.T) {
	t.Parallel()
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, tc := range []struct {
		name                  string
		samples               []float64
		min, median, p95, max float64
	}{
		{"none", nil, 0, 0, 0, 0},
		{"one", []float64{3}, 3, 3, 3, 3},
		{"two", []float64{4, 1}, 1, 2.5, 4, 4},
		{"odd", []float64{9, 1, 5}, 1, 5, 9, 9},
		{"twenty", hundred[80:], 1, 10.5, 19, 20},
		{"hundred", hundred, 1, 50.5, 95, 100},
		{"four digits", []float64{1.23456, 123456}, 1.235, 61730, 123500, 123500},
	} {
		before := slices.Clone(tc.samples)
		var r Result
		r.summarize(tc.samples)
		want := Result{N: len(tc.samples), Min: tc.min, Median: tc.median, P95: tc.p95, Max: tc.max}
		if r != want {
			t.Errorf("%s: got %+v, want %+v", tc.name, r, want)
		}
		if !slices.Equal(before, tc.samples) {
			t.Errorf("%s: the samples were changed", tc.name)
		}
	}
}

func TestOverBudget(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		r    Result
		want bool
	}{
		{Result{N: 1, Opponent: Cay, Unit: "ms", Budget: 6, Median: 6}, false},
		{Result{N: 1, Opponent: Cay, Unit: "ms", Budget: 6, Median: 6.1}, true},
		{Result{N: 1, Opponent: Cay, Unit: "MB/s", Budget: 400, Median: 400}, false},
		{Result{N: 1, Opponent: Cay, Unit: "MB/s", Budget: 400, Median: 399}, true},
		{Result{N: 1, Opponent: Cay, Unit: "ms", Median: 1e9}, false},
		{Result{N: 1, Opponent: "crun", Unit: "ms", Budget: 6, Median: 7}, false},
	} {
		if got := tc.r.overBudget(); got != tc.want {
			t.Errorf("%+v: got %v", tc.r, got)
		}
	}
}

func TestRatioText(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		unit        string
		own, theirs float64
		want        string
	}{
		{"ms", 10, 5, "2.0x slower"},
		{"ms", 5, 10, "2.0x faster"},
		{"MB/s", 100, 400, "4.0x slower"},
		{"MB/s", 400, 100, "4.0x faster"},
		{"MB", 20, 2, "10.0x larger"},
		{"MB", 2, 20, "10.0x smaller"},
		{"ms", 0, 5, "-"},
		{"MB", 13, -1, "-"},
	} {
		got := ratioText(Result{N: 1, Unit: tc.unit, Median: tc.own}, Result{N: 1, Median: tc.theirs})
		if got != tc.want {
			t.Errorf("%g to %g %s: got %q, want %q", tc.own, tc.theirs, tc.unit, got, tc.want)
		}
	}
}

// counted is a subject whose samples count up from 1, in two rows.
func counted(name string, closed *int) Subject {
	return Subject{Name: name, Open: func(_ context.Context, n int) (*Session, error) {
		i := 0.0
		return &Session{
			Sample: func(context.Context) ([]float64, error) { i++; return []float64{i, 10 * i}, nil },
			Close:  func(context.Context) error { *closed++; return nil },
		}, nil
	}}
}

func testSuite(subjects ...Subject) *Suite {
	return &Suite{Name: "test", Close: func() error { return nil }, Probes: []Probe{
		{Rows: []Row{{"a", "ms", 5}, {"a.part", "ms", 0}}, N: 3, Warmup: 2, Subjects: subjects},
		{Rows: []Row{{"ab", "MB/s", 0}, {"other", "ms", 0}}, N: 1, Subjects: subjects},
	}}
}

func TestRun(t *testing.T) {
	t.Parallel()
	closed := 0
	var steps []string
	results, err := Run(t.Context(), testSuite(counted(Cay, &closed), counted("native", &closed)), Options{
		Rows: []string{"a"},
		Progress: func(row, subject string, done, n int) {
			if done == n {
				steps = append(steps, row+" "+subject)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	type line struct {
		row, opponent    string
		n                int
		min, median, max float64
	}
	var got []line
	for _, r := range results {
		got = append(got, line{r.Row, r.Opponent, r.N, r.Min, r.Median, r.Max})
	}
	// The warm-up's 1 and 2 are not among them, and a row's subjects are together.
	want := []line{
		{"a", Cay, 3, 3, 4, 5}, {"a", "native", 3, 3, 4, 5},
		{"a.part", Cay, 3, 30, 40, 50}, {"a.part", "native", 3, 30, 40, 50},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if closed != 2 {
		t.Errorf("%d sessions were closed, want 2", closed)
	}
	if want := []string{"a cay", "a native"}; !slices.Equal(steps, want) {
		t.Errorf("progress %q, want %q", steps, want)
	}
}

func TestRun_Samples(t *testing.T) {
	t.Parallel()
	closed := 0
	results, err := Run(t.Context(), testSuite(counted(Cay, &closed)), Options{N: 7})
	if err != nil || len(results) != 4 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	for _, r := range results {
		if r.N != 7 {
			t.Errorf("%s: %d samples, want 7", r.Row, r.N)
		}
	}
}

func TestRun_UnknownRow(t *testing.T) {
	t.Parallel()
	_, err := Run(t.Context(), testSuite(), Options{Rows: []string{"a.par"}})
	if cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), `"a.par"`) {
		t.Fatalf("got %v", err)
	}
}

func TestRun_Failures(t *testing.T) {
	t.Parallel()
	broken := func(name string) Subject {
		return Subject{Name: name, Open: func(context.Context, int) (*Session, error) {
			return &Session{Sample: func(context.Context) ([]float64, error) { return nil, errors.New("broken pipe dream") }}, nil
		}}
	}
	closed := 0
	absent := Subject{Name: "crun", Skip: "not installed"}
	results, err := Run(t.Context(), testSuite(counted(Cay, &closed), broken("native"), absent), Options{Rows: []string{"ab"}})
	if err != nil || len(results) != 3 {
		t.Fatalf("%d results, %v; an opponent's failure is no reason to end", len(results), err)
	}
	if r := results[1]; r.N != 0 || r.Skipped != "failed: broken pipe dream" {
		t.Errorf("failed opponent: %+v", r)
	}
	if r := results[2]; r.N != 0 || r.Skipped != "not installed" {
		t.Errorf("absent opponent: %+v", r)
	}
	results, err = Run(t.Context(), &Suite{Name: "test", Probes: []Probe{
		{Rows: []Row{{"a", "ms", 0}, {"a.part", "ms", 0}}, N: 1, Subjects: []Subject{counted(Cay, &closed)}},
		{Rows: []Row{{"b", "ms", 0}, {"b.part", "ms", 0}}, N: 1, Subjects: []Subject{broken(Cay)}},
		{Rows: []Row{{"c", "ms", 0}, {"c.part", "ms", 0}}, N: 1, Subjects: []Subject{counted(Cay, &closed)}},
	}}, Options{})
	if err == nil || !strings.Contains(err.Error(), "measure b: broken") || len(results) != 2 || results[0].Row != "a" {
		t.Fatalf("got %v, %v; want what came before the failure", results, err)
	}
}

func TestRun_Cancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	closed := 0
	s := counted("native", &closed)
	open := s.Open
	s.Open = func(ctx context.Context, n int) (*Session, error) {
		session, err := open(ctx, n)
		session.Sample = func(ctx context.Context) ([]float64, error) { cancel(); return nil, ctx.Err() }
		session.Close = func(ctx context.Context) error { closed++; return ctx.Err() }
		return session, err
	}
	_, err := Run(ctx, testSuite(s), Options{})
	if !errors.Is(err, context.Canceled) || closed != 1 {
		t.Fatalf("got %v, closed %d times with a context of its own", err, closed)
	}
}

func TestRun_NotMeasured(t *testing.T) {
	t.Parallel()
	large := Subject{Name: Cay, Open: func(context.Context, int) (*Session, error) { return nil, notMeasured("a: too large") }}
	results, err := Run(t.Context(), testSuite(large), Options{Rows: []string{"a"}})
	if err != nil || len(results) != 2 || results[0].Skipped != "a: too large" || results[0].N != 0 {
		t.Fatalf("got %+v, %v; want why it was left out", results, err)
	}
}

func TestKeptPages(t *testing.T) {
	t.Parallel()
	const zones = `Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 46912
  pages free     2816
  pagesets
    cpu: 0
              count:    370
              high:     1000
              batch:    63
  vm stats threshold: 4
    cpu: 1
              count:    5
Node 0, zone   Normal
  pagesets
    cpu: 0
              count:    100
`
	if got := keptPages(zones); got != 475 {
		t.Errorf("got %d pages, want 475", got)
	}
}

func TestShareMemory(t *testing.T) {
	t.Parallel()
	self, parent := os.Getpid(), os.Getppid()
	if shared, err := shareMemory(self, self); err != nil || !shared {
		t.Errorf("with itself: %v, %v", shared, err)
	}
	if os.Geteuid() != 0 {
		t.Skip("comparing with another process needs root")
	}
	if shared, err := shareMemory(self, parent); err != nil || shared {
		t.Errorf("with its parent: %v, %v", shared, err)
	}
}

// TestWriteJSON holds the shape of the JSON, which others read.
func TestWriteJSON(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	err := WriteJSON(&b, []Result{
		{Suite: "sandbox", Row: "exec", Unit: "ms", N: 2, Min: 1, Median: 1.5, P95: 2, Max: 2, Opponent: Cay, Budget: 6,
			Machine: Machine{"CPU <1>", 2, 1024, "6.1"}, Load: 0.5, Commit: "abc"},
		{Suite: "sandbox", Row: "exec", Unit: "ms", Opponent: "crun", Skipped: "not installed"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `[
  {
    "suite": "sandbox",
    "row": "exec",
    "unit": "ms",
    "n": 2,
    "min": 1,
    "median": 1.5,
    "p95": 2,
    "max": 2,
    "opponent": "cay",
    "budget": 6,
    "machine": {
      "cpu": "CPU <1>",
      "cores": 2,
      "memory_mb": 1024,
      "kernel": "6.1"
    },
    "load": 0.5,
    "commit": "abc"
  },
  {
    "suite": "sandbox",
    "row": "exec",
    "unit": "ms",
    "n": 0,
    "min": 0,
    "median": 0,
    "p95": 0,
    "max": 0,
    "opponent": "crun",
    "skipped": "not installed",
    "machine": {
      "cpu": "",
      "cores": 0,
      "memory_mb": 0,
      "kernel": ""
    },
    "load": 0,
    "commit": ""
  }
]
`
	if b.String() != want {
		t.Errorf("got %s\nwant %s", b.String(), want)
	}
	b.Reset()
	if err := WriteJSON(&b, nil); err != nil || !json.Valid(b.Bytes()) || b.String() != "[]\n" {
		t.Errorf("no results: %q, %v", b.String(), err)
	}
}

func TestWriteTable(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	results := []Result{
		{Row: "exec", Unit: "ms", N: 20, Min: 4, Median: 7.126, P95: 8, Max: 12.5, Opponent: Cay, Budget: 6, Commit: "v1",
			Machine: Machine{"CPU", 2, 1024, "6.1"}, Load: 0.5},
		{Row: "exec", Unit: "ms", N: 20, Min: 1, Median: 2, P95: 3, Max: 4, Opponent: "native", Load: 0.25},
		{Row: "exec", Unit: "ms", Opponent: "crun", Skipped: "not\ninstalled"},
		{Row: "write", Unit: "MB/s", N: 1, Min: 1234.5, Median: 1234.5, P95: 1234.5, Max: 1234.5, Opponent: Cay, Budget: 400},
		{Row: "write", Unit: "MB/s", Opponent: "crun", Skipped: "not\ninstalled"},
	}
	if err := WriteTable(&b, results); err != nil {
		t.Fatal(err)
	}
	const want = `CPU, 2 cores, 1024 MiB, Linux 6.1; cay v1

ROW    SUBJECT  N   MIN   MEDIAN  P95   MAX   UNIT  BUDGET       CAY IS       LOAD
exec   cay      20  4     7.13    8     12.5  ms    <= 6 missed  -            0.50
       native   20  1     2       3     4     ms    -            3.6x slower  0.25
write  cay      1   1234  1234    1234  1234  MB/s  >= 400 kept  -            0.00

Not measured:
  crun: not installed
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}
