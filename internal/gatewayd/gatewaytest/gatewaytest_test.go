package gatewaytest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
)

func TestFixtures(t *testing.T) {
	t.Parallel()
	of := map[string]int{}
	for _, f := range gatewaytest.Language(t) {
		if f.Whole != nil {
			of[f.Format+" whole"]++
			if !json.Valid(f.Whole) {
				t.Errorf("%s is no JSON", f.Name)
			}
		}
		if f.Chunks != nil {
			of[f.Format+" streamed"]++
			if len(gatewaytest.Frames(f.Format, f.Chunks)) == 0 {
				t.Errorf("%s has no frames", f.Name)
			}
		}
	}
	for _, format := range gatewaytest.Formats {
		if of[format+" whole"] < 4 || of[format+" streamed"] < 4 {
			t.Errorf("%s: %v; a folder of providers is missing", format, of)
		}
	}
	f := gatewaytest.Named(t, "openai/chat-openai-text")
	if f.Whole == nil || len(f.Chunks) < 100 {
		t.Errorf("the pair of %s is not complete", f.Name)
	}
}

// Amazon's own code can read the package's Bedrock frames.
func TestEventStream(t *testing.T) {
	t.Parallel()
	chunks := [][]byte{[]byte(`{"messageStart":{"role":"assistant"}}`), []byte(`{"messageStop":{"stopReason":"end_turn"}}`)}
	r := bytes.NewReader(gatewaytest.Frames(gatewaytest.Converse, chunks))
	var got []string
	for d := eventstream.NewDecoder(); ; {
		m, err := d.Decode(r, nil)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s %s", m.Headers.Get(":message-type"), m.Headers.Get(":event-type"), m.Payload))
	}
	want := []string{`event messageStart {"role":"assistant"}`, `event messageStop {"stopReason":"end_turn"}`}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// call returns path and body of a request to a model in a format.
func call(format, model string, stream bool) (path, body string) {
	s := fmt.Sprintf(`,"stream":%t}`, stream)
	switch format {
	case gatewaytest.Chat:
		return "/v1/chat/completions", `{"model":"` + model + `","messages":[{"role":"user","content":"Hi"}]` + s
	case gatewaytest.Responses:
		return "/v1/responses", `{"model":"` + model + `","input":"Hi"` + s
	case gatewaytest.Messages:
		return "/v1/messages", `{"model":"` + model + `","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]` + s
	case gatewaytest.Gemini:
		verb := ":generateContent"
		if stream {
			verb = ":streamGenerateContent?alt=sse"
		}
		return "/v1beta/models/" + model + verb, `{"contents":[{"role":"user","parts":[{"text":"Hi"}]}]}`
	}
	verb := "/converse"
	if stream {
		verb = "/converse-stream"
	}
	return "/model/" + url.PathEscape(model) + verb, `{"messages":[{"role":"user","content":[{"text":"Hi"}]}]}`
}

func send(ctx context.Context, u *gatewaytest.Upstream, format, model string, stream bool, key string) (*http.Response, error) {
	path, body := call(format, model, stream)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.URL+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Anthropic-Version", "2023-06-01")
	return http.DefaultClient.Do(r)
}

func TestUpstream_answers(t *testing.T) {
	t.Parallel()
	for _, format := range gatewaytest.Formats {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stream=%t", format, stream), func(t *testing.T) {
				t.Parallel()
				u := gatewaytest.New(t)
				resp, err := send(t.Context(), u, format, "echo", stream, gatewaytest.Key)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != gatewaytest.ContentType(format, stream) {
					t.Fatalf("%s %s %v: %s", resp.Status, resp.Header, err, body)
				}
				if !stream && !json.Valid(body) {
					t.Errorf("%s", body)
				}
				q := u.Await(t, "echo", 1)
				if q.Format != format || q.Stream != stream || q.Canceled(t) || len(q.Asked.Turns) != 1 || q.Asked.Turns[0].Text != "Hi" {
					t.Errorf("%+v %+v", q, q.Asked)
				}
			})
		}
	}
}

func TestUpstream_refuses(t *testing.T) {
	t.Parallel()
	u := gatewaytest.New(t)
	for _, format := range gatewaytest.Formats {
		for key, want := range map[string]int{"wrong": 401, gatewaytest.Key: 404} {
			resp, err := send(t.Context(), u, format, "nobody", false, key)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if resp.Body.Close(); err != nil || resp.StatusCode != want || !json.Valid(body) {
				t.Errorf("%s: %s %s %v, want %d", format, resp.Status, body, err, want)
			}
		}
	}
}

func TestUpstream_fails(t *testing.T) {
	t.Parallel()
	for _, f := range gatewaytest.Faults() {
		for _, format := range gatewaytest.Formats {
			t.Run(string(f.Kind)+" "+format, func(t *testing.T) {
				t.Parallel()
				u := gatewaytest.New(t)
				model := "fail-" + strings.ReplaceAll(string(f.Kind), " ", "-")
				whole := gatewaytest.Frames(format, gatewaytest.Reply{Text: "Hello from the provider.", Usage: gatewaytest.ReplyUsage{Input: 40, CacheRead: 16, Output: 12}}.Render(format, model).Chunks)
				hangs := f.Kind == gatewaytest.HangInHead || f.Kind == gatewaytest.HangInStream
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if hangs {
					go func() {
						u.Await(t, model, 1)
						cancel()
					}()
				}
				resp, err := send(ctx, u, format, model, true, gatewaytest.Key)
				var body []byte
				status := 0
				if err == nil {
					status = resp.StatusCode
					body, err = io.ReadAll(resp.Body)
					resp.Body.Close()
				}
				switch f.Kind {
				case gatewaytest.Drip:
					if err != nil || !bytes.Equal(body, whole) {
						t.Errorf("%v %q, want %q", err, body, whole)
					}
				case gatewaytest.Reset, gatewaytest.Cut, gatewaytest.HangInHead, gatewaytest.HangInStream:
					if err == nil {
						t.Errorf("it ended well: %d %s", status, body)
					}
					if hangs != u.Await(t, model, 1).Canceled(t) {
						t.Error("it is not seen who ended it")
					}
				case gatewaytest.RateLimited:
					if status != 429 || resp.Header.Get("Retry-After") != "1" || !json.Valid(body) {
						t.Errorf("%d %v %s", status, resp.Header, body)
					}
				case gatewaytest.Short, gatewaytest.NoEnd, gatewaytest.Garbage, gatewaytest.ErrorInStream, gatewaytest.Oversize, gatewaytest.WrongType:
					if err != nil || status != 200 || len(body) == 0 || bytes.Equal(body, whole) {
						t.Errorf("%d %v: %.300s", status, err, body)
					}
					if f.Kind == gatewaytest.Oversize && len(body) < 16<<20 {
						t.Errorf("%d bytes", len(body))
					}
				default:
					if status < 400 || !json.Valid(body) {
						t.Errorf("%d %s", status, body)
					}
				}
			})
		}
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	c := http.Client{Timeout: time.Minute}
	for _, u := range []string{gatewaytest.Refused(t), gatewaytest.Untrusted(t)} {
		if resp, err := c.Get(u); err == nil {
			resp.Body.Close()
			t.Errorf("%s answers %s", u, resp.Status)
		}
	}
}
