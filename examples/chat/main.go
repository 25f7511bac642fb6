// Chat is an agent with a page to talk to it. The page and the agent speak the AI SDK's
// protocol, so any page built with useChat can take its place. Kill the program in the
// middle of an answer, or reload the page: it goes on.
//
//	CAY_SCRIPT=examples/chat/script.yaml cay serve   # in another terminal
//	go run ./examples/chat
package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/agent/chat"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/sqlite"
)

//go:embed page.html
var page []byte

// City is the input of the tools.
type City struct {
	City string `json:"city" jsonschema:"its name in English"`
}

// Weather is the result of the weather tool.
type Weather struct {
	Celsius int    `json:"celsius"`
	Sky     string `json:"sky"`
}

var weather = agent.NewTool("weather", "The weather of a city now.", func(_ context.Context, in City) (Weather, error) {
	return Weather{Celsius: len(in.City) - 7, Sky: "clear"}, nil
})

var postcard = agent.NewTool("send_postcard", "Sends a postcard from a city.", func(_ context.Context, in City) (string, error) {
	return "A postcard from " + in.City + " is on its way.", nil
}, agent.NeedsApproval())

// secretEnv names the variable with the secret that questions for approval are signed
// with.
const secretEnv = "CHAT_SECRET"

// newAgent makes the agent; model may be any name that the gateway knows.
func newAgent(model string) *agent.Agent {
	return agent.New(agent.Config{
		Name:         "traveller",
		Model:        model,
		Instructions: "You help people who travel. Answer in one or two sentences.",
		Tools:        []agent.Tool{weather, postcard},
		Approvals:    agent.Approvals{Mode: agent.ApproveByMessage, SecretEnv: secretEnv},
	})
}

// routes serves the page, and the agent to it.
func routes(client *workflow.Client, answer *workflow.Definition[agent.Call, *agent.Result]) http.Handler {
	mux := http.NewServeMux()
	h := chat.Handler(client, answer, chat.Options{ResetStep: true}) // the page knows reset-step
	mux.Handle("/api/chat", h)
	mux.Handle("/api/chat/", h)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page) // the client may have left
	})
	return mux
}

func main() {
	db := flag.String("db", "chat.db", "file with the answers")
	listen := flag.String("listen", "127.0.0.1:8080", "address of the page")
	model := flag.String("model", "cay/scripted", "model to ask")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *db, *listen, *model); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, db, listen, model string) (err error) {
	if os.Getenv(secretEnv) == "" {
		fmt.Printf("%s is not set: approvals asked for before a restart will be refused\n", secretEnv)
		if err := os.Setenv(secretEnv, rand.Text()+rand.Text()); err != nil {
			return err
		}
	}
	client, err := sqlite.Open(ctx, db, sqlite.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	answer := newAgent(model).Workflow()
	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: workflow.Definitions(answer)})
	if err := worker.Start(ctx); err != nil {
		return err
	}
	defer worker.Stop()

	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Printf("open http://%s\n", ln.Addr())
	// Pages of other sites must not call the agent in its user's name.
	h := http.NewCrossOriginProtection().Handler(routes(client, answer))
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		srv.Close() // pages come back when the program does
	}()
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
