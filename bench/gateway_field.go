package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The process beside a gateway, on another core: a provider that answers at once,
// and the clients. Both speak HTTP by hand, because Go's own client and server would
// use more of their core than the gateway of its own.

// fieldRequest is a request to the field.
type fieldRequest struct {
	// Do is one of: "call", C clients that call and call for Seconds; "hold", open C
	// streams that begin and then say nothing; "release", end those.
	Do   string            `json:"do"`
	URL  string            `json:"url"`  // of the gateway; empty: of the provider itself
	Path string            `json:"path"` // /v1/chat/completions
	Head map[string]string `json:"head,omitempty"`
	// Model is the name of the model, Prompt the prompt's length in bytes.
	Model  string `json:"model"`
	Prompt int    `json:"prompt,omitempty"`
	Stream bool   `json:"stream,omitempty"`
	// Pace is how many milliseconds are between the events of a stream.
	Pace    int     `json:"pace,omitempty"`
	C       int     `json:"c"`
	Seconds float64 `json:"seconds"`
}

// fieldAnswer has the results of a request.
type fieldAnswer struct {
	Provider string  `json:"provider,omitempty"` // URL, in the first answer
	Calls    int     `json:"calls"`
	Seconds  float64 `json:"seconds"`
	P50      float64 `json:"p50"`   // ms, of whole calls
	First    float64 `json:"first"` // ms, median until the first token
	Error    string  `json:"error,omitempty"`
}

// fieldTokens is how many of a stream's 24 events have text.
const fieldTokens = 20

// ServeField is the process of the field, or with the arguments "proxy URL" the
// plain reverse proxy that gateways are compared with. It ends when stdin ends.
func ServeField(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) == 2 && args[0] == "proxy" {
		return serveProxy(ctx, args[1], stdin, stdout)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("start provider: %w", err)
	}
	defer l.Close()
	f := &field{address: l.Addr().String()}
	go f.serve(l)
	out := json.NewEncoder(stdout)
	if err := out.Encode(fieldAnswer{Provider: "http://" + f.address}); err != nil {
		return fmt.Errorf("tell the address: %w", err)
	}
	requests := json.NewDecoder(stdin)
	for {
		var r fieldRequest
		if err := requests.Decode(&r); err != nil {
			f.release()
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("read request: %w", err)
		}
		a, err := f.do(&r)
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
}

func serveProxy(ctx context.Context, to string, stdin io.Reader, stdout io.Writer) error {
	target, err := url.Parse(to)
	if err != nil {
		return fmt.Errorf("start proxy: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("start proxy: %w", err)
	}
	s := &http.Server{Handler: &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true},
	}}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	if err := json.NewEncoder(stdout).Encode(fieldAnswer{Provider: "http://" + l.Addr().String()}); err != nil {
		return fmt.Errorf("tell the address: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(io.Discard, stdin)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	err = s.Close()
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// field is the provider and the open streams.
type field struct {
	address string

	mu   sync.Mutex
	held []net.Conn // guarded by mu
}

// serve answers connections until the listener is closed.
func (f *field) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go f.converse(c)
	}
}

var (
	markStream = []byte(`"stream":true`)
	markHold   = []byte(`hold-this-open`)
)

// converse answers requests one after the other.
func (f *field) converse(c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(c, 32<<10)
	var body bytes.Buffer
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		body.Reset()
		if _, err := body.ReadFrom(req.Body); err != nil {
			return
		}
		b := body.Bytes()
		messages := strings.HasSuffix(req.URL.Path, "/messages")
		switch stream := bytes.Contains(b, markStream); {
		case !stream && messages:
			_, err = c.Write(plainMessages)
		case !stream:
			_, err = c.Write(plainChat)
		default:
			events := chatEvents
			if messages {
				events = messagesEvents
			}
			err = pace(c, r, events, b)
		}
		if err != nil {
			return
		}
	}
}

const plainHead = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Request-Id: req_field\r\nContent-Length: "

var (
	plainChat = wholeAnswer(`{"id":"chatcmpl-field","object":"chat.completion","created":1795521600,"model":"field","choices":[{"index":0,"message":{"role":"assistant","content":"` +
		strings.Repeat("tok ", fieldTokens) + `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":20,"total_tokens":32}}`)
	plainMessages = wholeAnswer(`{"id":"msg_field","type":"message","role":"assistant","model":"field","content":[{"type":"text","text":"` +
		strings.Repeat("tok ", fieldTokens) + `"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":12,"output_tokens":20}}`)
	chatEvents     = newChatEvents()
	messagesEvents = newMessagesEvents()
)

func wholeAnswer(body string) []byte {
	return []byte(plainHead + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}

// chunk returns text encoded as one chunk of a body.
func chunk(text string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(text), text) }

const streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Request-Id: req_field\r\nTransfer-Encoding: chunked\r\n\r\n"

// newChatEvents returns 24 events: the role, twenty tokens, an empty delta, the end,
// the usage.
func newChatEvents() [][]byte {
	event := func(inside string) []byte {
		return chunk(`data: {"id":"chatcmpl-field","object":"chat.completion.chunk","created":1795521600,"model":"field",` + inside + "}\n\n")
	}
	events := [][]byte{event(`"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]`)}
	for range fieldTokens {
		events = append(events, event(`"choices":[{"index":0,"delta":{"content":"tok "},"finish_reason":null}]`))
	}
	return append(events,
		event(`"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]`),
		event(`"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]`),
		append(event(`"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":20,"total_tokens":32}`), chunk("data: [DONE]\n\n")...))
}

// newMessagesEvents are 25.
func newMessagesEvents() [][]byte {
	event := func(kind, inside string) []byte {
		return chunk("event: " + kind + "\ndata: {\"type\":\"" + kind + "\"" + inside + "}\n\n")
	}
	events := [][]byte{
		event("message_start", `,"message":{"id":"msg_field","type":"message","role":"assistant","model":"field","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":12,"output_tokens":1}}`),
		event("content_block_start", `,"index":0,"content_block":{"type":"text","text":""}`),
	}
	for range fieldTokens {
		events = append(events, event("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":"tok "}`))
	}
	return append(events, event("content_block_stop", `,"index":0`),
		event("message_delta", `,"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":20}`),
		event("message_stop", ""))
}

var markPace = []byte(`pace=`)

// pace writes a stream: everything up to the first token at once, and then an event
// each "pace=" milliseconds, a number in the prompt. A held stream stops after the
// first token.
func pace(c net.Conn, r *bufio.Reader, events [][]byte, body []byte) error {
	first := 2 // events up to the first token
	if len(events) > 24 {
		first = 3
	}
	if _, err := c.Write(slices.Concat([]byte(streamHead), slices.Concat(events[:first]...))); err != nil {
		return err
	}
	if bytes.Contains(body, markHold) {
		if _, err := r.Peek(1); err != nil { // until the gateway ends it
			return err
		}
		return errors.New("a request on a stream that has not ended")
	}
	every := time.Millisecond
	if i := bytes.Index(body, markPace); i >= 0 {
		ms := 0
		for _, d := range body[i+len(markPace):] {
			if d < '0' || d > '9' {
				break
			}
			ms = ms*10 + int(d-'0')
		}
		every *= time.Duration(ms)
	}
	tick := time.NewTicker(max(every, time.Microsecond))
	defer tick.Stop()
	for _, e := range events[first:] {
		<-tick.C
		if _, err := c.Write(e); err != nil {
			return err
		}
	}
	_, err := io.WriteString(c, "0\r\n\r\n")
	return err
}

// do carries out a request with the clients.
func (f *field) do(r *fieldRequest) (fieldAnswer, error) {
	at := f.address
	if r.URL != "" {
		u, err := url.Parse(r.URL)
		if err != nil {
			return fieldAnswer{}, err
		}
		at = u.Host
	}
	request := r.bytes(at)
	switch r.Do {
	case "call":
		return call(r, at, request)
	case "hold":
		return fieldAnswer{Calls: r.C}, f.hold(r, at, request)
	case "release":
		f.release()
		return fieldAnswer{}, nil
	}
	return fieldAnswer{}, fmt.Errorf("there is nothing called %q to do", r.Do)
}

// bytes returns the request as it is sent.
func (r *fieldRequest) bytes(at string) []byte {
	text := fmt.Sprintf("Say something. pace=%d ", r.Pace)
	if r.Do == "hold" {
		text += string(markHold) + " "
	}
	for len(text) < r.Prompt {
		text += "The quick brown fox jumps over the lazy dog and counts the letters of it. "
	}
	stream := ""
	if r.Stream {
		stream = `,"stream":true`
		if strings.HasSuffix(r.Path, "/completions") {
			stream += `,"stream_options":{"include_usage":true}`
		}
	}
	body := fmt.Sprintf(`{"model":%q,"max_tokens":64,"messages":[{"role":"user","content":%q}]%s}`, r.Model, text, stream)
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", r.Path, at, len(body))
	for name, v := range r.Head {
		fmt.Fprintf(&b, "%s: %s\r\n", name, v)
	}
	b.WriteString("\r\n" + body)
	return b.Bytes()
}

// seen is one call.
type seenCall struct{ whole, first time.Duration }

// call runs C clients for a time, each on its own connection, starting one after the
// other. It waits for calls that began in time.
func call(r *fieldRequest, at string, request []byte) (fieldAnswer, error) {
	begun := time.Now()
	end := begun.Add(time.Duration(r.Seconds * float64(time.Second)))
	stagger := time.Duration(0)
	if r.Stream {
		stagger = time.Duration(24*r.Pace) * time.Millisecond / time.Duration(r.C)
	}
	seen, errs := make([][]seenCall, r.C), make([]error, r.C)
	var clients sync.WaitGroup
	for i := range r.C {
		clients.Go(func() {
			wait := time.NewTimer(time.Duration(i) * stagger)
			<-wait.C
			seen[i], errs[i] = oneClient(at, request, r.Stream, end)
		})
	}
	clients.Wait()
	all := slices.Concat(seen...)
	a := fieldAnswer{Calls: len(all), Seconds: time.Since(begun).Seconds()}
	if err := errors.Join(errs...); err != nil {
		return a, err
	}
	if len(all) == 0 {
		return a, errors.New("there was no time for a call")
	}
	a.P50 = middle(all, func(s seenCall) time.Duration { return s.whole })
	a.First = middle(all, func(s seenCall) time.Duration { return s.first })
	return a, nil
}

// middle returns a median in milliseconds.
func middle(all []seenCall, of func(seenCall) time.Duration) float64 {
	values := make([]time.Duration, len(all))
	for i, s := range all {
		values[i] = of(s)
	}
	slices.Sort(values)
	return float64(values[len(values)/2]) / float64(time.Millisecond)
}

// oneClient makes calls until end. When a gateway closes a connection between two
// calls, as it may, oneClient opens another one.
func oneClient(at string, request []byte, stream bool, end time.Time) (all []seenCall, err error) {
	body := make([]byte, 64<<10)
	for {
		n := len(all)
		all, err = oneConnection(at, request, body, stream, end, all)
		if !errors.Is(err, errClosed) || len(all) == n {
			return all, err
		}
	}
}

var errClosed = errors.New("the gateway closed the connection instead of answering")

func oneConnection(at string, request, body []byte, stream bool, end time.Time, all []seenCall) ([]seenCall, error) {
	c, err := net.Dial("tcp", at)
	if err != nil {
		return all, err
	}
	defer c.Close()
	in := bufio.NewReaderSize(c, 32<<10)
	for {
		sent := time.Now()
		if sent.After(end) {
			return all, nil
		}
		if _, err := c.Write(request); err != nil {
			return all, fmt.Errorf("%w: %w", errClosed, err)
		}
		if _, err := in.Peek(1); err != nil {
			return all, fmt.Errorf("%w: %w", errClosed, err)
		}
		s, err := oneAnswer(in, body, stream, sent)
		if err != nil {
			return all, err
		}
		all = append(all, s)
	}
}

// oneAnswer reads an answer, and checks that all of it came.
func oneAnswer(in *bufio.Reader, buf []byte, stream bool, sent time.Time) (s seenCall, err error) {
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return s, fmt.Errorf("read answer: %w", err)
	}
	n := 0
	for {
		m, err := resp.Body.Read(buf[n:])
		if n += m; s.first == 0 && bytes.Contains(buf[:n], []byte("tok ")) {
			s.first = time.Since(sent)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return s, fmt.Errorf("read answer: %w", err)
		}
		if n == len(buf) {
			return s, errors.New("an answer is too long")
		}
	}
	s.whole = time.Since(sent)
	got := bytes.Count(buf[:n], []byte("tok "))
	ended := !stream || bytes.Contains(buf[:n], []byte("[DONE]")) || bytes.Contains(buf[:n], []byte("message_stop"))
	if resp.StatusCode != http.StatusOK || got != fieldTokens || !ended {
		return s, fmt.Errorf("the answer is %s with %d tokens: %.300s", resp.Status, got, buf[:n])
	}
	return s, nil
}

// hold opens streams and waits for their first token.
func (f *field) hold(r *fieldRequest, at string, request []byte) error {
	for range r.C {
		c, err := net.Dial("tcp", at)
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.held = append(f.held, c)
		f.mu.Unlock()
		if _, err := c.Write(request); err != nil {
			return err
		}
		in := bufio.NewReaderSize(c, 4<<10)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			return fmt.Errorf("open a stream: %w", err)
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("open a stream: %s", resp.Status)
		}
		var text []byte
		for buf := make([]byte, 1024); !bytes.Contains(text, []byte("tok ")); {
			n, err := resp.Body.Read(buf)
			if text = append(text, buf[:n]...); err != nil {
				return fmt.Errorf("open a stream: %w after %.200s", err, text)
			}
		}
	}
	return nil
}

func (f *field) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.held {
		c.Close() // its stream has not ended
	}
	f.held = nil
}
