package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
)

// Handler serves chats that are answered by runs of a workflow: an agent's workflow
// (Agent.Workflow), or a workflow of the program that takes an agent.Call and lets an
// agent write the answer to the stream. A Worker executes the workflow, in this
// program or another.
//
// Errors before a stream begins are answered as cay's API does, {"error": {"code",
// "message"}}: invalid (400), unauthenticated (401), permission_denied (403),
// not_found (404), conflict (409), too_large (413), quota_exceeded (429), unavailable
// (503). A stream that cannot go on, because the daemon does not answer, say, is
// aborted (http.ErrAbortHandler), so that the page reconnects.
//
// Handler panics if Options.Remember is set and Out is not *agent.Result.
func Handler[Out any](client *workflow.Client, answer *workflow.Definition[agent.Call, Out], o Options) http.Handler {
	if _, ok := any(*new(Out)).(*agent.Result); o.Remember && !ok {
		panic(fmt.Sprintf("chat: the workflow %s does not return an *agent.Result, which Options.Remember reads", answer.Name()))
	}
	s := &server{
		client: client, workflow: answer.Name(), o: o.withDefaults(answer.Name()),
		start: func(r *http.Request, call agent.Call, opts []workflow.StartOption) (string, bool, error) {
			run, err := answer.Start(r.Context(), client, call, opts...)
			if err != nil {
				return "", false, err
			}
			return run.ID, run.Created, nil
		},
	}
	s.readers, s.reading = make(chan struct{}, s.o.MaxReaders), make(map[string]int)
	prefix := strings.TrimSuffix(s.o.Prefix, "/")
	mux := http.NewServeMux()
	start := prefix
	if start == "" {
		start = "/{$}"
	}
	mux.HandleFunc("POST "+start, s.handle(s.post))
	mux.HandleFunc("GET "+prefix+"/{id}/stream", s.handle(s.get))
	mux.HandleFunc("DELETE "+prefix+"/{id}", s.handle(s.cancel))
	return mux
}

type server struct {
	client   *workflow.Client
	workflow string
	o        Options
	start    func(r *http.Request, call agent.Call, opts []workflow.StartOption) (id string, created bool, err error)
	readers  chan struct{} // one for each connection
	bodies   bodies

	mu      sync.Mutex
	reading map[string]int // how many read a run. Guarded by mu.
}

// handle writes the error of f, or aborts the connection if the answer has begun.
func (s *server) handle(f func(w *response, r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.readers <- struct{}{}:
			defer func() { <-s.readers }()
		default:
			s.fail(w, r, cay.Errorf(cay.Unavailable, "there are too many readers"))
			return
		}
		out := &response{ResponseWriter: w, control: http.NewResponseController(w), timeout: s.o.writeTimeout}
		err := f(out, r)
		switch {
		case err == nil || r.Context().Err() != nil: // the client has left
		case out.begun:
			s.o.Logger.WarnContext(r.Context(), "a stream was broken off", "error", err)
			panic(http.ErrAbortHandler)
		default:
			s.fail(w, r, err)
		}
	}
}

// fail writes an error.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	code, words := cay.CodeOf(err), err.Error()
	number, known := status[code]
	if !known {
		s.o.Logger.ErrorContext(r.Context(), "a chat failed", "error", err)
		number, code, words = http.StatusInternalServerError, cay.Internal, "internal error"
	}
	header := w.Header()
	if code == cay.Unavailable {
		header.Set("Retry-After", "1")
	}
	header.Set("Content-Type", "application/json")
	w.WriteHeader(number)
	type body struct {
		Code    cay.Code `json:"code"`
		Message string   `json:"message"`
	}
	_ = json.NewEncoder(w).Encode(map[string]body{"error": {code, words}}) // the page may have left
}

func (s *server) user(r *http.Request) (string, error) {
	if s.o.User == nil {
		return "", nil
	}
	return s.o.User(r)
}

func (s *server) authorize(r *http.Request, run string) error {
	if s.o.Authorize == nil {
		return nil
	}
	return s.o.Authorize(r, run)
}

// post starts a run and streams it.
func (s *server) post(w *response, r *http.Request) error {
	user, err := s.user(r)
	if err != nil {
		return err
	}
	_ = w.control.SetReadDeadline(time.Now().Add(readTimeout)) // not all servers can
	body := &counted{Reader: r.Body, in: &s.bodies}
	run, err := s.answer(w, r, body, user)
	body.release()
	_ = w.control.SetReadDeadline(time.Time{})
	if err != nil {
		return err
	}
	return s.serve(w, r, run, 0)
}

// answer starts the run that answers a request, or finds it.
func (s *server) answer(w http.ResponseWriter, r *http.Request, body io.Reader, user string) (run string, err error) {
	q, err := readRequest(w, body, s.o.MaxBody)
	if err != nil {
		return "", err
	}
	if s.o.Remember {
		run, err = s.joined(r, q, user)
		if err != nil {
			return "", err
		}
		if run != "" {
			return run, s.authorize(r, run)
		}
		err = s.remember(r, q, user)
	} else {
		q.Call.Messages, err = Convert(q.Messages, s.o.Convert)
	}
	if err != nil {
		return "", err
	}
	q.Call.Conversation = q.conversation(s.o.Name, user)
	if last := q.last(); last.Role == agent.Assistant {
		q.Call.MessageID = last.ID // the answer goes on
	}
	if s.o.Prepare != nil {
		if err := s.o.Prepare(r, q); err != nil {
			return "", err
		}
	}
	run, created, err := s.startOnce(r, q, user)
	if err != nil || created {
		return run, err
	}
	return run, s.authorize(r, run)
}

// maxAnswers bounds how often one message is answered again.
const maxAnswers = 64

// startOnce starts the run that answers q, unless there is one: a POST that was sent
// again joins the run that the first has started. If that run failed, or the page asks
// for a message to be regenerated, a new run is started.
func (s *server) startOnce(r *http.Request, q *Request, user string) (id string, created bool, err error) {
	attributes := s.attributes(q, user)
	if s.o.Remember && q.last().Role == agent.User {
		attributes[AttributeMessage] = q.last().ID
	}
	question, answer, err := agent.Answers(q.Call.Messages)
	if err != nil {
		return "", false, err
	}
	if question != "" {
		attributes[AttributeAnswer] = answer
	}
	opts := append(q.StartOptions, workflow.WithAttributes(attributes))
	if question != "" {
		return s.startAnswer(r, q, append(opts, workflow.Key(q.answerKey(s.o.Name, user, question))), answer)
	}
	if !q.repeatable() {
		return s.start(r, q.Call, opts)
	}
	for n := range maxAnswers {
		id, created, err := s.start(r, q.Call, append(opts, workflow.Key(q.key(s.o.Name, user, n))))
		if err != nil || created {
			return id, created, err
		}
		run, err := s.client.Get(r.Context(), id)
		if err != nil {
			return "", false, err
		}
		if joins, err := s.joins(r, q, run); err != nil || joins {
			return id, false, err
		}
	}
	return "", false, cay.Errorf(cay.Conflict, "this message was answered %d times", maxAnswers)
}

// joins reports whether the run already answers the same request.
func (s *server) joins(r *http.Request, q *Request, run *workflow.RunInfo) (bool, error) {
	once := q.Trigger == SubmitMessage && q.ID != "" // or it may be asked for anew
	if run.Status.Terminal() {
		return once && run.Status == workflow.StatusCompleted, nil
	}
	if once {
		return true, nil
	}
	over, err := s.isOver(r.Context(), run)
	return !over, err
}

// startAnswer starts the run that gets the answer to a question, such as whether a
// tool may be called. Each question has at most one such run, ever: a page that sends
// the same answer again joins that run, even if the run has failed, and another answer
// is refused.
func (s *server) startAnswer(r *http.Request, q *Request, opts []workflow.StartOption, answer string) (id string, created bool, err error) {
	id, created, err = s.start(r, q.Call, opts)
	if err != nil || created {
		return id, created, err
	}
	run, err := s.client.Get(r.Context(), id)
	if err != nil {
		return "", false, err
	}
	return id, false, sameAnswer(run, answer)
}

// sameAnswer checks that a run was started with this answer. Errors:
// permission_denied.
func sameAnswer(run *workflow.RunInfo, answer string) error {
	if run.Attributes[AttributeAnswer] != answer {
		return cay.Errorf(cay.PermissionDenied, "this question was answered before, and otherwise")
	}
	return nil
}

// attributes returns the attributes of the runs of a chat.
func (s *server) attributes(q *Request, user string) map[string]string {
	attributes := map[string]string{AttributeHandler: s.o.Name}
	if q.ID != "" {
		attributes[AttributeChat] = q.ID
	}
	if user != "" {
		attributes[AttributeUser] = user
	}
	return attributes
}

// get streams a run.
func (s *server) get(w *response, r *http.Request) error {
	from := int64(0)
	if at := r.URL.Query().Get("startIndex"); at != "" {
		n, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			return cay.Errorf(cay.Invalid, "startIndex is %.40q: it must be a whole number", at)
		}
		from = n
	}
	run, err := s.find(r)
	if err != nil {
		return err
	}
	switch {
	case run != nil:
		return s.serve(w, r, run.ID, from)
	case r.URL.Query().Has("startIndex"):
		// WorkflowChatTransport, which would ask again at once, for ever.
		streamHeader(w.Header())
		w.WriteHeader(http.StatusOK)
		w.event(chunkFinish)
		w.event(chunkDone)
		if err := w.send(); !errors.Is(err, errLeft) {
			return err
		}
		return nil
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// cancel cancels a run, and does nothing if the run has ended.
func (s *server) cancel(w *response, r *http.Request) error {
	run, err := s.find(r)
	if err != nil {
		return err
	}
	if run != nil && !run.Status.Terminal() {
		_, err := s.client.Cancel(r.Context(), run.ID, workflow.CancelParams{Reason: "stopped by its reader"})
		if conflict := cay.CodeOf(err) == cay.Conflict; err != nil && !conflict { // it has ended meanwhile
			return err
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// find returns the run that a request names, by its id or by the id of its chat; nil
// if the chat has no run in progress.
func (s *server) find(r *http.Request) (*workflow.RunInfo, error) {
	user, err := s.user(r)
	if err != nil {
		return nil, err
	}
	id := r.PathValue("id")
	var run *workflow.RunInfo
	if strings.HasPrefix(id, runPrefix) {
		run, err = s.client.Get(r.Context(), id)
		if cay.CodeOf(err) == cay.Invalid {
			err = cay.Errorf(cay.NotFound, "run %.40q not found", id)
		}
	} else {
		run, err = s.newest(r, id, user)
	}
	if err != nil || run == nil {
		return nil, err
	}
	if run.Workflow != s.workflow || run.Attributes[AttributeHandler] != s.o.Name || run.Attributes[AttributeUser] != user {
		// The same error as for a missing run, so that other users learn nothing.
		return nil, cay.Errorf(cay.NotFound, "run %q not found", id)
	}
	return run, s.authorize(r, run.ID)
}

// newest returns the run that answers the last message of a chat, nil if the run has
// ended.
func (s *server) newest(r *http.Request, chat, user string) (*workflow.RunInfo, error) {
	if len(chat) > maxID {
		return nil, cay.Errorf(cay.Invalid, "the id of the chat has more than %d bytes", maxID)
	}
	attributes := map[string]string{AttributeHandler: s.o.Name, AttributeChat: chat}
	if user != "" {
		attributes[AttributeUser] = user
	}
	page, err := s.client.List(r.Context(), workflow.Query{Workflow: s.workflow, Attributes: attributes, Limit: 1})
	if err != nil || len(page.Items) == 0 || page.Items[0].Status.Terminal() {
		return nil, err
	}
	return &page.Items[0], nil
}

// read counts a reader of a run, until done is called. Errors: unavailable if the run
// has too many.
func (s *server) read(run string) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading[run] >= s.o.MaxReadersOfRun {
		return nil, cay.Errorf(cay.Unavailable, "there are too many readers of this answer")
	}
	s.reading[run]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.reading[run]--; s.reading[run] == 0 {
			delete(s.reading, run)
		}
	}, nil
}

// errLeft means that the reader has closed the connection.
var errLeft = errors.New("the reader has left")
