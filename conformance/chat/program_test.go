package chat_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/agent/chat"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/sqlite"
)

const secretEnv = "CHAT_APPROVALS"

// deleted are the files that were deleted.
var deleted struct {
	sync.Mutex
	names []string
}

type fileInput struct {
	Name string `json:"name"`
}

var assistant = agent.New(agent.Config{
	Name:  "assistant",
	Model: "test/actor",
	Tools: []agent.Tool{
		agent.NewTool("weather", "The weather of a city.", func(_ context.Context, in struct {
			City string `json:"city"`
		}) (map[string]any, error) {
			return map[string]any{"celsius": -3, "city": in.City}, nil
		}),
		agent.NewTool("delete_file", "Deletes a file.", func(_ context.Context, in fileInput) (string, error) {
			deleted.Lock()
			defer deleted.Unlock()
			deleted.names = append(deleted.names, in.Name)
			return "deleted " + in.Name, nil
		}, agent.NeedsApproval()),
	},
	Approvals: agent.Approvals{Mode: agent.ApproveByMessage, SecretEnv: secretEnv},
})

// program serves the page until it is killed.
func program() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve() error {
	db := flag.String("db", "", "database")
	address := flag.String("listen", "127.0.0.1:0", "address")
	page := flag.String("page", "", "directory of the page")
	gateway := flag.String("gateway", "", "address of a gateway to ask instead of the actor")
	model := flag.String("model", "", "model to ask there")
	daemon := flag.String("daemon", "", "address of a daemon that has the runs, instead of a database")
	flag.Parse()

	ctx := context.Background()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	client, err := sqlite.Open(ctx, *db, sqlite.Options{})
	if *daemon != "" {
		client, err = workflow.Connect(workflow.RemoteOptions{URL: *daemon, Token: os.Getenv("DAEMON_TOKEN")})
	}
	if err != nil {
		return err
	}
	answer := assistant.Workflow()
	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: workflow.Definitions(answer), Logger: log})
	var models agent.Models = actor{}
	if *gateway != "" {
		models = &agent.Gateway{URL: *gateway, Key: os.Getenv("GATEWAY_KEY")}
	}
	if err := worker.Start(agent.WithModels(ctx, models)); err != nil {
		return err
	}
	mux := http.NewServeMux()
	for version, reset := range map[string]bool{"/v5": false, "/v6": false, "/v7": true} {
		h := chat.Handler(client, answer, chat.Options{Prefix: version + "/chat", ResetStep: reset, Name: version, Logger: log,
			Prepare: func(_ *http.Request, q *chat.Request) error {
				q.Call.Model = *model
				return nil
			}})
		mux.Handle(version+"/", h)
	}
	mux.Handle("/", http.FileServer(http.Dir(*page)))
	mux.HandleFunc("/deleted", func(w http.ResponseWriter, _ *http.Request) {
		deleted.Lock()
		defer deleted.Unlock()
		_ = json.NewEncoder(w).Encode(deleted.names) // for a test, which sees it
	})
	mux.HandleFunc("/speaking", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, speaking.Load()) })
	mux.HandleFunc("/asked", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, asked.Load()) })
	conns := &connections{open: make(map[net.Conn]bool)}
	mux.HandleFunc("/cut", func(http.ResponseWriter, *http.Request) { conns.cut() })
	ln, err := net.Listen("tcp", *address)
	if err != nil {
		return err
	}
	fmt.Printf("listening %s\n", ln.Addr())
	srv := &http.Server{Handler: mux, ConnState: conns.note}
	return srv.Serve(ln)
}

// connections can be cut.
type connections struct {
	sync.Mutex
	open map[net.Conn]bool
}

func (c *connections) note(conn net.Conn, state http.ConnState) {
	c.Lock()
	defer c.Unlock()
	if state == http.StateClosed || state == http.StateHijacked {
		delete(c.open, conn)
	} else {
		c.open[conn] = true
	}
}

func (c *connections) cut() {
	c.Lock()
	defer c.Unlock()
	for conn := range c.open {
		conn.Close()
	}
}

// actor is a model that plays the script in the user's message.
type actor struct{}

// pace is how long the actor takes for a word.
const pace = 25 * time.Millisecond

// speaking counts the calls of it in progress, and asked all calls.
var speaking, asked atomic.Int64

func (actor) Stream(ctx context.Context, call *agent.ModelCall, emit func(*agent.StreamPart) error) error {
	asked.Add(1)
	speaking.Add(1)
	defer speaking.Add(-1)
	told, last := "", &call.Prompt[len(call.Prompt)-1]
	for i := range call.Prompt {
		if m := &call.Prompt[i]; m.Role == agent.User {
			told = m.Parts[len(m.Parts)-1].Text // files come before the text
		}
	}
	s := &speaker{ctx, emit}
	verb, rest, _ := strings.Cut(told, " ")
	var result *agent.Output
	if last.Role == agent.FromTool {
		result = last.Parts[len(last.Parts)-1].Output
	}
	switch {
	case verb == "count":
		n, err := strconv.Atoi(strings.TrimPrefix(rest, "to "))
		if err != nil {
			return err
		}
		return s.say(numbers(n), true)
	case verb == "vary": // says something else in each process
		return s.say(strings.ReplaceAll(numbers(400), " ", "-"+strconv.Itoa(os.Getpid())+" "), true)
	case verb == "new":
		return s.say("This is answer "+strconv.FormatInt(asked.Load(), 10)+".", true)
	case verb == "file":
		for _, p := range last.Parts {
			if p.Type == agent.FilePart {
				return s.say(fmt.Sprintf("I see %s, %s: %s", p.File.Name, p.File.MediaType, p.File.Data), true)
			}
		}
		return s.say("I see no file.", true)
	case verb == "weather" && result == nil:
		return s.call("call_1", "weather", `{"city":"`+rest+`"}`)
	case verb == "weather":
		return s.say("It is "+string(result.JSON), true)
	case verb == "delete" && result == nil:
		return s.call("call_"+rest, "delete_file", `{"name":"`+rest+`"}`)
	case verb == "delete" && result.Type == agent.OutputDenied:
		return s.say("I have kept it. "+result.Text, true)
	case told == "delete slow.txt":
		return s.say(numbers(60), true)
	case verb == "delete":
		return s.say("Done: "+result.Text, true)
	case verb == "break" && workflow.StepInfo(ctx).Attempt == 1:
		if err := s.say("This will never be", false); err != nil {
			return err
		}
		return cay.Errorf(cay.Unavailable, "the model broke off")
	case verb == "break":
		return s.say("This is the whole answer.", true)
	}
	return cay.Errorf(cay.Invalid, "a detail that is nobody's business")
}

// numbers returns the numbers from 1 to n.
func numbers(n int) string {
	words := make([]string, n)
	for i := range words {
		words[i] = strconv.Itoa(i + 1)
	}
	return strings.Join(words, " ")
}

type speaker struct {
	ctx  context.Context
	emit func(*agent.StreamPart) error
}

func (s *speaker) all(parts ...agent.StreamPart) error {
	for i := range parts {
		if err := s.emit(&parts[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *speaker) say(text string, end bool) error {
	if err := s.all(agent.StreamPart{Type: agent.StreamTextStart, ID: "0"}); err != nil {
		return err
	}
	for i, word := range strings.SplitAfter(text, " ") {
		if i > 0 {
			select {
			case <-time.After(pace):
			case <-s.ctx.Done():
				return context.Cause(s.ctx)
			}
		}
		if err := s.all(agent.StreamPart{Type: agent.StreamTextDelta, ID: "0", Delta: word}); err != nil {
			return err
		}
	}
	if !end {
		return nil
	}
	return s.all(agent.StreamPart{Type: agent.StreamTextEnd, ID: "0"}, agent.StreamPart{Type: agent.StreamFinish, Reason: agent.FinishStop})
}

func (s *speaker) call(id, tool, input string) error {
	return s.all(
		agent.StreamPart{Type: agent.StreamToolInputStart, ID: id, ToolName: tool},
		agent.StreamPart{Type: agent.StreamToolInputDelta, ID: id, Delta: input[:4]},
		agent.StreamPart{Type: agent.StreamToolInputDelta, ID: id, Delta: input[4:]},
		agent.StreamPart{Type: agent.StreamToolInputEnd, ID: id},
		agent.StreamPart{Type: agent.StreamToolCall, ID: id, ToolName: tool, Input: input},
		agent.StreamPart{Type: agent.StreamFinish, Reason: agent.FinishToolCalls},
	)
}
