package gatewayd_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws/protocol/eventstream"
	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// cloud simulates Vertex AI or Bedrock: it takes Claude calls at the cloud's paths, and
// forwards them to the mock upstream's Anthropic API.
type cloud struct {
	t    *testing.T
	up   string
	mu   sync.Mutex // guards the following fields
	seen []string   // paths and versions
	last []byte     // body
}

func (c *cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Error(err)
	}
	c.mu.Lock()
	c.seen, c.last = append(c.seen, r.URL.Path+" "+gjson.GetBytes(body, "anthropic_version").Str), body
	c.mu.Unlock()
	if accept := r.Header.Get("Accept"); strings.HasSuffix(r.URL.Path, "-with-response-stream") != (accept == "application/vnd.amazon.eventstream") || strings.HasPrefix(r.URL.Path, "/model/") && strings.Contains(r.URL.EscapedPath(), ":") {
		c.t.Errorf("%s was asked for %s", r.URL.EscapedPath(), accept)
	}
	path, stream := "/v1/messages", strings.HasSuffix(r.URL.Path, ":streamRawPredict") || strings.HasSuffix(r.URL.Path, "/invoke-with-response-stream")
	bedrock := strings.HasPrefix(r.URL.Path, "/model/")
	switch {
	case strings.HasSuffix(r.URL.Path, "/models/count-tokens:rawPredict"):
		path += "/count_tokens"
	case gjson.GetBytes(body, "model").Exists(), bedrock && gjson.GetBytes(body, "stream").Exists(), !bedrock && stream != gjson.GetBytes(body, "stream").Bool():
		http.Error(w, `{"message":"the body says what the path says"}`, http.StatusBadRequest)
		return
	}
	for _, change := range [][2]string{{"model", `"text"`}, {"stream", yes(stream)}} {
		if body, err = sjson.SetRawBytes(body, change[0], []byte(change[1])); err != nil {
			c.t.Error(err)
		}
	}
	if body, err = sjson.DeleteBytes(body, "anthropic_version"); err != nil {
		c.t.Error(err)
	}
	ask, err := http.NewRequestWithContext(r.Context(), http.MethodPost, c.up+path, bytes.NewReader(body))
	if err != nil {
		c.t.Error(err)
	}
	ask.Header = http.Header{"X-Api-Key": {gatewaytest.Key}, "Content-Type": {"application/json"}, "Anthropic-Version": {"2023-06-01"}}
	resp, err := http.DefaultClient.Do(ask)
	if err != nil {
		c.t.Error(err)
		return
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Error(err)
	}
	w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
	if bedrock && stream && resp.StatusCode == http.StatusOK {
		w.Header().Set("Content-Type", "application/vnd.amazon.eventstream")
		raw = c.frames(raw)
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(raw) // fails only when the client left
}

// frames wraps each event in a frame, like InvokeModelWithResponseStream.
func (c *cloud) frames(events []byte) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(events) {
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok {
			continue
		}
		payload, err := json.Marshal(map[string]string{"bytes": base64.StdEncoding.EncodeToString(bytes.TrimSpace(data)), "p": "abcdef"})
		if err != nil {
			c.t.Error(err)
		}
		m := eventstream.Message{Payload: payload}
		m.Headers.Set(":message-type", eventstream.StringValue("event"))
		m.Headers.Set(":event-type", eventstream.StringValue("chunk"))
		if err := eventstream.NewEncoder().Encode(&b, m); err != nil {
			c.t.Error(err)
		}
	}
	return b.Bytes()
}

func (c *cloud) took() (paths []string, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen, c.last
}

// withClouds returns a world that also has Claude at Vertex AI and at Bedrock.
func withClouds(t *testing.T) (*world, *cloud) {
	t.Helper()
	w := newWorld(t)
	c := &cloud{t: t, up: w.up.URL}
	srv := httptest.NewServer(c)
	t.Cleanup(srv.Close)
	s, err := provider.NewSecret("operators")
	if err != nil {
		t.Fatal(err)
	}
	base := provider.Provider{
		Credentials: []provider.Credential{provider.Bearer(provider.Owner{ID: "key"}, s)}, NeedsCredential: true, FirstByte: time.Minute, Idle: time.Minute,
	}
	vertex, bedrock := base, base
	vertex.Name, vertex.Kind, vertex.Formats = "vertex", "vertex", []string{"gemini"}
	vertex.BaseURL = srv.URL + "/v1/projects/p/locations/global/publishers/google"
	bedrock.Name, bedrock.Kind, bedrock.Formats, bedrock.BaseURL = "bedrock", "bedrock", []string{"messages", "converse"}, srv.URL
	w.add(&vertex, &bedrock)
	w.model("anthropic/v", "vertex:claude-sonnet-4-5@20250929")
	w.model("anthropic/b", "bedrock:eu.anthropic.claude-sonnet-4-5-20250929-v1:0")
	return w, c
}

// Claude models of clouds are called at the clouds' addresses in Anthropic's format:
// unchanged for Anthropic's clients, translated for other clients.
func TestClouds(t *testing.T) {
	t.Parallel()
	paths := map[string]map[bool]string{
		"anthropic/v": {
			false: "/v1/projects/p/locations/global/publishers/anthropic/models/claude-sonnet-4-5@20250929:rawPredict vertex-2023-10-16",
			true:  "/v1/projects/p/locations/global/publishers/anthropic/models/claude-sonnet-4-5@20250929:streamRawPredict vertex-2023-10-16",
		},
		"anthropic/b": {
			false: "/model/eu.anthropic.claude-sonnet-4-5-20250929-v1:0/invoke bedrock-2023-05-31",
			true:  "/model/eu.anthropic.claude-sonnet-4-5-20250929-v1:0/invoke-with-response-stream bedrock-2023-05-31",
		},
	}
	for model, of := range paths {
		for _, d := range dialects {
			for stream, want := range of {
				t.Run(strings.Join([]string{model, d.name, yes(stream)}, " "), func(t *testing.T) {
					t.Parallel()
					w, c := withClouds(t)
					status, body, _ := w.ask(d, model, stream)
					seen, _ := c.took()
					if status != http.StatusOK || !strings.Contains(body, "Hello") || stream && !strings.Contains(body, d.ends) || len(seen) != 1 || seen[0] != want {
						t.Errorf("%d %s, called %v", status, body, seen)
					}
					if r := w.record(1); r.Tokens.Input != 40 || r.Tokens.Output != 12 || r.Tokens.Estimated || r.FinishReason != "stop" || *r.Cost == 0 {
						t.Errorf("%+v", r)
					}
				})
			}
		}
	}
}

// A passed body equals the client's, except for the changes that the cloud requires.
func TestClouds_Body(t *testing.T) {
	t.Parallel()
	w, c := withClouds(t)
	for _, test := range []struct{ model, want string }{
		{"anthropic/v", `{"max_tokens":9,"messages":[{"role":"user","content":"hi"}],"stream":false,"new":[1,2.50],"anthropic_version":"vertex-2023-10-16"}`},
		{"anthropic/b", `{"max_tokens":9,"messages":[{"role":"user","content":"hi"}],"new":[1,2.50],"anthropic_version":"bedrock-2023-05-31","anthropic_beta":["one","two","three"]}`},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/v1/messages",
			strings.NewReader(`{"model":"`+test.model+`","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"stream":false,"new":[1,2.50]}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Authorization": {"Bearer " + secret}, "Content-Type": {"application/json"}, "Anthropic-Version": {"2023-06-01"}, "Anthropic-Beta": {"one, two", "three"}}
		status, body, _ := w.do(r)
		if _, sent := c.took(); status != http.StatusOK || string(sent) != test.want {
			t.Errorf("%d %s, sent %s", status, body, sent)
		}
	}
}

// Vertex counts tokens itself; for Bedrock the gateway estimates.
func TestClouds_Count(t *testing.T) {
	t.Parallel()
	w, c := withClouds(t)
	count := func(model string) string {
		status, body, _ := w.post("/v1/messages/count_tokens", `{"model":"`+model+`","messages":[{"role":"user","content":"hi"}]}`)
		if status != http.StatusOK {
			t.Errorf("%d %s", status, body)
		}
		return body
	}
	if got := count("anthropic/v"); gjson.Get(got, "input_tokens").Int() != 42 {
		t.Error(got)
	}
	seen, body := c.took()
	if len(seen) != 1 || seen[0] != "/v1/projects/p/locations/global/publishers/anthropic/models/count-tokens:rawPredict vertex-2023-10-16" || gjson.GetBytes(body, "model").Str != "claude-sonnet-4-5@20250929" {
		t.Errorf("%v %s", seen, body)
	}
	if got := count("anthropic/b"); gjson.Get(got, "input_tokens").Int() == 0 {
		t.Error(got)
	}
	if seen, _ := c.took(); len(seen) != 1 {
		t.Errorf("Bedrock was asked: %v", seen)
	}
}

// A frame stream that breaks off or ends with an exception is a failure.
func TestClouds_Broken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, end := range map[string]func(b *bytes.Buffer){
		"cut": func(b *bytes.Buffer) { b.Truncate(b.Len() - 40) },
		"exception": func(b *bytes.Buffer) {
			b.Reset()
			m := eventstream.Message{Payload: []byte(`{"message":"Too many tokens, please wait"}`)}
			m.Headers.Set(":message-type", eventstream.StringValue("exception"))
			m.Headers.Set(":exception-type", eventstream.StringValue("throttlingException"))
			if err := eventstream.NewEncoder().Encode(b, m); err != nil {
				t.Error(err)
			}
		},
		"garbage": func(b *bytes.Buffer) { b.WriteString("this is no frame, and so no event of any kind") },
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			events := gatewaytest.Reply{Text: "Hello."}.Render(gatewaytest.Messages, "x").Chunks
			var raw []byte
			for _, e := range events[:len(events)-1] {
				raw = append(raw, gatewaytest.Frame(gatewaytest.Messages, e)...)
			}
			b := bytes.NewBuffer((&cloud{t: t}).frames(raw))
			end(b)
			rw.Header().Set("Content-Type", "application/vnd.amazon.eventstream")
			_, _ = rw.Write(b.Bytes()) // fails only when the client left
		}))
		t.Cleanup(srv.Close)
		s, err := provider.NewSecret("operators")
		if err != nil {
			t.Fatal(err)
		}
		w.add(&provider.Provider{
			Name: name, Kind: "bedrock", Formats: []string{"messages"}, BaseURL: srv.URL, NeedsCredential: true, FirstByte: time.Minute, Idle: time.Minute,
			Credentials: []provider.Credential{provider.Bearer(provider.Owner{ID: "key"}, s)},
		})
		w.model("anthropic/"+name, name+":anthropic.claude-x")
		for _, d := range dialects {
			status, body, _ := w.ask(d, "anthropic/"+name, true)
			failed := status >= 400 && strings.Contains(body, d.wrong) || status == http.StatusOK && strings.Contains(body, d.fails)
			if !failed || strings.Contains(body, d.ends) && d.ends != "[DONE]" {
				t.Errorf("%s, %s: %d %s", name, d.name, status, body)
			}
		}
	}
}
