// Agent is the loop at the heart of an agent: it asks a model, calls the tool that
// the model wants, passes the result to the model, and so on, until the model is
// done. The model's text is streamed, word by word, to every reader. Kill the
// program in the middle of a word and start it again: the model is not asked again
// for answers that it has given, and the reader sees the text as if nothing had
// happened.
//
//	go run ./examples/workflow/agent
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/cayhq/cay/examples/workflow/database"
	"github.com/cayhq/cay/workflow"
)

// Task is the agent's task.
type Task struct {
	Goal  string
	Turns int           // how often the model wants something before it is content
	Slow  time.Duration // how long it takes to say a word
}

// Message is one entry of the conversation.
type Message struct{ From, Text string }

// Reply is the model's text, and the tool that it calls: "" if the model is done.
type Reply struct{ Text, Tool string }

// Word is an item of the stream: a part of an answer.
type Word struct {
	Turn int
	Text string
	// Begin marks the start of an answer. A reader that already has this answer,
	// or a part of it, must drop it: the step that asks the model is being
	// retried.
	Begin bool
}

// words is the name of the stream.
const words = "words"

var agent = workflow.Define("agent", func(ctx workflow.Context, task Task) (string, error) {
	conversation := []Message{{"user", task.Goal}}
	for turn := 1; ; turn++ {
		reply, err := think.Run(ctx, Prompt{task, turn, conversation})
		if err != nil {
			return "", err
		}
		conversation = append(conversation, Message{"model", reply.Text})
		if reply.Tool == "" {
			_, err := end.Run(ctx, words) // so that no reader waits for more
			return reply.Text, err
		}
		result, err := callTool.Run(ctx, reply.Tool)
		if err != nil {
			// The model may know a remedy.
			result = "error: " + err.Error()
		}
		conversation = append(conversation, Message{"tool", result})
	}
}, workflow.MaxEvents(100_000))

// Prompt is the input of the model.
type Prompt struct {
	Task         Task
	Turn         int
	Conversation []Message
}

// think asks the model in a single step, whose result is the whole answer.
var think = workflow.Step("think", func(ctx context.Context, p Prompt) (Reply, error) {
	stream := workflow.Stream[Word](ctx, words)
	if err := stream.Send(Word{Turn: p.Turn, Begin: true}); err != nil {
		return Reply{}, err
	}
	reply := model(p)
	for word := range strings.FieldsSeq(reply.Text) {
		select {
		case <-time.After(p.Task.Slow):
		case <-ctx.Done():
			return Reply{}, context.Cause(ctx)
		}
		if err := stream.Send(Word{Turn: p.Turn, Text: word}); err != nil {
			return Reply{}, err
		}
	}
	return reply, nil
}, workflow.Timeout(5*time.Minute))

// end closes a stream. It is a step of its own: a step that writes could not be
// retried after it has closed the stream.
var end = workflow.Step("end", func(ctx context.Context, stream string) (struct{}, error) {
	return struct{}{}, workflow.Stream[Word](ctx, stream).Close()
})

// callTool calls the tool that the model has chosen.
var callTool = workflow.Step("call-tool", func(_ context.Context, tool string) (string, error) {
	if tool == "lookup 2" {
		return "", workflow.Fatal(errors.New("there is nothing of that name"))
	}
	return "found what " + tool + " was for", nil
})

// model is the model of this example: it gives scripted answers.
func model(p Prompt) Reply {
	last := p.Conversation[len(p.Conversation)-1].Text
	if p.Turn > p.Task.Turns {
		return Reply{Text: fmt.Sprintf("After %d messages I know enough about %s.", len(p.Conversation), p.Task.Goal)}
	}
	return Reply{
		Text: fmt.Sprintf("I was told %q, and want to look up part %d of it.", last, p.Turn),
		Tool: fmt.Sprintf("lookup %d", p.Turn),
	}
}

func main() {
	db := flag.String("db", "agent.db", "database: a file, or postgres://...")
	task := Task{Goal: "cays"}
	flag.IntVar(&task.Turns, "turns", 10, "how often the model wants to look something up")
	flag.DurationVar(&task.Slow, "slow", 50*time.Millisecond, "how long the model takes for a word")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *db, task, os.Stdout); err != nil {
		stop()
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, db string, task Task, out io.Writer) (err error) {
	client, err := database.Open(ctx, db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	worker := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: workflow.Definitions(agent)})
	if err := worker.Start(ctx); err != nil {
		return err
	}
	defer worker.Stop()

	r, err := agent.Start(ctx, client, task, workflow.Key(task.Goal))
	if err != nil {
		return err
	}
	if err := show(ctx, client, r.ID, out); err != nil {
		return err
	}
	answer, err := r.Result(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "the answer: %s\n", answer)
	return nil
}

// show reads the stream from its beginning, and prints each answer when it is
// final: when the next one begins.
func show(ctx context.Context, client *workflow.Client, id string, out io.Writer) error {
	turn, said := 0, []string(nil)
	printTurn := func() {
		if turn > 0 {
			fmt.Fprintf(out, "turn %d: %s\n", turn, strings.Join(said, " "))
		}
	}
	for item, err := range workflow.ReadStream[Word](ctx, client, id, words, 0) {
		if err != nil {
			return err
		}
		w := item.Value
		if w.Begin {
			if w.Turn != turn {
				printTurn()
			}
			turn, said = w.Turn, nil
			continue
		}
		said = append(said, w.Text)
	}
	printTurn()
	return nil
}
