package gatewaytest

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Key is the only credential that an Upstream accepts: as Bearer token, x-api-key or
// x-goog-api-key. Unverified AWS signatures are accepted, too.
const Key = "sk-upstream-0123456789abcdef"

// Answer is an Upstream's answer to a request.
type Answer struct {
	// Reply is rendered in the request's format. It is ignored if Fixture is set.
	Reply Reply
	// Fixture is a recorded answer of the request's format.
	Fixture *Fixture
	// Pace is the pause before each event of a stream; 0 means no pause.
	Pace  time.Duration
	Fault Fault
	// Head is a set of additional headers.
	Head http.Header
}

// Request is a request that an Upstream received.
type Request struct {
	Format string // given by the path; empty for endpoints other than language models
	Method string
	URL    *url.URL
	Head   http.Header
	Body   []byte
	Model  string
	Stream bool
	Asked  *Asked // nil if the request could not be parsed

	done     chan struct{} // closed when the answer has ended
	canceled bool          // set before done is closed
}

// Canceled waits for the end of the answer and reports whether the client left before.
func (r *Request) Canceled(t testing.TB) bool {
	t.Helper()
	select {
	case <-r.done:
		return r.canceled
	case <-t.Context().Done():
		t.Fatal("the answer does not end")
		return false
	}
}

// Done is closed when the answer has ended. Left then reports whether the client
// left before.
func (r *Request) Done() <-chan struct{} { return r.done }

// Left reports whether the client left early; call it after Done is closed.
func (r *Request) Left() bool { return r.canceled }

// Upstream is a simulated provider. The model's name selects the answer: an Answer set by
// On or Play, or a builtin model's; see models.go.
type Upstream struct {
	// URL is the address of the server. Every format has its provider's paths: URL/v1 for
	// OpenAI and Anthropic, URL/v1beta for Gemini, URL for Bedrock.
	URL string

	t       testing.TB
	stopped chan struct{} // closed when the test ends, which ends hanging answers

	mu       sync.Mutex // guards the following fields
	models   map[string]func(*Request) Answer
	requests []*Request
	arrived  chan struct{} // closed and replaced at each request
}

// New starts an Upstream that ends with the test.
func New(t testing.TB) *Upstream {
	t.Helper()
	u := &Upstream{t: t, stopped: make(chan struct{}), models: maps.Clone(builtin), arrived: make(chan struct{})}
	u.models["flaky"] = flaky()
	s := httptest.NewServer(u)
	u.URL = s.URL
	t.Cleanup(func() {
		close(u.stopped)
		s.Close()
	})
	return u
}

// On makes a model answer with answers, one after the other; the last one repeats.
func (u *Upstream) On(model string, answers ...Answer) {
	next := 0
	u.Play(model, func(*Request) Answer { // called with mu held
		next++
		return answers[min(next, len(answers))-1]
	})
}

// Play makes a model answer with the result of f; calls of f do not overlap.
func (u *Upstream) Play(model string, f func(*Request) Answer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.models[model] = f
}

// Requests returns all requests so far.
func (u *Upstream) Requests() []*Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.requests)
}

// Of returns the requests for a model so far.
func (u *Upstream) Of(model string) []*Request {
	return slices.DeleteFunc(u.Requests(), func(r *Request) bool { return r.Model != model })
}

// Next returns a channel that is closed at the next request.
func (u *Upstream) Next() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.arrived
}

// Await waits until a model has received n requests, and returns the last of them.
func (u *Upstream) Await(t testing.TB, model string, n int) *Request {
	t.Helper()
	for {
		next := u.Next()
		if of := u.Of(model); len(of) >= n {
			return of[n-1]
		}
		select {
		case <-next:
		case <-t.Context().Done():
			t.Fatalf("%s was not asked %d times", model, n)
		}
	}
}

// ServeHTTP implements http.Handler.
func (u *Upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client left
	}
	q := &Request{Method: r.Method, URL: r.URL, Head: r.Header.Clone(), Body: body, done: make(chan struct{})}
	q.route()
	defer func() {
		q.canceled = r.Context().Err() != nil
		close(q.done)
	}()
	refusal := q.check()
	u.mu.Lock()
	u.requests = append(u.requests, q)
	close(u.arrived)
	u.arrived = make(chan struct{})
	var answer *Answer
	if play := u.models[q.Model]; play != nil && refusal == nil && q.Format != "" {
		a := play(q)
		answer = &a
	}
	u.mu.Unlock()
	switch {
	case refusal != nil:
		q.refuse(w, refusal)
	case answer != nil:
		u.answer(w, r, q, answer)
	case q.Format != "" || !q.other(w):
		q.refuse(w, &refused{http.StatusNotFound, "There is no model " + q.Model + " at " + r.URL.Path})
	}
}

// route reads the endpoint, model and format from the path, and from the body if it
// contains them.
func (q *Request) route() {
	path := q.URL.Path
	v := parse(q.Body)
	q.Model, q.Stream = v.at("model").text(), v.at("stream").v == true
	switch {
	case strings.HasSuffix(path, "/chat/completions"):
		q.Format = Chat
	case strings.HasSuffix(path, "/responses"):
		q.Format = Responses
	case strings.HasSuffix(path, "/messages"):
		q.Format = Messages
	case strings.HasSuffix(path, ":generateContent"), strings.HasSuffix(path, ":streamGenerateContent"):
		q.Format = Gemini
		var verb string
		q.Model, verb, _ = strings.Cut(path[strings.Index(path, "/models/")+len("/models/"):], ":")
		q.Stream = verb == "streamGenerateContent"
	case strings.HasPrefix(path, "/model/"):
		verb := ""
		q.Model, verb, _ = strings.Cut(path[len("/model/"):], "/converse")
		if q.Format = Converse; verb != "" && verb != "-stream" {
			q.Format = ""
		}
		q.Stream = verb == "-stream"
	}
}

// refused is the reason for a refusal.
type refused struct {
	status  int
	message string
}

// check refuses requests that real providers refuse, and content that the gateway must
// not send.
func (q *Request) check() *refused {
	credential := []string{strings.TrimPrefix(q.Head.Get("Authorization"), "Bearer "), q.Head.Get("X-Api-Key"), q.Head.Get("X-Goog-Api-Key"), q.Head.Get("Api-Key")}
	if !slices.Contains(credential, Key) && !strings.HasPrefix(credential[0], "AWS4-HMAC-SHA256 ") {
		return &refused{http.StatusUnauthorized, "Incorrect API key provided."}
	}
	for name, values := range q.Head {
		if strings.Contains(strings.Join(values, " "), "cgk_") {
			return &refused{http.StatusBadRequest, "the header " + name + " has the client's own key in it"}
		}
	}
	if q.Format == "" {
		return nil
	}
	switch {
	case q.Method != http.MethodPost:
		return &refused{http.StatusMethodNotAllowed, "Use POST."}
	case !strings.HasPrefix(q.Head.Get("Content-Type"), "application/json"):
		return &refused{http.StatusBadRequest, "The content type is not application/json."}
	case q.Format == Messages && q.Head.Get("Anthropic-Version") == "":
		return &refused{http.StatusBadRequest, "anthropic-version: header is required"}
	case q.Format == Gemini && q.Stream && q.URL.Query().Get("alt") != "sse":
		return &refused{http.StatusBadRequest, "only alt=sse is spoken here"}
	case bytes.Contains(q.Body, []byte(`"gateway":`)):
		return &refused{http.StatusBadRequest, "Unrecognized request argument: gateway"}
	}
	asked, err := ask(q.Format, q.Model, q.Body)
	if err != nil {
		return &refused{http.StatusBadRequest, err.Error()}
	}
	q.Asked = asked
	if err := schemas(q.Format, q.Model, parse(q.Body)); err != nil {
		return &refused{http.StatusBadRequest, err.Error()}
	}
	return nil
}

func (q *Request) refuse(w http.ResponseWriter, r *refused) {
	head, body := ErrorBody(q.Format, r.status, r.message)
	maps.Copy(w.Header(), head)
	w.WriteHeader(r.status)
	w.Write(body) // the client may have left
}

// answer sends an answer, with its fault.
func (u *Upstream) answer(w http.ResponseWriter, r *http.Request, q *Request, a *Answer) {
	maps.Copy(w.Header(), a.Head)
	f := a.Fault
	if status, message := f.status(q.Format); status != 0 {
		if f.RetryAfter > 0 {
			w.Header().Set("Retry-After", f.retryAfter())
		}
		q.refuse(w, &refused{status, message})
		return
	}
	switch f.Kind {
	case Reset:
		panic(http.ErrAbortHandler)
	case HangInHead:
		u.hang(r)
	case WrongType:
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<html><body>Welcome to the captive portal</body></html>")
		return
	}
	fixture := a.Fixture
	if fixture == nil {
		rendered := a.Reply.Render(q.Format, q.Model)
		fixture = &rendered
	}
	w.Header().Set("Content-Type", ContentType(q.Format, q.Stream))
	w.Header().Set("X-Request-Id", "req_mock")
	out := &output{u: u, w: w, r: r, fault: f}
	if !q.Stream {
		body := fixture.Whole
		switch f.Kind {
		case Garbage:
			body = []byte(`{"choices": [{"message": {]`)
		case Oversize:
			body = append(bytes.Repeat([]byte(" "), f.size()), body...)
		case NoEnd:
			body = bytes.TrimSpace(body)
			body = body[:len(body)-1]
		case HangInStream:
			out.write(body[:min(len(body)/2, max(1, f.After))])
			u.hang(r)
		}
		out.write(body)
		return
	}
	chunks, end := fixture.Chunks, End(q.Format)
	if f.Kind == NoEnd {
		end = nil
		switch q.Format {
		case Chat:
		case Converse: // usage follows the end of the message
			chunks = chunks[:len(chunks)-2]
		default:
			chunks = chunks[:len(chunks)-1]
		}
	}
	for i, c := range chunks {
		if a.Pace > 0 && !u.wait(r, a.Pace) {
			return
		}
		if i == f.After {
			switch f.Kind {
			case HangInStream:
				u.hang(r)
			case ErrorInStream:
				out.write(errorFrame(q.Format, "Overloaded in the middle"))
				return
			case Garbage:
				out.write(garbled(q.Format)) // and continue normally
			case Oversize:
				out.write(oversize(q.Format, f.size()))
				return
			}
		}
		out.write(Frame(q.Format, c))
	}
	out.write(end)
}

func (f Fault) size() int {
	if f.Bytes == 0 {
		return 17 << 20
	}
	return f.Bytes
}

func garbled(format string) []byte {
	if format == Converse {
		b := EventStream([]byte(`{"contentBlockIndex":0}`), ":message-type", "event", ":event-type", "contentBlockStop")
		b[len(b)-1] ^= 1 // the check sum
		return b
	}
	return []byte("event: message_delta\ndata: {\"choices\": [{]\n\n")
}

func oversize(format string, n int) []byte {
	letters := strings.Repeat("a", n)
	if format == Converse {
		return EventStream(encode(object{"contentBlockIndex": 0, "delta": object{"text": letters}}), ":message-type", "event", ":event-type", "contentBlockDelta")
	}
	return fmt.Appendf(nil, "event: content_block_delta\ndata: {\"x\":%q}\n\n", letters)
}

// hang blocks until the client leaves or the test ends.
func (u *Upstream) hang(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-u.stopped:
	}
	panic(http.ErrAbortHandler)
}

// wait waits, and returns false if the client left meanwhile.
func (u *Upstream) wait(r *http.Request, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
	case <-u.stopped:
	}
	return false
}

// output writes a body, with faults at byte positions.
type output struct {
	u     *Upstream
	w     http.ResponseWriter
	r     *http.Request
	fault Fault
	sent  int
}

func (o *output) write(p []byte) {
	if o.fault.Kind == Drip {
		every := max(o.fault.Every, 100*time.Microsecond)
		for i := range p {
			// A timer takes a millisecond or more, however short the pause.
			if (o.fault.Every > 0 || i%16 == 0) && !o.u.wait(o.r, every) {
				panic(http.ErrAbortHandler)
			}
			o.flush(p[i : i+1])
		}
		return
	}
	if at := o.fault.Kind == Cut || o.fault.Kind == Short; at && o.sent+len(p) > o.fault.After {
		o.flush(p[:max(0, o.fault.After-o.sent)])
		o.sent = max(o.sent, o.fault.After)
		if o.fault.Kind == Cut {
			panic(http.ErrAbortHandler)
		}
		return
	}
	o.flush(p)
	o.sent += len(p)
}

func (o *output) flush(p []byte) {
	if len(p) == 0 {
		return
	}
	o.w.Write(p) // the client may have left
	http.NewResponseController(o.w).Flush()
}
