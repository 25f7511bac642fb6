package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
)

// dialects are the providers, by the format that each speaks. Compatible is a
// second server with OpenAI's format, and returns the model's reasoning.
var dialects = map[string]string{
	"chat": gatewaytest.Chat, "compatible": gatewaytest.Chat, "responses": gatewaytest.Responses,
	"messages": gatewaytest.Messages, "gemini": gatewaytest.Gemini, "converse": gatewaytest.Converse,
}

// providers are simulated providers, with the data for test programs.
type providers struct {
	played  map[string]*gatewaytest.Upstream
	control string
}

func play(t *testing.T) *providers {
	t.Helper()
	p := &providers{played: map[string]*gatewaytest.Upstream{}}
	for name := range dialects {
		p.played[name] = gatewaytest.New(t)
	}
	control := httptest.NewServer(p)
	t.Cleanup(control.Close)
	p.control = control.URL
	return p
}

// world is the input of a test program: see world.mjs.
type world struct {
	URL      string                 `json:"url"`
	Key      string                 `json:"key"`
	Spent    string                 `json:"spent"`
	Narrow   string                 `json:"narrow"`
	Control  string                 `json:"control"`
	Direct   bool                   `json:"direct"`
	Dialects []string               `json:"dialects"`
	Recorded map[string][]recording `json:"recorded"`
}

// direct returns a world without a gateway. A single server speaks all formats.
func (p *providers) direct() world {
	return world{URL: p.played["chat"].URL, Key: gatewaytest.Key, Control: p.control, Direct: true, Dialects: p.names()}
}

func (p *providers) names() []string { return slices.Sorted(maps.Keys(p.played)) }

// ServeHTTP reports the providers' requests: GET /asked?model=&text=&n= waits
// until a model has had n requests with a text, and returns their number; GET
// /end?model=&text= waits for the end of the last of these requests. Models have
// clients' names, provider/model, or the names of a world without a gateway.
func (p *providers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	dialect, model, ok := strings.Cut(r.FormValue("model"), "/")
	if !ok {
		dialect, model = "chat", dialect
	}
	u := p.played[dialect]
	if u == nil {
		http.Error(w, "there is no provider "+dialect, http.StatusNotFound)
		return
	}
	n, _ := strconv.Atoi(r.FormValue("n")) // absent for /end: one
	n = max(n, 1)
	for {
		next := u.Next()
		of := slices.DeleteFunc(u.Of(model), func(q *gatewaytest.Request) bool { return !strings.Contains(string(q.Body), r.FormValue("text")) })
		if len(of) < n {
			select {
			case <-next:
				continue
			case <-ctx.Done():
				http.Error(w, fmt.Sprintf("%s was asked %d times and not %d", model, len(of), n), http.StatusGatewayTimeout)
				return
			}
		}
		answer := map[string]any{"times": len(of)}
		if r.URL.Path == "/end" {
			select {
			case <-of[len(of)-1].Done():
				answer["canceled"] = of[len(of)-1].Left()
			case <-ctx.Done():
				http.Error(w, "the answer has not ended", http.StatusGatewayTimeout)
				return
			}
		}
		json.NewEncoder(w).Encode(answer) // the client waits for the answer
		return
	}
}

// counts are how many cases passed and failed, by test.
var counts struct {
	sync.Mutex
	lines          []string
	passed, failed int
}

func counted(test string, passed, failed int) {
	counts.Lock()
	defer counts.Unlock()
	counts.lines = append(counts.lines, fmt.Sprintf("%-40s %5d passed %3d failed", test, passed, failed))
	counts.passed, counts.failed = counts.passed+passed, counts.failed+failed
}

func TestMain(m *testing.M) {
	code := m.Run()
	if programDir != "" {
		os.RemoveAll(programDir)
	}
	for _, line := range counts.lines {
		fmt.Println(line)
	}
	if counts.lines != nil {
		fmt.Printf("%-40s %5d passed %3d failed\n", "all cases of clients", counts.passed, counts.failed)
	}
	os.Exit(code)
}
