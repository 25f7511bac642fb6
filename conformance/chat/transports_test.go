package chat_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/agent/chat"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/workflowtest"
)

// A reader of an answer has the complete message in the end, however often the
// connection is cut and the model breaks off and begins anew.
func TestTransports_CutAndGivenAgain(t *testing.T) {
	need(t)
	g := &answerMaker{Rand: rand.New(rand.NewPCG(3, 21))}
	answers := make([]answer, 60)
	for i := range answers {
		answers[i] = g.answer()
	}
	def := workflow.Define("talk", func(ctx workflow.Context, call agent.Call) (int, error) {
		text := call.Messages[len(call.Messages)-1].Parts[0].Text
		i, err := strconv.Atoi(text)
		if err != nil {
			return 0, err
		}
		a := answers[i]
		for n := range a {
			_, err := workflow.Do(ctx, "model", func(ctx context.Context) (int, error) {
				info := workflow.StepInfo(ctx)
				attempt := a[n][info.Attempt-1]
				w := workflow.Stream[object](ctx, agent.StreamName)
				for _, chunk := range attempt {
					if chunk["type"] == "start-step" {
						chunk = object{"type": "start-step", "step": info.StepID}
					}
					if err := w.Send(chunk); err != nil {
						return 0, err
					}
				}
				if info.Attempt < len(a[n]) {
					return 0, errors.New("the model broke off")
				}
				return 0, nil
			}, workflow.MaxRetries(10), workflow.Retry(workflow.RetryPolicy{Initial: 10 * time.Millisecond, Multiplier: 1}))
			if err != nil {
				return 0, err
			}
		}
		return 0, nil
	})
	kit := workflowtest.New(t, workflowtest.Options{}, def)
	mux := http.NewServeMux()
	for name, reset := range map[string]bool{"/v6": false, "/v7": true} {
		h := chat.Handler(kit.Client, def, chat.Options{Prefix: name, Name: name, ResetStep: reset, Heartbeat: 3 * time.Millisecond})
		mux.Handle(name, h)
		mux.Handle(name+"/", h)
	}
	srv := httptest.NewServer(mux)
	defer srv.Close()
	world := object{"url": srv.URL, "seed": 12345}
	var clean [][]object
	for _, a := range answers {
		clean = append(clean, a.clean())
	}
	world["answers"] = clean
	told, err := json.Marshal(world)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "transports.mjs")
	cmd.Stdin = bytes.NewReader(told)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var counts struct{ Connections, Cuts, Resets, Rereads, Reads int }
	if err := json.Unmarshal(out, &counts); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	t.Logf("%d answers: %+v", len(answers), counts)
	if counts.Cuts < 100 || counts.Resets < 10 || counts.Rereads < 5 || counts.Reads < 1000 {
		t.Errorf("too little happened to them: %+v", counts)
	}
}

// answer is the output of a run: the output of each step, attempt by attempt. The
// last attempt counts.
type answer [][][]object

// clean returns the answer without interruptions.
func (a answer) clean() []object {
	var all []object
	for _, attempts := range a {
		all = append(all, attempts[len(attempts)-1]...)
	}
	return all
}

// answerMaker makes up answers.
type answerMaker struct {
	*rand.Rand
	n int
}

func (g *answerMaker) answer() answer {
	g.n++
	a := answer{{{{"type": "start", "messageId": fmt.Sprint("a", g.n), "messageMetadata": object{"n": 1}}}}}
	steps := 1 + g.IntN(3)
	for range steps {
		said, outputs := g.step()
		attempts := [][]object{}
		for range g.IntN(3) {
			broken, _ := g.step()
			if g.IntN(2) == 0 {
				broken = said // the text so far
			}
			attempts = append(attempts, broken[:g.IntN(len(broken)+1)])
			if len(attempts[len(attempts)-1]) == 0 {
				attempts = attempts[:len(attempts)-1] // it has said nothing
			}
		}
		a = append(a, append(attempts, said))
		if len(outputs) > 0 {
			a = append(a, [][]object{outputs})
		}
	}
	if g.IntN(4) > 0 {
		a = append(a, [][]object{{{"type": "finish", "finishReason": "stop"}}})
	}
	return a
}

// step returns an answer of a model, and the outputs of its tools.
func (g *answerMaker) step() (said, outputs []object) {
	said = []object{{"type": "start-step"}}
	for block := range 1 + g.IntN(4) {
		id := fmt.Sprint(block)
		switch kind := g.IntN(6); kind {
		case 0, 1, 2:
			typ := []string{"text", "text", "reasoning"}[kind]
			said = append(said, object{"type": typ + "-start", "id": id, "providerMetadata": object{"p": object{"k": g.IntN(9)}}})
			for range g.IntN(5) {
				said = append(said, object{"type": typ + "-delta", "id": id, "delta": fmt.Sprint("word", g.IntN(100), "\n")})
			}
			said = append(said, object{"type": typ + "-end", "id": id})
		case 3, 4:
			call := fmt.Sprint("call", g.IntN(1e6))
			said = append(said, object{"type": "tool-input-start", "toolCallId": call, "toolName": "weather", "dynamic": kind == 4})
			for _, delta := range []string{`{"city":`, `"Os`, `lo"}`} {
				said = append(said, object{"type": "tool-input-delta", "toolCallId": call, "inputTextDelta": delta})
			}
			said = append(said, object{"type": "tool-input-available", "toolCallId": call, "toolName": "weather", "dynamic": kind == 4, "input": object{"city": "Oslo"}})
			outputs = append(outputs, object{"type": "tool-output-available", "toolCallId": call, "dynamic": kind == 4, "output": object{"celsius": g.IntN(30)}})
		case 5:
			said = append(said,
				object{"type": "source-url", "sourceId": id, "url": "https://example.com/"},
				object{"type": "data-note", "data": object{"n": g.IntN(9)}})
		}
	}
	return append(said, object{"type": "finish-step"}), outputs
}
