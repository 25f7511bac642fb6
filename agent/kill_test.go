package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/examples/workflow/crashtest"
	"github.com/cayhq/cay/examples/workflow/database"
	"github.com/cayhq/cay/workflow"
)

func TestMain(m *testing.M) { os.Exit(crashtest.Main(m, program)) }

// program is an agent in a process of its own. Its arguments are its database and the
// address of the services that it uses. It prints how the agent's Call ended.
func program() {
	if err := assist(context.Background(), os.Args[1], os.Args[2], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// assistant books things at a service.
func assistant(service string) *workflow.Definition[agent.Call, *agent.Result] {
	book := agent.NewTool("book", "Book something.", func(ctx context.Context, in struct{ What string }) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, service+"/book?what="+in.What+"&call="+agent.CallOf(ctx).ID, nil)
		if err != nil {
			return "", err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	})
	return agent.New(agent.Config{Name: "assistant", Model: "m", Tools: []agent.Tool{book}}).Workflow()
}

func assist(ctx context.Context, db, service string, out io.Writer) (err error) {
	client, err := database.Open(ctx, db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	d := assistant(service)
	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: workflow.Definitions(d)})
	if err := worker.Start(agent.WithModels(ctx, &agent.Gateway{URL: service, Key: "key"})); err != nil {
		return err
	}
	defer worker.Stop()
	run, err := d.Start(ctx, client, agent.Call{Prompt: "Book a room and a table.", MessageID: "m"}, workflow.Key("only"))
	if err != nil {
		return err
	}
	r, err := run.Result(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s %s\n", run.ID, r.Text)
	return nil
}

// service plays the gateway and the bookings. It counts its requests, and at one
// place it holds the first client until that client is gone.
type service struct {
	hold string
	held chan struct{}

	mu    sync.Mutex
	count map[string]int
}

// at counts, and reports whether the caller is to be held.
func (s *service) at(place string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count[place]++
	return place == s.hold && s.count[place] == 1
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // who asked was killed
	}
	if r.URL.Path == "/book" {
		what := r.URL.Query().Get("what")
		if s.at("book " + what) {
			close(s.held)
			<-r.Context().Done()
			return
		}
		fmt.Fprintf(w, "%s is booked by call %s", what, r.URL.Query().Get("call"))
		return
	}
	turn := strings.Count(string(body), `"role":"assistant"`)
	held := s.at(fmt.Sprint("turn ", turn))
	w.Header().Set("Content-Type", "text/event-stream")
	for i, part := range answers[turn] {
		fmt.Fprintf(w, "data: %s\n\n", part)
		w.(http.Flusher).Flush()
		if held && i == 2 {
			close(s.held)
			<-r.Context().Done()
			return
		}
	}
}

const ending = `"usage":{"inputTokens":{"total":1},"outputTokens":{"total":1}},"providerMetadata":{"gateway":{"cost":"0.001"}}}`

var answers = [][]string{
	{
		`{"type":"text-start","id":"0"}`, `{"type":"text-delta","id":"0","delta":"I book "}`, `{"type":"text-delta","id":"0","delta":"both."}`, `{"type":"text-end","id":"0"}`,
		`{"type":"tool-call","toolCallId":"a","toolName":"book","input":"{\"What\":\"room\"}"}`,
		`{"type":"tool-call","toolCallId":"b","toolName":"book","input":"{\"What\":\"table\"}"}`,
		`{"type":"finish","finishReason":{"unified":"tool-calls"},` + ending,
	},
	{
		`{"type":"text-start","id":"0"}`, `{"type":"text-delta","id":"0","delta":"And "}`, `{"type":"text-delta","id":"0","delta":"a taxi."}`, `{"type":"text-end","id":"0"}`,
		`{"type":"tool-call","toolCallId":"a","toolName":"book","input":"{\"What\":\"taxi\"}"}`,
		`{"type":"finish","finishReason":{"unified":"tool-calls"},` + ending,
	},
	{
		`{"type":"text-start","id":"0"}`, `{"type":"text-delta","id":"0","delta":"All is "}`, `{"type":"text-delta","id":"0","delta":"booked."}`, `{"type":"text-end","id":"0"}`,
		`{"type":"finish","finishReason":{"unified":"stop"},` + ending,
	},
}

// The process is killed with SIGKILL in the middle of each operation. Completed
// operations are not repeated, so each answer is charged once, and each call books
// once.
func TestAgent_Killed(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"turn 0", "book room", "book table", "turn 1", "book taxi", "turn 2"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			crashtest.Databases(t, func(t *testing.T, db string) { testKilled(t, db, place) })
		})
	}
}

func testKilled(t *testing.T, db, place string) {
	s := &service{hold: place, held: make(chan struct{}), count: make(map[string]int)}
	server := httptest.NewServer(s)
	defer server.Close()
	p := crashtest.Start(t, db, server.URL)
	<-s.held
	p.Kill()
	id, text, _ := strings.Cut(strings.TrimSpace(crashtest.Start(t, db, server.URL).Wait()), " ")
	if text != "All is booked." {
		t.Errorf("it says %q", text)
	}
	s.mu.Lock()
	for _, at := range []string{"turn 0", "book room", "book table", "turn 1", "book taxi", "turn 2"} {
		want := 1
		if at == place {
			want = 2
		}
		// The bookings of one answer run at the same time: both may be cut off.
		both := strings.HasPrefix(place, "book ") && place != "book taxi" && (at == "book room" || at == "book table")
		if n := s.count[at]; n != want && !(both && n == 2) {
			t.Errorf("%s: %d times, want %d", at, n, want)
		}
	}
	s.mu.Unlock()

	client, err := database.Open(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	r, err := workflow.GetRun[*agent.Result](client, id).Result(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Usage.Calls != 3 || r.Usage.Cost.String() != "0.003" {
		t.Errorf("used %+v", r.Usage)
	}
	want := "start.I book both.a:\"room is booked by call a\"b:\"table is booked by call b\"And a taxi.a_1:\"taxi is booked by call a_1\"All is booked.finish"
	if got := shown(undisturbed(chunks(t, client, id))); got != want && got != strings.Replace(want, `a:"room is booked by call a"b:"table is booked by call b"`, `b:"table is booked by call b"a:"room is booked by call a"`, 1) {
		t.Errorf("readers see %s\nwant %s", got, want)
	}
	history, err := client.History(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := workflow.Replay(history, workflow.ClientOptions{}, assistant(server.URL)); err != nil {
		t.Errorf("replay: %v", err)
	}
}

// shown returns the final state of a page, where each output of a call replaces the
// one before.
func shown(stream []agent.Chunk) string {
	var b strings.Builder
	seen := make(map[string]bool)
	for _, c := range stream {
		switch c.Type {
		case agent.ChunkStart:
			b.WriteString("start.")
		case agent.ChunkFinish:
			b.WriteString("finish")
		case agent.ChunkTextDelta:
			b.WriteString(*c.Delta)
		case agent.ChunkToolOutput:
			if line := c.ToolCallID + ":" + string(c.Output); !seen[line] {
				b.WriteString(line)
				seen[line] = true
			}
		}
	}
	return b.String()
}
