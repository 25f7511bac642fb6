package agent_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/sqlite"
)

// start opens a database and executes workflows, until stop is called. Programs leave
// WithModels out, and call models through the gateway.
func start(models agent.Models, definitions ...workflow.Workflow) (client *workflow.Client, stop func()) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		log.Fatal(err)
	}
	client, err = sqlite.Open(ctx, filepath.Join(dir, "runs.db"), sqlite.Options{})
	if err != nil {
		log.Fatal(err)
	}
	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: definitions})
	if err := worker.Start(agent.WithModels(ctx, models)); err != nil {
		log.Fatal(err)
	}
	return client, func() {
		worker.Stop()
		_ = client.Close()
		_ = os.RemoveAll(dir)
	}
}

func Example() {
	type city struct {
		City string `json:"city" jsonschema:"in English"`
	}
	weather := agent.NewTool("weather", "The weather of a city now.", func(_ context.Context, in city) (string, error) {
		return "It rains in " + in.City + ".", nil
	})
	assistant := agent.New(agent.Config{
		Name:         "assistant",
		Model:        "anthropic/claude-sonnet-4.5",
		Instructions: "Answer in one sentence.",
		Tools:        []agent.Tool{weather},
	})
	definition := assistant.Workflow()

	models := script( // the script of a fake model
		wants([3]string{"1", "weather", `{"city": "Oslo"}`}),
		says("Take an umbrella."),
	)
	client, stop := start(models, definition)
	defer stop()
	run, err := definition.Start(context.Background(), client, agent.Call{Prompt: "Shall I take an umbrella to Oslo?"})
	if err != nil {
		log.Fatal(err)
	}
	result, err := run.Result(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Text)
	for _, r := range result.Steps[0].ToolResults {
		fmt.Printf("%s said: %s\n", r.Name, r.Output.Text)
	}
	// Output:
	// Take an umbrella.
	// weather said: It rains in Oslo.
}

// Readers get the model's text as the model writes it.
func ExampleAgent_Stream() {
	poet := agent.New(agent.Config{Name: "poet", Model: "openai/gpt-5"})
	poem := workflow.Define("poem", func(ctx workflow.Context, about string) (string, error) {
		r, err := poet.Stream(ctx, agent.Call{Prompt: "A line about " + about})
		if err != nil {
			return "", err
		}
		return r.Text, nil
	})
	client, stop := start(script(says("The sea is a desk.")), poem)
	defer stop()
	run, err := poem.Start(context.Background(), client, "the sea")
	if err != nil {
		log.Fatal(err)
	}
	for item, err := range workflow.ReadStream[agent.Chunk](context.Background(), client, run.ID, agent.StreamName, 0) {
		if err != nil {
			log.Fatal(err)
		}
		if item.Value.Type == agent.ChunkTextDelta {
			fmt.Printf("%s|", *item.Value.Delta)
		}
	}
	// Output: The |sea |is |a |desk.|
}

// A person decides whether a tool is called.
func ExampleApprove() {
	type file struct{ Name string }
	remove := agent.NewTool("remove", "Remove a file.", func(_ context.Context, f file) (string, error) {
		return f.Name + " is gone", nil
	}, agent.NeedsApproval())
	cleaner := agent.New(agent.Config{Name: "cleaner", Model: "openai/gpt-5", Tools: []agent.Tool{remove}}).Workflow()

	client, stop := start(script(wants([3]string{"1", "remove", `{"Name": "old.txt"}`}), says("Done.")), cleaner)
	defer stop()
	ctx := context.Background()
	run, err := cleaner.Start(ctx, client, agent.Call{Prompt: "Clean up."})
	if err != nil {
		log.Fatal(err)
	}
	for item, err := range workflow.ReadStream[agent.Chunk](ctx, client, run.ID, agent.StreamName, 0) {
		if err != nil {
			log.Fatal(err)
		}
		if item.Value.Type != agent.ChunkApprovalRequest {
			continue
		}
		questions, err := agent.Questions(ctx, client, run.ID)
		if err != nil {
			log.Fatal(err)
		}
		for _, q := range questions {
			fmt.Printf("%s %s?\n", q.Tool, q.Input)
			if err := agent.Approve(ctx, client, q.Token, agent.Approval{Approved: true, By: "ada"}); err != nil {
				log.Fatal(err)
			}
		}
	}
	result, err := run.Result(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Steps[0].ToolResults[0].Output.Text)
	// Output:
	// remove {"Name":"old.txt"}?
	// old.txt is gone
}

// The answer of an agent can be a value.
func ExampleOutputOf() {
	type person struct {
		Name string `json:"name"`
		Born int    `json:"born"`
	}
	reader := agent.New(agent.Config{Name: "reader", Model: "openai/gpt-5", Output: agent.OutputOf[person]()}).Workflow()
	client, stop := start(script(says(`{"name": "Ada Lovelace", "born": 1815}`)), reader)
	defer stop()
	run, err := reader.Start(context.Background(), client, agent.Call{Prompt: "Who wrote the first program?"})
	if err != nil {
		log.Fatal(err)
	}
	result, err := run.Result(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(agent.Decode[person](result))
	// Output: {Ada Lovelace 1815} <nil>
}
