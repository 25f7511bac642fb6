package preload_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// fickle is a daemon that breaks each connection for writes twice: before it has stored
// what comes, and after. Then it answers.
type fickle struct {
	*testing.T

	mu       sync.Mutex // guards the fields below
	calls    int
	chunks   []string
	closed   bool
	messages []string // each once for each key
	keys     map[string]bool
	own      bool // a message came with a key of its sender
}

func (f *fickle) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		f.Error(err)
	}
	length := func() { w.Header().Set("X-Cay-Length", strconv.Itoa(len(f.chunks))) }
	var store func()
	switch r.Method + " " + r.URL.Path {
	case "GET /vercel/workflow/api/v2/runs/wrun_1/streams/strm_1/info":
		length()
		return
	case "PUT /vercel/workflow/api/v2/runs/wrun_1/stream/strm_1":
		store = func() {
			after := len(f.chunks)
			if text := r.Header.Get("X-Cay-After"); text != "" {
				if after, err = strconv.Atoi(text); err != nil {
					f.Error(err)
				}
			}
			switch rest := f.chunks[after:]; {
			case r.Header.Get("X-Stream-Done") == "true":
				f.closed = true
			case len(rest) == 0:
				f.chunks = append(f.chunks, string(body))
			case len(rest) > 1 || rest[0] != string(body):
				f.Errorf("behind %d chunks there are %q before %q is repeated", after, rest, body)
			}
		}
	case "POST /vercel/queue/api/v3/topic/t":
		store = func() {
			key := r.Header.Get("Vqs-Idempotency-Key")
			if !f.keys[key] {
				f.keys[key] = true
				f.messages = append(f.messages, string(body))
			}
			f.own = f.own || key == "own"
		}
	default:
		panic(http.ErrAbortHandler) // for each time
	}
	switch f.calls++; f.calls % 4 {
	case 1:
		panic(http.ErrAbortHandler)
	case 2:
		store()
		w.WriteHeader(http.StatusServiceUnavailable)
	case 3:
		store()
		panic(http.ErrAbortHandler)
	default:
		store()
		length()
		w.WriteHeader(http.StatusNoContent)
	}
}

// Writes to streams and messages are repeated, with their bytes, until they are answered,
// and nothing is doubled. Other requests are not repeated.
func TestModule_repeats(t *testing.T) {
	t.Parallel()
	f := &fickle{T: t, keys: make(map[string]bool)}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	var got struct {
		Statuses    []int
		Left, Other string
	}
	node(t, nil, []string{written(t, s.URL)}, "repeat.mjs", nil, &got)
	for _, status := range got.Statuses {
		if status != http.StatusNoContent {
			t.Errorf("the answers are %v", got.Statuses)
			break
		}
	}
	if got.Left != "TimeoutError" || got.Other != "UND_ERR_SOCKET" {
		t.Errorf("who left saw %q, and another request ended with %q", got.Left, got.Other)
	}
	count := make(map[string]int)
	for _, c := range f.chunks {
		count[c]++
	}
	if want := map[string]int{"a": 2, "b": 2, "same": 4}; !reflect.DeepEqual(count, want) || !f.closed {
		t.Errorf("the stream has %q, closed: %v", f.chunks, f.closed)
	}
	if got := strings.Join(f.messages, ","); got != "message 0,message 1,message 2" || !f.own {
		t.Errorf("the messages are %s; one with the sender's key: %v", got, f.own)
	}
}

// An event is sent again while it cannot have arrived, and no longer.
func TestModule_repeatsEvents(t *testing.T) {
	t.Parallel()
	var got struct {
		Event, Message, Cancel string
		Calls                  []int
	}
	node(t, nil, []string{"testdata/refusing.mjs", written(t, "http://127.0.0.1:7070")}, "events.mjs", nil, &got)
	if got.Event != "ECONNRESET" || got.Message != "201" || got.Cancel != "ECONNREFUSED" || !reflect.DeepEqual(got.Calls, []int{4, 5, 1}) {
		t.Errorf("the outcomes are %+v", got)
	}
}
