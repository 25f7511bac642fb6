package workflow

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/workflow"
)

// started is how many runs TestKilled_Random starts in each round, and pairs is how many
// apps, each with a daemon of its own, share the rounds of a line.
const (
	started = 2
	pairs   = 2
)

// TestKilled_Random kills the app, the daemon or both at random points, round by round, while runs
// draw numbers in steps, sleep, wait for a hook, start other runs and write streams. All runs
// complete; their results have what their steps recorded; a log that was read once is only ever
// appended to; and streams have what steps wrote, in order. A few writes may be missing: the SDK
// sends them in the background, beside the record that the step has completed.
func TestKilled_Random(t *testing.T) {
	need(t, lines...)
	rounds := max(1, seedtest.Rounds(t, 4)/pairs)
	for i, line := range lines {
		for pair := range pairs {
			random := rand.New(rand.NewPCG(seedtest.Seed(t), uint64(i*pairs+pair)))
			t.Run(fmt.Sprint(line, " ", pair), func(t *testing.T) {
				t.Parallel()
				killAtRandom(t, random, line, rounds)
			})
		}
	}
}

// killAtRandom runs rounds of an app with a line of the SDK, and checks all runs at the end.
func killAtRandom(t *testing.T, random *rand.Rand, line string, rounds int) {
	d := startDaemon(t)
	c := &chaos{app: buildApp(t, line, d.URL, d.Token), daemon: d, logs: map[string][]string{}}
	c.app.start(t)
	for i := range rounds {
		c.round(t, random, i)
	}
	for len(c.waiting) > 0 {
		c.resume(t)
	}
	for _, run := range c.runs {
		c.check(t, run)
	}
	if open := c.list(t, "running"); len(open) > 0 {
		t.Errorf("%d runs are running for ever: %.200q", len(open), open)
	}
	c.checkOrphans(t)
	c.logProgress(t)
	t.Logf("%d rounds, %d runs; the app lost %d writes to streams", rounds, len(c.runs), c.lost)
	if c.lost > max(1, len(c.runs)/5) {
		t.Errorf("%d writes of %d runs were lost", c.lost, len(c.runs))
	}
}

// chaos is an app and a daemon that are killed, and the runs that should not notice.
type chaos struct {
	app     *app
	daemon  *daemon
	runs    []mixedRun
	waiting []mixedRun          // for their hook
	logs    map[string][]string // events of runs, as they were read
	back    []comeback
	lost    int // writes to streams that are missing
}

// comeback is a moment at which app and daemon answer again after a kill.
type comeback struct {
	at   time.Time
	runs int // how many runs had been started by then
}

// mixedRun is a run of the workflow mixed.
type mixedRun struct {
	id, token string
	n         int
}

// round starts runs, kills somebody at a random moment, and lets the hooks of runs have their values
// when everybody is back.
func (c *chaos) round(t *testing.T, random *rand.Rand, i int) {
	for j := range started {
		n := i*started + j
		token := fmt.Sprintf("token-%d", n)
		run := mixedRun{c.app.run(t, "mixed", n, token), token, n}
		c.runs, c.waiting = append(c.runs, run), append(c.waiting, run)
	}
	<-time.After(time.Duration(random.IntN(1500)) * time.Millisecond)
	switch random.IntN(3) {
	case 0:
		c.app.kill()
	case 1:
		c.daemon.kill()
		c.daemon.start(t)
	case 2:
		c.app.kill()
		c.daemon.kill()
		c.daemon.start(t)
	}
	if c.app.cmd == nil {
		c.app.start(t)
	}
	c.back = append(c.back, comeback{time.Now(), len(c.runs)})
	for _, run := range c.runs[max(0, len(c.runs)-3*started):] {
		c.readLog(t, run.id)
	}
	c.resume(t)
}

// resume sends values to the hooks that exist by now. The others stay waiting.
func (c *chaos) resume(t *testing.T) {
	t.Helper()
	c.waiting = slices.DeleteFunc(c.waiting, func(run mixedRun) bool {
		waits := func(event string) bool { return strings.Contains(event, `"type":"hook_created"`) }
		if !slices.ContainsFunc(c.readLog(t, run.id), waits) {
			return false
		}
		var resumed struct{ RunID string }
		c.app.call(t, http.MethodPost, "/hooks/"+run.token, map[string]int{"value": run.n}, &resumed)
		if resumed.RunID != run.id {
			t.Errorf("the hook of %s resumes %s", run.id, resumed.RunID)
		}
		return true
	})
}

// check waits for the end of a run, and compares what it returned with what its log and its
// stream have.
func (c *chaos) check(t *testing.T, run mixedRun) {
	t.Helper()
	var result struct {
		Result struct {
			First float64
			Pair  []float64
			Value int
			Twice int
		}
	}
	text := c.app.result(t, run.id)
	if err := json.Unmarshal([]byte(text), &result); err != nil {
		t.Fatal(err)
	}
	r := result.Result
	if r.First == 0 || len(r.Pair) != 2 || r.Value != run.n || r.Twice != 2*run.n {
		t.Errorf("run %s of %d returns %s", run.id, run.n, text)
	}
	c.checkStream(t, run.id, number(t, r.First), fmt.Sprint(r.Twice))
	c.readLog(t, run.id)
}

// checkOrphans checks that a run that has not started is one that a step started in the moment
// when it was killed, and that no message will start. The daemon cancels it later.
func (c *chaos) checkOrphans(t *testing.T) {
	t.Helper()
	apps, err := workflow.DialApps(workflow.RemoteOptions{URL: c.daemon.URL, Token: c.daemon.Token})
	if err != nil {
		t.Fatal(err)
	}
	pending := c.list(t, "pending")
	for _, run := range pending {
		waiting, err := apps.Deliveries(t.Context(), run)
		if err != nil {
			t.Fatal(err)
		}
		if len(waiting) > 0 || slices.ContainsFunc(c.runs, func(r mixedRun) bool { return r.id == run }) {
			t.Errorf("run %s is pending for ever, with the messages %+v", run, waiting)
		}
	}
	if len(pending) > len(c.runs)/20 {
		t.Errorf("%d runs were never started", len(pending))
	}
	t.Logf("%d runs were created by steps that were killed before they had started them", len(pending))
}

// logProgress logs how long after each comeback the app records the first event of any of the
// latest runs.
func (c *chaos) logProgress(t *testing.T) {
	t.Helper()
	times := make([][]time.Time, len(c.runs)) // of the events that the app records by itself
	for i, run := range c.runs {
		for _, text := range c.logs[run.id] {
			var e struct {
				Type string
				At   time.Time
			}
			if err := json.Unmarshal([]byte(text), &e); err != nil {
				t.Fatalf("event %s: %v", text, err)
			}
			if e.Type != "run_created" && e.Type != "hook_received" {
				times[i] = append(times[i], e.At)
			}
		}
	}
	var waits []time.Duration
	slow := 0
	for _, back := range c.back {
		first := time.Duration(-1)
		for _, all := range times[max(0, back.runs-3*started):back.runs] {
			i := slices.IndexFunc(all, func(at time.Time) bool { return at.After(back.at) })
			if i >= 0 && (first < 0 || all[i].Sub(back.at) < first) {
				first = all[i].Sub(back.at)
			}
		}
		if first > 2*time.Second {
			slow++
		}
		if first >= 0 {
			waits = append(waits, first.Round(time.Millisecond))
		}
	}
	slices.Sort(waits)
	if n := len(waits); n > 0 {
		t.Logf("first progress after %d of %d comebacks: median %v, p95 %v, longest %v, %d above 2 s", n, len(c.back), waits[n/2], waits[n*95/100], waits[n-1], slow)
	}
}

// checkStream compares the stream of a run with what its steps wrote.
func (c *chaos) checkStream(t *testing.T, run string, want ...string) {
	t.Helper()
	var page struct {
		Items []struct {
			Name   string
			Closed bool
		}
	}
	if err := json.Unmarshal([]byte(c.get(t, "/v1/workflows/runs/"+run+"/streams")), &page); err != nil {
		t.Fatal(err)
	}
	if len(page.Items) != 1 || !page.Items[0].Closed {
		c.lost++ // nobody would end a reader
		return
	}
	text, err := io.ReadAll(c.app.stream(t, run, 0))
	if err != nil {
		name := url.QueryEscape(page.Items[0].Name)
		t.Fatalf("the stream of run %s ends after %q: %v; the daemon has\n%s", run, text, err, c.get(t, "/v1/workflows/runs/"+run+"/stream?name="+name+"&from=0"))
	}
	values := slices.Compact(strings.Fields(string(text))) // a step whose end was lost writes again
	rest := want
	for _, v := range values {
		i := slices.Index(rest, v)
		if i < 0 {
			t.Errorf("run %s writes %v, want %v", run, values, want)
			return
		}
		rest = rest[i+1:]
	}
	c.lost += len(want) - len(values)
}

func number(t *testing.T, v float64) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// readLog reads the log of a run, which begins with all that was read of it before.
func (c *chaos) readLog(t *testing.T, run string) []string {
	t.Helper()
	text := c.get(t, "/v1/workflows/runs/"+run+"/events")
	var log []string
	for line := range strings.Lines(text) {
		log = append(log, strings.TrimSpace(line))
	}
	before := c.logs[run]
	if len(log) < len(before) || !slices.Equal(log[:len(before)], before) {
		t.Errorf("the log of run %s was\n%s\nand is\n%s", run, strings.Join(before, "\n"), text)
	}
	c.logs[run] = log
	return log
}

// list returns the ids of runs that have a status.
func (c *chaos) list(t *testing.T, status string) []string {
	t.Helper()
	var page struct{ Items []struct{ ID string } }
	if err := json.NewDecoder(strings.NewReader(c.get(t, "/v1/workflows/runs?limit=1000&status="+status))).Decode(&page); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, run := range page.Items {
		ids = append(ids, run.ID)
	}
	return ids
}

// get asks the daemon.
func (c *chaos) get(t *testing.T, path string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.daemon.URL+path, bytes.NewReader(nil))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+c.daemon.Token)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s %s %v", path, response.Status, text, err)
	}
	return string(text)
}
