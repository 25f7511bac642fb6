package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// WorkflowJSOptions are the options of the suite of workflows in JavaScript.
type WorkflowJSOptions struct {
	Daemon *Daemon
	// Exec is the argv of "cay vercel exec --".
	Exec []string
	// SDK is the directory with an installed Workflow SDK of each line, in v4 and v5.
	SDK string
	// Postgres is a directory with an installed @workflow/world-postgres of line 4.
	Postgres string
	// Opponents says whether to measure the vendor's own Worlds.
	Opponents bool
	WorkDir   string // on the disk that is to be measured
	Stderr    io.Writer
	// Steps is the number of steps in each run, and Values the number of values in
	// each stream. 0 means 80 steps of line 4 and 200 of line 5, and 100 values.
	Steps, Values int
}

// jsLine is a line of the Workflow SDK, by the directory of its package.
type jsLine string

const (
	jsV4 jsLine = "v4"
	jsV5 jsLine = "v5"
)

// The Worlds that are measured.
const (
	jsStock    = "stock"    // the SDK's client of the hosted service, by "cay vercel exec"
	jsCayhq    = "cayhq"    // @cayhq/world
	jsLocal    = "local"    // the vendor's World on local files, to which ratios refer
	jsPostgres = "postgres" // the vendor's World on PostgreSQL
)

// jsPause is the pause after each value of a stream, in milliseconds.
const jsPause = 20

// jsBench has the common state of the suite's probes.
type jsBench struct {
	o       WorkflowJSOptions
	current *jsStage // the apps of one line run at a time
}

// NewWorkflowJSSuite returns the suite of workflows in JavaScript: the same app of
// the Workflow SDK, unmodified, runs over cay and over the vendor's own Worlds. The probes of a
// line share rounds. In a round the Worlds do the same work, one after the other, and
// each round begins with another World.
func NewWorkflowJSSuite(o WorkflowJSOptions) *Suite {
	o.Values = cmp.Or(o.Values, 100)
	b := &jsBench{o: o}
	// The SDK limits line 4, whatever the World, and the client of its hosted service in
	// line 5.
	v4 := jsBudgets{toLocal: 1}
	return &Suite{
		Name: "workflow-js",
		Probes: []Probe{
			b.steps("v4_steps", jsV4, jsStock, v4),
			b.steps("v4_world_steps", jsV4, jsCayhq, v4),
			b.streams("v4_stream", jsV4, jsStock),
			b.streams("v4_world_stream", jsV4, jsCayhq),
			b.steps("v5_steps", jsV5, jsStock, jsBudgets{rate: 12}),
			b.steps("v5_world_steps", jsV5, jsCayhq, jsBudgets{toLocal: 1 / 0.9, cpuToLocal: 1.1}),
			b.streams("v5_stream", jsV5, jsStock),
			b.streams("v5_world_stream", jsV5, jsCayhq),
		},
		Close: func() error { return b.leave() },
	}
}

// jsBudgets are the budgets that differ between rows. 0 means none.
type jsBudgets struct{ rate, toLocal, cpuToLocal float64 }

// steps measures sequential steps of a run: how many run in a second, and how much CPU
// the app and the server behind its World use for each. Growth is the time of a step in
// the last fifth of the run, divided by its time in the first fifth.
func (b *jsBench) steps(row string, line jsLine, world string, budget jsBudgets) Probe {
	growth := 0.0
	if b.o.Steps >= 1000 {
		growth = 1.2 // shorter runs vary more
	}
	return Probe{
		Rows: []Row{
			{row, "steps/s", budget.rate}, {row + ".cpu", "ms", 0}, {row + ".growth", "x", growth}, {row + ".server", "ms", 1},
			{row + ".to_local", "x", budget.toLocal}, {row + ".cpu_to_local", "x", budget.cpuToLocal},
		},
		N: 2,
		Subjects: b.subjects(line, world, (*jsStage).stepRound, func(own, local jsOutcome) []float64 {
			s := own.steps
			values := []float64{1000 / s.step, s.cpu, s.growth}
			if own.world == jsLocal {
				return values // there is no server
			}
			values = append(values, s.server)
			if local.err == nil && local.steps.step > 0 {
				values = append(values, s.step/local.steps.step, s.cpu/local.steps.cpu)
			}
			return values
		}),
	}
}

// streams measures the time from the write of a value until a reader has it: the 75th
// percentile of a stream, and others.
func (b *jsBench) streams(row string, line jsLine, world string) Probe {
	return Probe{
		Rows: []Row{{row, "ms", 50}, {row + ".p50", "ms", 0}, {row + ".p99", "ms", 0}},
		N:    2,
		Subjects: b.subjects(line, world, (*jsStage).streamRound, func(own, _ jsOutcome) []float64 {
			return []float64{percentile(own.latency, 75), percentile(own.latency, 50), percentile(own.latency, 99)}
		}),
	}
}

// percentile returns the nearest rank of sorted values.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(int(math.Ceil(p/100*float64(len(sorted)))), 1)-1]
}

// subjects are cay with a World, and the vendor's Worlds.
func (b *jsBench) subjects(line jsLine, own string, round jsMeasure, values func(own, local jsOutcome) []float64) []Subject {
	missing := b.missing(line)
	worlds := []string{own}
	if b.o.Opponents {
		worlds = append(worlds, jsLocal, jsPostgres)
	}
	var all []Subject
	for _, world := range worlds {
		s := Subject{Name: world, Skip: missing}
		switch {
		case world == own:
			s.Name = Cay
		case world == jsPostgres && missing == "":
			s.Skip = b.missingPostgres(line)
		}
		s.Open = func(ctx context.Context, _ int) (*Session, error) {
			stage, err := b.enter(ctx, line)
			if err != nil {
				return nil, err
			}
			next := 0
			return &Session{Sample: func(ctx context.Context) ([]float64, error) {
				outcomes, err := round(stage, ctx, next)
				if err != nil {
					return nil, err
				}
				next++
				if err := outcomes[world].err; err != nil {
					return nil, err
				}
				return values(outcomes[world], outcomes[jsLocal]), nil
			}}, nil
		}
		all = append(all, s)
	}
	return all
}

// missing says why a line cannot be measured; empty if it can.
func (b *jsBench) missing(line jsLine) string {
	if _, err := exec.LookPath("node"); err != nil {
		return "needs node"
	}
	if _, err := os.Stat(filepath.Join(b.installed(line), "workflow", "package.json")); err != nil {
		return fmt.Sprintf("the Workflow SDK is not in %s (make conformance-workflow-deps)", filepath.Join(b.o.SDK, string(line)))
	}
	return ""
}

// missingPostgres says why the vendor's World on PostgreSQL cannot be measured.
func (b *jsBench) missingPostgres(line jsLine) string {
	if line == jsV5 {
		// Its newest version, beta.29, needs a version of @workflow/errors that does not exist.
		return "the World for line 5 that npm installs, 5.0.0-beta.27, has version 5 of the protocol, and the SDK wants version 6 or 7"
	}
	if _, err := os.Stat(filepath.Join(b.o.Postgres, "node_modules", "@workflow", "world-postgres")); err != nil {
		return fmt.Sprintf("@workflow/world-postgres is not in %s (make bench-workflow-js-deps)", b.o.Postgres)
	}
	if _, err := postgresBinaries(); err != nil {
		return err.Error()
	}
	return ""
}

// installed is the directory of a line's packages.
func (b *jsBench) installed(line jsLine) string {
	return filepath.Join(b.o.SDK, string(line), "node_modules")
}

// enter returns the apps of a line, which it starts unless they run. It ends those of
// another line.
func (b *jsBench) enter(ctx context.Context, line jsLine) (*jsStage, error) {
	if b.current != nil && b.current.line == line {
		return b.current, nil
	}
	if err := b.leave(); err != nil {
		return nil, err
	}
	s, err := b.open(ctx, line)
	if err != nil {
		return nil, err
	}
	b.current = s
	return s, nil
}

// leave ends the apps that run.
func (b *jsBench) leave() error {
	if b.current == nil {
		return nil
	}
	s := b.current
	b.current = nil
	return s.close()
}

// jsMeasure takes the n-th round of a kind, or returns it if it was taken before.
type jsMeasure func(s *jsStage, ctx context.Context, n int) (map[string]jsOutcome, error)

// jsOutcome is the measurement of a World in a round.
type jsOutcome struct {
	world   string
	steps   jsSteps
	latency []float64 // of each value of a stream, in milliseconds, sorted
	err     error     // the World cannot do it
}

// jsSteps says how the steps of a run went, in milliseconds for each step.
type jsSteps struct {
	step, cpu, server float64 // server is the CPU of the daemon or of PostgreSQL
	growth            float64
}

func (s *jsStage) stepRound(ctx context.Context, n int) (map[string]jsOutcome, error) {
	return s.round(ctx, &s.stepRounds, n, func(ctx context.Context, a *jsApp) jsOutcome {
		steps, err := a.runSteps(ctx, s.steps)
		return jsOutcome{steps: steps, err: err}
	})
}

func (s *jsStage) streamRound(ctx context.Context, n int) (map[string]jsOutcome, error) {
	return s.round(ctx, &s.streamRounds, n, func(ctx context.Context, a *jsApp) jsOutcome {
		latency, err := a.runStream(ctx, s.values)
		return jsOutcome{latency: latency, err: err}
	})
}

// round lets each app do the same, one after the other, beginning with the n-th.
func (s *jsStage) round(ctx context.Context, taken *[]map[string]jsOutcome, n int, measure func(context.Context, *jsApp) jsOutcome) (map[string]jsOutcome, error) {
	if n < len(*taken) {
		return (*taken)[n], nil
	}
	outcomes := map[string]jsOutcome{}
	for i := range s.apps {
		a := s.apps[(i+n)%len(s.apps)]
		o := jsOutcome{err: a.broken}
		if o.err == nil {
			o = measure(ctx, a)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		o.world = a.world
		outcomes[a.world] = o
	}
	*taken = append(*taken, outcomes)
	return outcomes, nil
}

// runSteps runs a workflow of n steps. Rate and CPU are those between the first step and
// the last one.
func (a *jsApp) runSteps(ctx context.Context, n int) (jsSteps, error) {
	before, err := a.serverCPU()
	if err != nil {
		return jsSteps{}, err
	}
	var marks struct{ At, CPU []float64 }
	if err := a.get(ctx, fmt.Sprintf("/steps?n=%d", n), &marks); err != nil {
		return jsSteps{}, err
	}
	after, err := a.serverCPU()
	if err != nil {
		return jsSteps{}, err
	}
	s, err := stepsOf(marks.At, marks.CPU)
	if err == nil && len(marks.At) < n {
		err = fmt.Errorf("%d of %d steps ran", len(marks.At), n)
	}
	s.server = (after - before) * 1000 / float64(n)
	return s, err
}

// stepsOf computes the times of a step from the times at which steps ran, and from the
// CPU that the app had used until then.
func stepsOf(at, cpu []float64) (jsSteps, error) {
	last := len(at) - 1
	if last < 5 || len(cpu) != len(at) {
		return jsSteps{}, errors.New("too few steps ran")
	}
	fifth := last / 5
	first, end := at[fifth]-at[0], at[last]-at[last-fifth]
	return jsSteps{step: (at[last] - at[0]) / float64(last), cpu: (cpu[last] - cpu[0]) / float64(last), growth: end / first}, nil
}

// runStream runs a workflow that writes n values, and reads them.
func (a *jsApp) runStream(ctx context.Context, n int) ([]float64, error) {
	var got struct{ Latency []float64 }
	if err := a.get(ctx, fmt.Sprintf("/stream?n=%d&pause=%d", n, jsPause), &got); err != nil {
		return nil, err
	}
	if len(got.Latency) != n {
		return nil, fmt.Errorf("%d of %d values were read", len(got.Latency), n)
	}
	slices.Sort(got.Latency)
	return got.Latency, nil
}
