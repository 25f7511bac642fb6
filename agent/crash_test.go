package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/workflowtest"
)

// world is an environment in which an agent is cut off at random points: parts of
// answers, executions of tools, writes to streams and commits to the log.
type world struct {
	workflow.Backend
	random *rand.Rand // the script's
	turns  [][][3]string

	mu      sync.Mutex
	point   int
	crashes []int // points, ascending
	done    map[string]int
	crash   chan struct{}
}

// passes passes a point, and reports whether the worker is to crash there.
func (w *world) passes() (crashes bool, point int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.point++
	crashes = len(w.crashes) > 0 && w.point >= w.crashes[0]
	if crashes {
		w.crashes = w.crashes[1:]
	}
	return crashes, w.point
}

// here is a point. Where the worker is to crash it returns when it does, with an
// error.
func (w *world) here(ctx context.Context) error {
	if crashes, _ := w.passes(); !crashes {
		return nil
	}
	select {
	case w.crash <- struct{}{}:
	case <-ctx.Done(): // another step crashes it just now
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (w *world) did(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done[what]++
}

// Attach connects a worker that dies at some of its commits.
func (w *world) Attach(ctx context.Context, info workflow.WorkerInfo, r workflow.Runner) (workflow.Session, error) {
	session, err := w.Backend.Attach(ctx, info, r)
	if err != nil {
		return nil, err
	}
	return &mortal{Session: session, world: w, closed: make(chan struct{})}, nil
}

// mortal is a session whose worker dies at a commit, either before the commit or
// before it learns of it. From then on the session does nothing.
type mortal struct {
	workflow.Session
	world  *world
	once   sync.Once
	closed chan struct{}

	mu   sync.Mutex // guards what follows
	dead bool
}

// commit executes a commit, unless the worker is dead or dies.
func (m *mortal) commit(send func(done func(error)), done func(error)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return
	}
	crashes, point := m.world.passes()
	switch {
	case !crashes:
		send(done)
		return
	case point%2 == 0:
		send(nil) // the sender gets no confirmation
	}
	m.dead = true
	go func() {
		select {
		case m.world.crash <- struct{}{}:
		case <-m.closed:
		}
	}()
}

func (m *mortal) Append(run string, lease uint64, events []workflow.Event, done func(error)) {
	m.commit(func(done func(error)) { m.Session.Append(run, lease, events, done) }, done)
}

func (m *mortal) WriteStream(run string, lease uint64, stream string, chunks [][]byte, closeIt bool, done func(error)) {
	m.commit(func(done func(error)) { m.Session.WriteStream(run, lease, stream, chunks, closeIt, done) }, done)
}

func (m *mortal) Close() error {
	m.once.Do(func() { close(m.closed) })
	return m.Session.Close()
}

// Stream implements agent.Models: it gives an answer for each turn. The answer's
// words differ at each attempt, except for the end.
func (w *world) Stream(ctx context.Context, c *agent.ModelCall, emit func(*agent.StreamPart) error) error {
	turn := 0
	for _, m := range c.Prompt {
		if m.Role == agent.Assistant {
			turn++
		}
	}
	who := fmt.Sprint(c.Model, " ", c.Prompt[0].Text(), " ", turn)
	w.mu.Lock()
	asked := w.done["begun "+who]
	w.done["begun "+who]++
	w.mu.Unlock()
	parts := says(fmt.Sprintf("These are the words of turn %d", turn))
	if c.Model == "sub" && turn == 0 {
		parts = wants([3]string{"inner", "step", `{"city":"` + c.Prompt[0].Text() + `"}`})
	}
	if c.Model == "m" && turn < len(w.turns) {
		calls := wants(w.turns[turn]...)
		parts = append(parts[:len(parts)-1], calls[1:]...)
	}
	for i := range parts {
		if err := w.here(ctx); err != nil {
			return err
		}
		if i == 3 && asked > 0 && parts[1].Type == agent.StreamTextStart { // a model does not say the same twice
			if err := emit(&agent.StreamPart{Type: agent.StreamTextDelta, ID: "0", Delta: ""}); err != nil {
				return err
			}
		}
		if err := emit(&parts[i]); err != nil {
			return err
		}
	}
	w.did("answered " + who)
	return nil
}

func (w *world) agent() *workflow.Definition[agent.Call, *agent.Result] {
	step := agent.NewTool("step", "", func(ctx context.Context, in city) (string, error) {
		if err := w.here(ctx); err != nil {
			return "", err
		}
		w.did("step " + agent.CallOf(ctx).ID)
		return "done in " + in.City, nil
	})
	fails := agent.NewTool("fails", "", func(ctx context.Context, in city) (string, error) {
		if err := w.here(ctx); err != nil {
			return "", err
		}
		return "", workflow.Fatal(errors.New("not in " + in.City))
	})
	code := agent.NewWorkflowTool("code", "", func(ctx workflow.Context, in city) (string, error) {
		for i := range 2 {
			if _, err := workflow.Do(ctx, "part", func(ctx context.Context) (int, error) {
				if err := w.here(ctx); err != nil {
					return 0, err
				}
				w.did(fmt.Sprint("part ", i, " ", in.City))
				return i, nil
			}); err != nil {
				return "", err
			}
		}
		return "both in " + in.City, nil
	})
	flaky := agent.NewTool("flaky", "", func(ctx context.Context, in city) (string, error) {
		if err := w.here(ctx); err != nil {
			return "", err
		}
		if workflow.StepInfo(ctx).Attempt == 1 {
			return "", workflow.Retryable(errors.New("not yet"), time.Millisecond)
		}
		return "at last in " + in.City, nil
	})
	ask := agent.NewTool("ask", "", func(ctx context.Context, in city) (string, error) {
		if err := w.here(ctx); err != nil {
			return "", err
		}
		w.did("asked " + agent.CallOf(ctx).ID)
		return "allowed in " + in.City, nil
	}, agent.NeedsApproval())
	sub := agent.New(agent.Config{Name: "sub", Model: "sub", Tools: []agent.Tool{step}})
	return agent.New(agent.Config{
		Name: "crashing", Model: "m", MaxSteps: -1, Tools: []agent.Tool{step, fails, code, flaky, ask, sub.AsTool("sub", "")},
	}).Workflow()
}

// run runs the agent, with a worker that crashes, to its end.
func (w *world) run(t *testing.T) (*agent.Result, []agent.Chunk) {
	t.Helper()
	d := w.agent()
	k := workflowtest.New(t, workflowtest.Options{}, workflow.Define("another", func(workflow.Context, int) (int, error) { return 0, nil }))
	defer k.Close()
	w.Backend = k.Client.Backend()
	client := workflow.NewClient(w, workflow.ClientOptions{})
	run, err := d.Start(t.Context(), client, agent.Call{Prompt: "go", MessageID: "m"})
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	defer func() { <-answered }()
	go func() {
		defer close(answered)
		w.approve(t, k.Client, run.ID)
	}()
	ended := make(chan error, 1)
	var r *agent.Result
	go func() {
		var err error
		r, err = run.Result(t.Context())
		ended <- err
	}()
	for {
		worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: workflow.Definitions(d), StopTimeout: time.Millisecond, VerifyReplay: true})
		if err := worker.Start(agent.WithModels(context.Background(), w)); err != nil {
			t.Fatal(err)
		}
		select {
		case <-w.crash:
			worker.Stop()
		case err := <-ended:
			worker.Stop()
			if err != nil {
				t.Fatal(err)
			}
			info, err := run.Info(t.Context())
			if err != nil || info.Attributes[agent.AttributeTokens] != fmt.Sprint(r.Usage.Input+r.Usage.Output) || info.Attributes[agent.AttributeCost] != r.Usage.Cost.String() {
				t.Errorf("the run has %v, %v, and used %+v", info.Attributes, err, r.Usage)
			}
			return r, chunks(t, k.Client, run.ID)
		}
	}
}

// approve answers a run's questions at once: calls of even cities are approved.
func (w *world) approve(t *testing.T, c *workflow.Client, run string) {
	for e, err := range c.Follow(t.Context(), run, 1) {
		if err != nil {
			t.Error(err)
			return
		}
		var q agent.ApprovalQuestion
		if e.Type.String() != "hook_created" {
			continue
		}
		if err := c.Value(e.Payload, &q); err != nil {
			t.Error(err)
			return
		}
		if err := agent.Approve(t.Context(), c, e.Token, agent.Approval{Approved: len(q.CallID)%2 == 0, Reason: "odd"}); err != nil {
			t.Error(err)
		}
	}
}

func newWorld(seed uint64, crashes int) *world {
	w := &world{random: rand.New(rand.NewPCG(seed, 1)), done: make(map[string]int), crash: make(chan struct{})}
	tools := []string{"step", "fails", "code", "moon", "flaky", "ask", "sub"}
	for turn := range 1 + w.random.IntN(3) {
		var calls [][3]string
		for i := range 1 + w.random.IntN(3) {
			call := [3]string{fmt.Sprintf("c%d-%d%.*s", turn, i, w.random.IntN(2), "x"), tools[w.random.IntN(len(tools))], fmt.Sprintf(`{"city":"%d-%d"}`, turn, i)}
			if call[1] == "sub" {
				call[2] = fmt.Sprintf(`{"prompt":"%d-%d"}`, turn, i)
			}
			calls = append(calls, call)
		}
		w.turns = append(w.turns, calls)
	}
	for range crashes {
		w.crashes = append(w.crashes, 1+w.random.IntN(250))
	}
	slices.Sort(w.crashes)
	return w
}

// view returns the final view of a reader that knows the rule of the stream: the
// texts, in order, and the last output of each call.
func view(t *testing.T, r *agent.Result, stream []agent.Chunk) string {
	t.Helper()
	var b strings.Builder
	outputs := make(map[string]string)
	steps := make(map[string]bool)
	count := make(map[agent.ChunkType]int)
	all := undisturbed(stream)
	for _, c := range all {
		count[c.Type]++
		switch {
		case c.Preliminary:
			if outputs[c.ToolCallID] != "" {
				t.Errorf("a preliminary output of %s comes after the last", c.ToolCallID)
			}
		case c.Type == agent.ChunkApprovalRequest:
			outputs["asked "+c.ToolCallID] = c.ApprovalID
		case strings.HasPrefix(string(c.Type), "tool-output") || c.Type == agent.ChunkToolInputError:
			raw, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			outputs[c.ToolCallID] = string(raw)
		case c.Type == agent.ChunkTextDelta:
			b.WriteString(*c.Delta)
		default:
			fmt.Fprintf(&b, "\n%s %s %s %s", c.Type, c.ID, c.ToolCallID, c.Input)
		}
	}
	for _, c := range stream {
		if c.Type == agent.ChunkStartStep {
			steps[c.Step] = true
		}
	}
	if count[agent.ChunkStart] != 1 || count[agent.ChunkFinish] != 1 || all[0].Type != agent.ChunkStart || all[len(all)-1].Type != agent.ChunkFinish ||
		len(steps) != len(r.Steps) || count[agent.ChunkStartStep] != len(steps) || count[agent.ChunkFinishStep] != len(steps) {
		t.Errorf("the stream has %v, and %d steps:\n%s", count, len(steps), lines(stream))
	}
	for _, id := range slices.Sorted(func(yield func(string) bool) {
		for id := range outputs {
			if !yield(id) {
				return
			}
		}
	}) {
		fmt.Fprintf(&b, "\n%s: %s", id, outputs[id])
	}
	return b.String()
}

// However often and wherever an agent is cut off, it does the same as without
// interruptions, readers see the same, and no recorded step is repeated.
func TestAgent_Crashes(t *testing.T) {
	t.Parallel()
	seeds := 25
	if testing.Short() {
		seeds = 5
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			smooth, rough := newWorld(seed, 0), newWorld(seed, 6)
			crashes := len(rough.crashes)
			want, wantStream := smooth.run(t)
			got, gotStream := rough.run(t)
			crashes -= len(rough.crashes)
			if a, b := transcript(want.Messages), transcript(got.Messages); a != b {
				t.Errorf("the conversation is\n%swant\n%s", b, a)
			}
			if want.Usage != got.Usage || len(want.Steps) != len(got.Steps) {
				t.Errorf("used %+v in %d steps, want %+v in %d", got.Usage, len(got.Steps), want.Usage, len(want.Steps))
			}
			if a, b := view(t, want, wantStream), view(t, got, gotStream); a != b {
				t.Errorf("readers have\n%s\nwant\n%s", b, a)
			}
			// A crash cuts off one answer, or the calls of one answer.
			for what, n := range rough.done {
				if strings.HasPrefix(what, "answered") && n > 1+crashes {
					t.Errorf("%s: %d times, with %d crashes", what, n, crashes)
				}
			}
			extra, beside := 0, 1
			for _, calls := range rough.turns {
				beside = max(beside, len(calls))
			}
			for what, n := range rough.done {
				if strings.HasPrefix(what, "begun") {
					extra += n - 1
				}
			}
			if extra > crashes*beside {
				t.Errorf("models were asked %d times more than needed, with %d crashes", extra, crashes)
			}
			for what := range smooth.done {
				if rough.done[what] == 0 {
					t.Errorf("%s: never", what)
				}
			}
		})
	}
}
