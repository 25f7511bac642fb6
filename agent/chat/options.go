package chat

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
)

// Options say how a Handler serves chats. The zero value is suitable where only one
// person can reach the Handler.
type Options struct {
	// Prefix is the path the Handler is mounted at. Empty means /api/chat.
	Prefix string
	// Name distinguishes the runs of this Handler from the runs of other Handlers: a
	// Handler serves only its own runs. Empty means the name of the workflow.
	Name string

	// User returns the user that a request is from. Runs that one user has started are
	// not found for other users. If User is nil, all requests are from one user. An
	// error of User is sent to the client: make it a *cay.Error with unauthenticated or
	// permission_denied.
	User func(r *http.Request) (string, error)
	// Authorize is called before a run is read or cancelled, and may refuse with an
	// error, as User may. Nil allows every reader.
	Authorize func(r *http.Request, run string) error
	// Remember makes the handler take the conversation from the runs of a chat, not
	// from the page: set it for pages that are not trusted. The handler then reads only
	// the last message of a POST; and from a message of the assistant only the answers
	// in it: approvals, and outputs of tools that the client runs. Remember needs the
	// chat's id in requests, a workflow that returns an *agent.Result, and runs that
	// are kept as long as a chat may go on.
	Remember bool
	// Prepare may change the run before it is started: the agent.Call made of the
	// messages, and the start options. Its error is sent to the client.
	Prepare func(r *http.Request, q *Request) error

	// Convert says how messages of pages become messages of the agent.
	Convert ConvertOptions
	// ResetStep is for pages with AI SDK 7 only: earlier versions fail at a chunk of
	// the type reset-step, which means that an answer is being given again.
	ResetStep bool

	// MaxBody bounds the body of a POST, in bytes. 0 means 10 MiB.
	MaxBody int64
	// MaxReaders bounds the connections at one time; further ones fail with
	// unavailable. 0 means 10000.
	MaxReaders int
	// MaxReadersOfRun is how many readers one run may have. 0 means 100.
	MaxReadersOfRun int
	// Heartbeat is the longest silence on a connection. 0 means 15 s.
	Heartbeat time.Duration
	// Logger logs errors. Nil means that nothing is logged.
	Logger *slog.Logger

	writeTimeout time.Duration // for a reader to take what was written to it; 0 means 1 minute
}

// The attributes of runs that a Handler starts, for finding the runs in lists.
const (
	AttributeHandler = "chat.handler" // Options.Name
	AttributeChat    = "chat.id"      // the page's id of the chat; not set if it sent none
	AttributeUser    = "chat.user"    // the result of Options.User; not set if empty
	AttributeMessage = "chat.message" // the id of the user's message that is answered, with Options.Remember
	AttributeAnswer  = "chat.answer"  // an id of the approvals that the run was given, if it was given any
)

// Headers of answers. Source: WorkflowChatTransport of @workflow/ai 6.0.0 and
// @ai-sdk/workflow 2.0.43, and the AI SDK's UI message stream protocol.
const (
	headerRun     = "X-Workflow-Run-Id"
	headerTail    = "X-Workflow-Stream-Tail-Index"
	headerVersion = "X-Vercel-Ai-Ui-Message-Stream"
)

const readTimeout = time.Minute // for the body of a POST

func (o Options) withDefaults(workflow string) Options {
	if o.Prefix == "" {
		o.Prefix = "/api/chat"
	}
	if o.Name == "" {
		o.Name = workflow
	}
	if o.MaxBody <= 0 {
		o.MaxBody = 10 << 20
	}
	if o.MaxReaders <= 0 {
		o.MaxReaders = 10_000
	}
	if o.MaxReadersOfRun <= 0 {
		o.MaxReadersOfRun = 100
	}
	if o.Heartbeat <= 0 {
		o.Heartbeat = 15 * time.Second
	}
	if o.writeTimeout <= 0 {
		o.writeTimeout = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("component", "chat")
	return o
}

// status is the HTTP status of an error's code, as everywhere in cay.
var status = map[cay.Code]int{
	cay.Invalid:          http.StatusBadRequest,
	cay.Unauthenticated:  http.StatusUnauthorized,
	cay.PermissionDenied: http.StatusForbidden,
	cay.NotFound:         http.StatusNotFound,
	cay.Conflict:         http.StatusConflict,
	cay.TooLarge:         http.StatusRequestEntityTooLarge,
	cay.QuotaExceeded:    http.StatusTooManyRequests,
	cay.NotSupported:     http.StatusNotImplemented,
	cay.Unavailable:      http.StatusServiceUnavailable,
	cay.DeadlineExceeded: http.StatusGatewayTimeout,
}

// stream is the stream that the handler serves.
const stream = agent.StreamName
