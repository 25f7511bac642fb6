// Gateway asks a model through the AI gateway, like a program that was written for OpenAI:
// only its HTTP client changes.
//
//	go run ./examples/gateway
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/cayhq/cay/gateway"
)

// maxAnswer bounds the bytes read of an answer.
const maxAnswer = 1 << 20

// ask sends the request of any client of OpenAI's API. It knows nothing of the gateway.
func ask(ctx context.Context, client *http.Client, model, question string) (text string, head http.Header, err error) {
	body, err := json.Marshal(map[string]any{
		"model":    model,
		"messages": []map[string]string{{"role": "user", "content": question}},
	})
	if err != nil {
		return "", nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.openai.com/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return "", nil, err
	}
	var answer struct {
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return "", nil, fmt.Errorf("the answer (%s) is not JSON: %w", resp.Status, err)
	}
	if resp.StatusCode != http.StatusOK || len(answer.Choices) == 0 {
		return "", nil, fmt.Errorf("%s: %s", resp.Status, answer.Error.Message)
	}
	return answer.Choices[0].Message.Content, resp.Header, nil
}

// run sends a question through t and prints the answer, the model that gave it and its
// cost.
func run(ctx context.Context, t *gateway.Transport, out io.Writer, model, question string) error {
	text, head, err := ask(ctx, &http.Client{Transport: t}, model, question)
	if err != nil {
		return err
	}
	cost := "an unknown price"
	if c := head.Get("X-Cay-Cost"); c != "" {
		cost = "$" + c
	}
	_, err = fmt.Fprintf(out, "%s\n\n%s, for %s: %s\n", text, head.Get("X-Cay-Provider"), cost, head.Get("X-Cay-Generation-Id"))
	return err
}

func main() {
	model := flag.String("model", "cay/scripted", "model to ask")
	question := flag.String("question", "Which islands are cays?", "what to ask it")
	flag.Parse()
	// The gateway and key of CAY_GATEWAY_URL and CAY_GATEWAY_KEY, or those of this machine.
	t := &gateway.Transport{User: "ada", Tags: []string{"example"}}
	if err := run(context.Background(), t, os.Stdout, *model, *question); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
