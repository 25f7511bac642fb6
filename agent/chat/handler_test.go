package chat_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/agent/chat"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/workflowtest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// answer writes the answer of a step that asks a model, for one attempt.
type answer func(ctx context.Context, call agent.Call, say func(chunks ...string) error) error

// talk is a workflow that writes to the stream like an agent.
func talk(a answer) *workflow.Definition[agent.Call, string] {
	return workflow.Define("talk", func(ctx workflow.Context, call agent.Call) (string, error) {
		_, err := workflow.Do(ctx, "model", func(ctx context.Context) (string, error) {
			w := workflow.Stream[json.RawMessage](ctx, agent.StreamName)
			return "", a(ctx, call, func(chunks ...string) error {
				for _, c := range chunks {
					c = strings.Replace(c, "STEP", workflow.StepInfo(ctx).StepID, 1)
					if err := w.Send(json.RawMessage(c)); err != nil {
						return err
					}
				}
				return nil
			})
		}, workflow.Retry(workflow.RetryPolicy{Initial: time.Millisecond}), workflow.MaxRetries(2))
		return "", err
	})
}

// scene is a program that serves chats.
type scene struct {
	t   *testing.T
	kit *workflowtest.Kit
	url string // of the handler
}

func newScene(t *testing.T, o chat.Options, a answer) *scene {
	t.Helper()
	return newSceneAt(t, "", o, a)
}

func newSceneAt(t *testing.T, path string, o chat.Options, a answer) *scene {
	t.Helper()
	def := talk(a)
	kit := workflowtest.New(t, workflowtest.Options{Path: path, Worker: func(c *workflow.WorkerConfig) { c.StopTimeout = time.Millisecond }}, def)
	srv := httptest.NewServer(chat.Handler(kit.Client, def, o))
	t.Cleanup(srv.Close)
	return &scene{t: t, kit: kit, url: srv.URL + "/api/chat"}
}

// page is a connection of a page.
type page struct {
	*http.Response
	t     *testing.T
	lines *bufio.Reader
}

func (s *scene) do(method, path, body string, header ...string) *page {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	s.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	return &page{resp, s.t, bufio.NewReader(resp.Body)}
}

func (s *scene) get(run string, from any) *page {
	s.t.Helper()
	return s.do("GET", fmt.Sprintf("/%s/stream?startIndex=%v", run, from), "")
}

func (p *page) run() string { return p.Header.Get("x-workflow-run-id") }

// next is the next line that is not empty; "" at the end.
func (p *page) next() string {
	for {
		line, err := p.lines.ReadString('\n')
		if errors.Is(err, io.EOF) && line == "" {
			return ""
		}
		if err != nil {
			return "broken off: " + err.Error()
		}
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			return line
		}
	}
}

// chunk is the next chunk.
func (p *page) chunk() string {
	for {
		line := p.next()
		if data, ok := strings.CutPrefix(line, "data: "); ok || line == "" {
			return data
		} else if !strings.HasPrefix(line, ":") {
			return line
		}
	}
}

// rest is all chunks that come.
func (p *page) rest() []string {
	var all []string
	for c := p.chunk(); c != ""; c = p.chunk() {
		all = append(all, c)
		if strings.HasPrefix(c, "broken off") {
			break
		}
	}
	return all
}

func (p *page) wantStatus(status int, words string) {
	p.t.Helper()
	body, _ := io.ReadAll(p.Body)
	if p.StatusCode != status || !strings.Contains(string(body), words) {
		p.t.Errorf("answered %d %s, want %d with %q", p.StatusCode, body, status, words)
	}
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// ask is a POST of a user who says a text.
func ask(text string) string {
	return fmt.Sprintf(`{"id":"c1","trigger":"submit-message","messages":[{"id":"m-%s","role":"user","parts":[{"type":"text","text":%q}]}]}`, text, text)
}

const (
	start  = `{"type":"start","messageId":"a1"}`
	step   = `{"type":"start-step"}`
	begin  = `{"type":"text-start","id":"0"}`
	end    = `{"type":"text-end","id":"0"}`
	over   = `{"type":"finish-step"}`
	finish = `{"type":"finish"}`
	skip   = `{"type":"data-skip","data":null,"transient":true}`
	done   = "[DONE]"

	stepOfRun = `{"type":"start-step","step":"STEP"}`
)

func word(s string) string { return fmt.Sprintf(`{"type":"text-delta","id":"0","delta":%q}`, s) }

// hello is an answer without trouble.
func hello(_ context.Context, _ agent.Call, say func(...string) error) error {
	return say(start, stepOfRun, begin, word("Hel"), word("lo"), end, over, finish)
}

var helloChunks = []string{start, step, begin, word("Hel"), word("lo"), end, over, finish}

func TestHandler_StreamsAnAnswer(t *testing.T) {
	t.Parallel()
	heard := make(chan agent.Call, 1)
	s := newScene(t, chat.Options{}, func(ctx context.Context, call agent.Call, say func(...string) error) error {
		heard <- call
		return hello(ctx, call, say)
	})
	p := s.do("POST", "", ask("Hi"))
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream", "X-Vercel-Ai-Ui-Message-Stream": "v1", "X-Workflow-Stream-Tail-Index": "-1",
		"Cache-Control": "no-cache, no-transform",
	} {
		if got := p.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	same(t, "the page got", p.rest(), append(slices.Clone(helloChunks), done))
	call := <-heard
	if len(call.Messages) != 1 || call.Messages[0].Role != agent.User || call.Messages[0].Parts[0].Text != "Hi" || call.MessageID != "" {
		t.Errorf("the run was called with %+v", call)
	}
	run, err := s.kit.Client.Get(t.Context(), p.run())
	if err != nil || run.Attributes[chat.AttributeChat] != "c1" || run.Attributes[chat.AttributeHandler] != "talk" {
		t.Errorf("the run is %+v, %v", run, err)
	}
}

// Chunks arrive as soon as they are written, with comments in pauses.
func TestHandler_WordByWordWithHeartbeats(t *testing.T) {
	t.Parallel()
	more := make(chan string)
	s := newScene(t, chat.Options{Heartbeat: 20 * time.Millisecond}, func(_ context.Context, _ agent.Call, say func(...string) error) error {
		for c := range more {
			if err := say(c); err != nil {
				return err
			}
		}
		return nil
	})
	p := s.do("POST", "", ask("Hi"))
	for _, c := range []string{start, begin, word("a")} {
		more <- c
		if got := p.chunk(); got != c {
			t.Fatalf("got %s, want %s", got, c)
		}
	}
	for range 3 {
		if got := p.next(); got != ": " {
			t.Fatalf("got %q where only comments were to be", got)
		}
	}
	more <- finish
	close(more)
	same(t, "the rest", p.rest(), []string{finish, done})
}

// A page that leaves does not end the run; it can resume, and others can read
// meanwhile.
func TestHandler_LeaveAndComeBack(t *testing.T) {
	t.Parallel()
	more := make(chan struct{})
	s := newScene(t, chat.Options{}, func(_ context.Context, _ agent.Call, say func(...string) error) error {
		if err := say(helloChunks[:4]...); err != nil {
			return err
		}
		<-more
		return say(helloChunks[4:]...)
	})
	first := s.do("POST", "", ask("Hi"))
	run := first.run()
	for _, want := range helloChunks[:4] {
		if got := first.chunk(); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	first.Body.Close()

	second, byChat := s.get(run, 4), s.do("GET", "/c1/stream", "")
	if got := second.Header.Get("x-workflow-stream-tail-index"); got != "3" {
		t.Errorf("the tail is at %s, want 3", got)
	}
	close(more)
	same(t, "from where it was", second.rest(), append(slices.Clone(helloChunks[4:]), done))
	same(t, "the chat's", byChat.rest(), append(slices.Clone(helloChunks), done))
	var readers sync.WaitGroup
	for from := range len(helloChunks) {
		readers.Go(func() {
			same(t, fmt.Sprint("after the end, from ", from), s.get(run, from).rest(), append(slices.Clone(helloChunks[from:]), done))
		})
	}
	readers.Wait()
	same(t, "from its end on", s.get(run, len(helloChunks)).rest(), []string{finish, done})
	if got := s.do("GET", "/c1/stream", ""); got.StatusCode != http.StatusNoContent {
		t.Errorf("a chat in which nothing goes on: %d, want 204", got.StatusCode)
	}
}

func TestHandler_StartIndex(t *testing.T) {
	t.Parallel()
	more := make(chan struct{})
	s := newScene(t, chat.Options{}, func(_ context.Context, _ agent.Call, say func(...string) error) error {
		if err := say(start, step, begin, word("Hel"), `{"type":"tool-input-start","toolCallId":"k","toolName":"f"}`); err != nil {
			return err
		}
		<-more
		return say(word("lo"), end, `{"type":"tool-output-available","toolCallId":"k","output":1}`, `{"type":"text-start","id":"1"}`, finish)
	})
	p := s.do("POST", "", ask("Hi"))
	for range 5 {
		p.chunk()
	}
	// A reader that begins in the middle gets no chunks of parts whose beginning it
	// has not seen.
	middle := s.get(p.run(), -2)
	if got := middle.Header.Get("x-workflow-stream-tail-index"); got != "4" {
		t.Errorf("the tail is at %s, want 4", got)
	}
	s.get(p.run(), 6).wantStatus(400, "startIndex is 6, and the stream has 5 chunks")
	s.get(p.run(), "x").wantStatus(400, "startIndex is \\\"x\\\"")
	s.get(p.run(), "99999999999999999999").wantStatus(400, "startIndex")
	s.get(p.run(), "9223372036854775807").wantStatus(400, "the stream has 5 chunks")
	if all := s.get(p.run(), "-9223372036854775808"); all.StatusCode != 200 {
		t.Errorf("from far before the first: %d", all.StatusCode)
	}
	close(more)
	same(t, "from the last but one", middle.rest(), []string{
		skip, `{"type":"tool-input-start","toolCallId":"k","toolName":"f"}`, skip, skip,
		`{"type":"tool-output-available","toolCallId":"k","output":1}`, `{"type":"text-start","id":"1"}`, finish, done,
	})
	same(t, "from before the first", s.get(p.run(), -1000).rest(), append(p.prefixOf(s), done))
	s.get(p.run(), 1_000_000).wantStatus(200, finish)
}

// prefixOf returns the whole stream, read from its beginning.
func (p *page) prefixOf(s *scene) []string {
	all := s.get(p.run(), 0).rest()
	return all[:len(all)-1]
}

// Different readers of an answer that is given again.
func TestHandler_AnswerGivenAgain(t *testing.T) {
	t.Parallel()
	for _, mode := range []struct {
		name string
		o    chat.Options
		tell string
	}{
		{"reset-step", chat.Options{ResetStep: true}, `{"type":"reset-step"}`},
		{"data", chat.Options{}, `{"type":"data-reset-step","data":null,"transient":true}`},
	} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			attempt, more := 0, make(chan struct{})
			s := newScene(t, mode.o, func(_ context.Context, _ agent.Call, say func(...string) error) error {
				attempt++
				switch attempt {
				case 1:
					if err := say(start, stepOfRun, begin, word("Bad")); err != nil {
						return err
					}
					<-more
					return errors.New("the model broke off")
				case 2:
					if err := say(stepOfRun, begin); err != nil {
						return err
					}
					return errors.New("again")
				}
				return say(stepOfRun, begin, word("Good"), end, over, finish)
			})
			live := s.do("POST", "", ask("Hi"))
			for _, want := range []string{start, step, begin, word("Bad")} {
				if got := live.chunk(); got != want {
					t.Fatalf("got %s, want %s", got, want)
				}
			}
			close(more)
			good := []string{begin, word("Good"), end, over, finish, done}
			same(t, "who was there", live.rest(), slices.Concat([]string{mode.tell, begin, mode.tell}, good))
			for from, want := range [][]string{
				0: {start, step, skip, skip, skip, skip, skip},
				1: {step, skip, skip, skip, skip, skip},
				2: {skip, skip, skip, skip, skip}, // has only the beginning of the step
				3: {skip, skip, skip, mode.tell},  // has begun to hear
				5: {skip, mode.tell},
				7: {},
			} {
				if want != nil {
					same(t, fmt.Sprint("who comes back at ", from), s.get(live.run(), from).rest(), slices.Concat(want, good))
				}
			}
			// A new reader that begins in the middle of the failed attempt.
			same(t, "the last eight chunks", s.get(live.run(), -8).rest(), slices.Concat([]string{skip, skip, step}, good))
		})
	}
}

func TestHandler_FailedRunHasAnEnd(t *testing.T) {
	t.Parallel()
	s := newScene(t, chat.Options{}, func(_ context.Context, _ agent.Call, say func(...string) error) error {
		return errors.Join(say(start, stepOfRun), workflow.Fatal(errors.New("secret")))
	})
	p := s.do("POST", "", ask("Hi"))
	failed := `{"type":"error","errorText":"The answer could not be finished."}`
	same(t, "the page got", p.rest(), []string{start, step, failed, finish, done})
	same(t, "at the end", s.get(p.run(), 2).rest(), []string{failed, finish, done})
	same(t, "behind the error", s.get(p.run(), 3).rest(), []string{finish, done})
	same(t, "behind it all", s.get(p.run(), 4).rest(), []string{finish, done})
	// A run that failed is started again.
	again := s.do("POST", "", ask("Hi"))
	if again.run() == p.run() {
		t.Error("the run that failed was given as the answer")
	}
	again.rest()
}

func TestHandler_Cancel(t *testing.T) {
	t.Parallel()
	s := newScene(t, chat.Options{}, func(ctx context.Context, _ agent.Call, say func(...string) error) error {
		if err := say(start, stepOfRun); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	})
	p := s.do("POST", "", ask("Hi"))
	p.chunk()
	p.chunk()
	s.do("DELETE", "/c1", "").wantStatus(http.StatusNoContent, "")
	same(t, "the rest", p.rest(), []string{`{"type":"abort","reason":"stopped"}`, finish, done})
	s.do("DELETE", "/"+p.run(), "").wantStatus(http.StatusNoContent, "")
}

// A message is answered once, however often it is sent, and again if the page asks
// for a new answer.
func TestHandler_SentTwice(t *testing.T) {
	t.Parallel()
	more := make(chan struct{}, 10)
	s := newScene(t, chat.Options{}, func(ctx context.Context, call agent.Call, say func(...string) error) error {
		<-more
		return hello(ctx, call, say)
	})
	first, twice := s.do("POST", "", ask("Hi")), s.do("POST", "", ask("Hi"))
	other := s.do("POST", "", ask("Ho"))
	if first.run() != twice.run() || first.run() == other.run() {
		t.Errorf("runs %s, %s and %s", first.run(), twice.run(), other.run())
	}
	more <- struct{}{}
	more <- struct{}{}
	same(t, "the second", twice.rest(), first.rest())
	other.rest()
	if late := s.do("POST", "", ask("Hi")); late.run() != first.run() {
		t.Error("sent again after the end, it was answered again")
	}

	regenerate := strings.Replace(ask("Hi"), "submit-message", "regenerate-message", 1)
	one, two := s.do("POST", "", regenerate), s.do("POST", "", regenerate)
	more <- struct{}{}
	one.rest()
	three := s.do("POST", "", regenerate)
	more <- struct{}{}
	if one.run() != two.run() || one.run() == first.run() || three.run() == one.run() {
		t.Errorf("answered anew by %s, %s (at the same time) and %s (later)", one.run(), two.run(), three.run())
	}
	three.rest()

	// An approval changes the content of the last message, not its id.
	approve := func(yes bool) string {
		return fmt.Sprintf(`{"id":"c1","messages":[{"id":"a1","role":"assistant","parts":[{"type":"tool-f","toolCallId":"k","state":"approval-responded","input":{},"approval":{"id":"approval-k","approved":%v}}]}]}`, yes)
	}
	yes, no := s.do("POST", "", approve(true)), s.do("POST", "", approve(false))
	if yes.run() == no.run() {
		t.Error("a denial was taken for the approval")
	}
	more <- struct{}{}
	more <- struct{}{}
}

// Without the chat's id, as WorkflowChatTransport sends requests, the ids of messages
// identify a repeated request until the message is answered: after that it may be a
// regenerate().
func TestHandler_SentTwiceWithoutChat(t *testing.T) {
	t.Parallel()
	more := make(chan struct{}, 10)
	s := newScene(t, chat.Options{}, func(ctx context.Context, call agent.Call, say func(...string) error) error {
		<-more
		return hello(ctx, call, say)
	})
	body := func(ids ...string) string {
		var all []string
		for _, id := range ids {
			all = append(all, fmt.Sprintf(`{"id":%q,"role":"user","parts":[{"type":"text","text":"Hi"}]}`, id))
		}
		return `{"messages":[` + strings.Join(all, ",") + `]}`
	}
	first, twice := s.do("POST", "", body("m1")), s.do("POST", "", body("m1"))
	others := []*page{s.do("POST", "", body("m2")), s.do("POST", "", body("m2", "m1")), s.do("POST", "", body("")), s.do("POST", "", body(""))}
	if first.run() != twice.run() {
		t.Errorf("runs %s and %s for what was sent twice", first.run(), twice.run())
	}
	runs := map[string]bool{first.run(): true}
	for _, p := range others {
		runs[p.run()] = true
	}
	if len(runs) != 5 {
		t.Errorf("5 different things were answered by %d runs", len(runs))
	}
	for range 5 {
		more <- struct{}{}
	}
	for _, p := range append(others, first, twice) {
		same(t, "the page got", p.rest(), append(slices.Clone(helloChunks), done))
	}
	if again := s.do("POST", "", body("m1")); runs[again.run()] {
		t.Error("regenerate() has got the answer there was")
	}
	more <- struct{}{}
}

// A question is answered once: the same answer again joins the run that got the
// answer, in its own chat, and any other answer is refused; also after a restart.
func TestHandler_AnswersOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "runs.db")
	var conversations sync.Map
	answer := func(_ context.Context, call agent.Call, say func(...string) error) error {
		conversations.Store(call.Conversation, true)
		return errors.Join(say(start, stepOfRun, finish), workflow.Fatal(errors.New("it failed after the tool was executed")))
	}
	s := newSceneAt(t, path, chat.Options{}, answer)
	question := func(id string) string { return "v2.1700000000." + strings.Repeat(id, 22) + ".AAAA" }
	part := func(call, question string, approved bool) string {
		return fmt.Sprintf(`{"type":"tool-f","toolCallId":%q,"state":"approval-responded","input":{},"approval":{"id":"approval-%s","approved":%v,"signature":%q}}`, call, call, approved, question)
	}
	body := func(chat string, parts ...string) string {
		return fmt.Sprintf(`{"id":%q,"messages":[{"id":"a1","role":"assistant","parts":[%s]}]}`, chat, strings.Join(parts, ","))
	}
	yes := part("k", question("q"), true)
	first := s.do("POST", "", body("c1", yes))
	first.rest()
	again := func(when string, s *scene) {
		t.Helper()
		if got := s.do("POST", "", body("c1", yes)); got.run() != first.run() {
			t.Errorf("%s: the run that has failed is %s, and that of the same answer %s", when, first.run(), got.run())
		}
		if got := s.do("POST", "", body("c1", `{"type":"text","text":"More."}`, yes)); got.run() != first.run() {
			t.Errorf("%s: the same answer, in another message, is run %s", when, got.run())
		}
		s.do("POST", "", body("c1", part("k", question("q"), false))).wantStatus(403, "answered before, and otherwise")
		s.do("POST", "", body("c1", yes, part("l", question("q"), true))).wantStatus(403, "answered before, and otherwise")
		s.do("POST", "", body("c1", yes, part("l", question("r"), true))).wantStatus(403, "questions of several answers")
	}
	again("at once", s)
	stuck := s.do("POST", "", body("c2", yes)) // another chat: the agent refuses it, for it is another conversation
	stuck.rest()
	if stuck.run() == first.run() {
		t.Error("another chat joins the answer")
	}
	s.kit.Close()
	restarted := newSceneAt(t, path, chat.Options{}, answer)
	again("after a restart", restarted)
	restarted.do("POST", "", body("c1", part("k", question("s"), true))).rest() // another question
	n := 0
	conversations.Range(func(c, _ any) bool {
		n++
		return len(c.(string)) > 20
	})
	if n != 2 {
		t.Errorf("two chats are %d conversations", n)
	}
}

// All parts of a page's request are bounded, and bodies that are not read cost
// nothing.
func TestHandler_BoundsOfBodies(t *testing.T) {
	t.Parallel()
	s := newScene(t, chat.Options{}, hello)
	message := func(parts string) string {
		return `{"id":"c1","messages":[{"id":"m","role":"user","parts":` + parts + `}]}`
	}
	deep := strings.Repeat(`[{"type":"steering-message","parts":`, 2000) + "[]" + strings.Repeat("}]", 2000)
	for name, c := range map[string]struct{ body, words string }{
		"many messages":          {`{"messages":[` + strings.Repeat("{},", 1_000_000) + `{}]}`, "more than 10000 messages"},
		"many parts":             {message("[" + strings.Repeat("{},", 1_000_000) + "{}]"), "more than 50000 parts"},
		"many parts of parts":    {message(`[{"type":"steering-message","parts":[` + strings.Repeat("{},", 1_000_000) + "{}]}]"), "more than 50000 parts"},
		"many parts in messages": {`{"messages":[` + strings.Repeat(`{"role":"user","parts":[`+strings.Repeat("{},", 99)+`{}]},`, 501) + `{}]}`, "more than 50000 parts"},
		"deep parts":             {message(deep), "is a part of a part"},
		"no array":               {message(`{"a":1}`), "are arrays"},
		"a part that is none":    {message(`[1]`), "messages[0].parts[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			before := time.Now()
			p := s.do("POST", "", c.body)
			p.t = t
			p.wantStatus(400, c.words)
			if d := time.Since(before); d > time.Minute { // moments, but on a busy machine
				t.Errorf("it took %v", d)
			}
		})
	}
}

// A run has a limited number of readers; other runs can be read meanwhile.
func TestHandler_MaxReadersOfRun(t *testing.T) {
	t.Parallel()
	more := make(chan struct{})
	s := newScene(t, chat.Options{MaxReadersOfRun: 3}, func(ctx context.Context, call agent.Call, say func(...string) error) error {
		<-more
		return hello(ctx, call, say)
	})
	first := s.do("POST", "", ask("Hi"))
	readers := []*page{first, s.get(first.run(), 0), s.get("c1", 0)}
	s.get(first.run(), 0).wantStatus(503, "too many readers of this answer")
	other := s.do("POST", "", ask("Ho"))
	close(more)
	for _, p := range append(readers, other) {
		same(t, "a reader got", p.rest(), append(slices.Clone(helloChunks), done))
	}
}

// A reader that does not receive is cut off, and makes room; the run goes on.
func TestHandler_ReaderThatDoesNotRead(t *testing.T) {
	t.Parallel()
	o := chat.Options{MaxReaders: 1}
	o.WriteTimeout(3 * time.Second)
	big := word(strings.Repeat("x", 64<<10))
	said := make(chan struct{})
	s := newScene(t, o, func(_ context.Context, _ agent.Call, say func(...string) error) error {
		defer close(said)
		return say(append(append([]string{start, begin}, slices.Repeat([]string{big}, 100)...), end, finish)...)
	})
	conn, err := net.Dial("tcp", strings.TrimPrefix(strings.TrimSuffix(s.url, "/api/chat"), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil { // little is under way then
		t.Fatal(err)
	}
	body := ask("Hi")
	if _, err := fmt.Fprintf(conn, "POST /api/chat HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	<-said
	next := s.do("POST", "", body)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for last := time.After(time.Minute); next.StatusCode != http.StatusOK; next = s.do("POST", "", body) {
		select {
		case <-again.C:
		case <-last:
			t.Fatalf("who does not read is still there: %s", next.Status)
		}
	}
	if all := next.rest(); len(all) != 105 || all[104] != done {
		t.Errorf("who came then got %d chunks, %s", len(all), all[len(all)-1])
	}
}

// Bodies that are read at one time are bounded together.
func TestHandler_BodiesTogether(t *testing.T) {
	t.Parallel()
	chat.TestBodies(t)
}

func TestHandler_GoesOnWithTheMessage(t *testing.T) {
	t.Parallel()
	heard := make(chan agent.Call, 1)
	s := newScene(t, chat.Options{Prepare: func(r *http.Request, q *chat.Request) error {
		var body struct{ Model string }
		if err := json.Unmarshal(q.Body, &body); err != nil {
			return err
		}
		if body.Model == "dear" {
			return cay.Errorf(cay.PermissionDenied, "not that one")
		}
		q.Call.Model = body.Model
		return nil
	}}, func(ctx context.Context, call agent.Call, say func(...string) error) error {
		heard <- call
		return hello(ctx, call, say)
	})
	body := `{"id":"c1","model":"cay/scripted","messages":[{"id":"a7","role":"assistant","parts":[{"type":"text","text":"And"}]}]}`
	s.do("POST", "", body).rest()
	if call := <-heard; call.MessageID != "a7" || call.Model != "cay/scripted" {
		t.Errorf("the run was called with %+v", call)
	}
	s.do("POST", "", strings.Replace(body, "cay/scripted", "dear", 1)).wantStatus(403, "not that one")
}

// A user finds only the runs that the user has started, with the handler that started
// them.
func TestHandler_OthersFindNothing(t *testing.T) {
	t.Parallel()
	refuse := false
	o := chat.Options{
		User: func(r *http.Request) (string, error) {
			if u := r.Header.Get("User"); u != "" {
				return u, nil
			}
			return "", cay.Errorf(cay.Unauthenticated, "who is this?")
		},
		Authorize: func(*http.Request, string) error {
			if refuse {
				return cay.Errorf(cay.PermissionDenied, "not now")
			}
			return nil
		},
	}
	more := make(chan struct{})
	s := newScene(t, o, func(ctx context.Context, call agent.Call, say func(...string) error) error {
		<-more
		return hello(ctx, call, say)
	})
	mine := s.do("POST", "", ask("Hi"), "User", "ann")
	theirs := s.do("POST", "", ask("Hi"), "User", "bob")
	if mine.run() == theirs.run() {
		t.Fatal("one run for two users who say the same")
	}
	s.do("POST", "", ask("Hi")).wantStatus(401, "who is this?")
	s.do("GET", "/"+mine.run()+"/stream", "").wantStatus(401, "who is this?")
	s.do("GET", "/"+mine.run()+"/stream", "", "User", "bob").wantStatus(404, "not found")
	s.do("DELETE", "/"+mine.run(), "", "User", "bob").wantStatus(404, "not found")
	s.do("GET", "/wrun_01ARZ3NDEKTSV4RRFFQ69G5FAV/stream", "", "User", "bob").wantStatus(404, "not found")
	s.do("GET", "/wrun_x/stream", "", "User", "bob").wantStatus(404, "not found")
	if byChat := s.do("GET", "/c1/stream", "", "User", "bob"); byChat.run() != theirs.run() {
		t.Errorf("bob's chat is run %s, want %s", byChat.run(), theirs.run())
	}
	if got := s.do("GET", "/c1/stream", "", "User", "eve"); got.StatusCode != 204 {
		t.Errorf("eve's chat: %d, want 204", got.StatusCode)
	}

	// WorkflowChatTransport would retry for ever after a 204.
	same(t, "nobody's chat", s.do("GET", "/c1/stream?startIndex=0", "", "User", "eve").rest(), []string{finish, done})

	// A run of the workflow that no chat has started is not found.
	direct, err := s.kit.Client.Start(t.Context(), "talk", agent.Call{Prompt: "Hi"})
	if err != nil {
		t.Fatal(err)
	}
	s.do("GET", "/"+direct.ID+"/stream", "", "User", "ann").wantStatus(404, "not found")
	s.do("DELETE", "/"+direct.ID, "", "User", "ann").wantStatus(404, "not found")

	otherName := chat.Handler(s.kit.Client, talk(hello), chat.Options{Name: "other"})
	rec := httptest.NewRecorder()
	otherName.ServeHTTP(rec, httptest.NewRequest("GET", "/api/chat/"+mine.run()+"/stream", nil))
	if rec.Code != 404 {
		t.Errorf("another handler found the run: %d", rec.Code)
	}

	refuse = true
	s.do("GET", "/"+mine.run()+"/stream", "", "User", "ann").wantStatus(403, "not now")
	s.do("POST", "", ask("Hi"), "User", "ann").wantStatus(403, "not now")
	refuse = false
	close(more)
	same(t, "what ann got", mine.rest(), append(slices.Clone(helloChunks), done))
}

func TestHandler_RefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := newScene(t, chat.Options{MaxBody: 4000}, hello)
	for name, c := range map[string]struct {
		body   string
		status int
		words  string
	}{
		"no JSON":          {`{`, 400, "the body is not the JSON of a chat"},
		"no messages":      {`{"id":"c1"}`, 400, "messages is empty"},
		"a string":         {`{"messages":["hi"]}`, 400, "messages[0]"},
		"null":             {`{"messages":[null]}`, 400, "messages[0].role"},
		"the role system":  {`{"messages":[{"role":"system","parts":[]}]}`, 400, "of the role system"},
		"AI SDK 4":         {`{"messages":[{"role":"user","content":"hi"}]}`, 400, "messages[0] has no parts"},
		"an unknown part":  {`{"messages":[{"role":"assistant","parts":[{"type":"dance"}]}]}`, 400, "messages[0].parts[0].type is \\\"dance\\\""},
		"the trigger":      {strings.Replace(ask("a"), "submit-message", "x", 1), 400, "trigger is"},
		"the id of a run":  {strings.Replace(ask("a"), `"c1"`, `"wrun_1"`, 1), 400, "id begins as the ids of runs do"},
		"a long id":        {strings.Replace(ask("a"), `"c1"`, `"`+strings.Repeat("c", 257)+`"`, 1), 400, "256 bytes"},
		"an address":       {`{"messages":[{"role":"user","parts":[{"type":"file","mediaType":"image/png","url":"file:///etc/passwd"}]}]}`, 400, "neither http, https nor data"},
		"a body too large": {ask(strings.Repeat("x", 4000)), 413, "more than 4000 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			p := s.do("POST", "", c.body)
			p.t = t
			p.wantStatus(c.status, c.words)
		})
	}
	runs, err := s.kit.Client.List(t.Context(), workflow.Query{})
	if err != nil || len(runs.Items) > 0 {
		t.Errorf("%d runs were started, %v", len(runs.Items), err)
	}
}

func TestHandler_MaxReaders(t *testing.T) {
	t.Parallel()
	more := make(chan struct{})
	s := newScene(t, chat.Options{MaxReaders: 1}, func(ctx context.Context, call agent.Call, say func(...string) error) error {
		<-more
		return hello(ctx, call, say)
	})
	p := s.do("POST", "", ask("Hi"))
	full := s.get(p.run(), 0)
	if full.Header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After is %q", full.Header.Get("Retry-After"))
	}
	full.wantStatus(503, "too many readers")
	// A reader that leaves makes room, as soon as the handler notices.
	p.Body.Close()
	var next *page
	for until := time.Now().Add(time.Minute); time.Now().Before(until); {
		if next = s.get(p.run(), 0); next.StatusCode == http.StatusOK {
			break
		}
	}
	close(more)
	same(t, "the next", next.rest(), append(slices.Clone(helloChunks), done))
}

// A handler with the key can read runs whose values are sealed.
func TestHandler_Sealed(t *testing.T) {
	t.Parallel()
	def := talk(hello)
	var key workflow.EncryptionKey
	kit := workflowtest.New(t, workflowtest.Options{Client: workflow.ClientOptions{Keys: []workflow.EncryptionKey{key}}}, def)
	srv := httptest.NewServer(chat.Handler(kit.Client, def, chat.Options{}))
	t.Cleanup(srv.Close)
	s := &scene{t: t, kit: kit, url: srv.URL + "/api/chat"}
	p := s.do("POST", "", ask("Hi"))
	same(t, "the page got", p.rest(), append(slices.Clone(helloChunks), done))
	same(t, "who comes back", s.get(p.run(), 4).rest(), append(slices.Clone(helloChunks[4:]), done))
}

// The program is restarted in the middle of an answer: readers that reconnect get the
// rest, and have the complete answer.
func TestHandler_ProgramStartsAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "runs.db")
	stuck := newSceneAt(t, path, chat.Options{ResetStep: true}, func(ctx context.Context, _ agent.Call, say func(...string) error) error {
		if err := say(start, stepOfRun, begin, word("Hel")); err != nil {
			return err
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	p := stuck.do("POST", "", ask("Hi"))
	for range 4 {
		p.chunk()
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		stuck.kit.Close()
	}()
	if got := p.rest(); len(got) != 1 || !strings.HasPrefix(got[0], "broken off") {
		t.Errorf("the connection ended with %q; it was to be broken, so that the page comes back", got)
	}
	<-closed

	again := newSceneAt(t, path, chat.Options{ResetStep: true}, func(_ context.Context, _ agent.Call, say func(...string) error) error {
		return say(stepOfRun, begin, word("Hello"), end, over, finish)
	})
	rest := []string{begin, word("Hello"), end, over, finish, done}
	same(t, "who comes back", again.get(p.run(), 4).rest(), append([]string{`{"type":"reset-step"}`}, rest...))
	same(t, "who reloads", again.get(p.run(), 0).rest(), append([]string{start, step, skip, skip, skip}, rest...))
}

// Errors have the status they have everywhere.
func TestHandler_Statuses(t *testing.T) {
	t.Parallel()
	for code, got := range chat.Statuses {
		if want := api.Status(code); got != want {
			t.Errorf("%s is answered with %d, and elsewhere with %d", code, got, want)
		}
	}
	s := newScene(t, chat.Options{User: func(*http.Request) (string, error) { return "", errors.New("a secret") }}, hello)
	p := s.do("POST", "", ask("Hi"))
	body, _ := io.ReadAll(p.Body)
	if p.StatusCode != 500 || strings.Contains(string(body), "secret") {
		t.Errorf("an error without a code: %d %s", p.StatusCode, body)
	}
}
