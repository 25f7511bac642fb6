package workflowd

import (
	"context"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd/admission"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/workflow"
)

// Store keeps logs, and answers queries about them. sqlstore implements it on SQLite, for
// one process, and on PostgreSQL, for several that share a database; storetest holds both
// to one behaviour.
//
// The engine is the only writer of the runs it owns: it assigns the slots, and decides
// which events are allowed. A Store makes groups durable, decides what must be unique
// across runs, and answers queries. Queries see everything that was committed before they
// were called. All methods may be called concurrently, Commit too: two concurrent groups
// never have events of the same run.
//
// Errors: no_space (nothing of the group was stored), unavailable (the database does not
// answer; the group may or may not have been stored), conflict from Commit if another
// process has taken over this process's runs: nothing was stored, and the engine must
// drop all its runs; see Owner.
type Store interface {
	// Commit stores a group as a whole. See Group.
	Commit(ctx context.Context, g *Group) error

	// Run returns a run; not_found.
	Run(ctx context.Context, id string) (*history.Run, error)
	// Last returns the run with the given First that comes last in its chain, whether it
	// has ended or not; not_found if there is none.
	Last(ctx context.Context, first string) (*history.Run, error)
	// LiveChildren returns the live children of a run and of the runs whose First is that
	// run.
	LiveChildren(ctx context.Context, first string) ([]history.Run, error)
	// Events returns the events of a run from a slot on, at most limit; 0 means all.
	Events(ctx context.Context, id string, from int64, limit int) ([]history.Event, error)
	Runs(ctx context.Context, q history.Query) (*history.Page[history.Run], error)
	// Count counts the runs that a query selects, by status, at a bounded cost: it counts
	// at least the first 10,000 runs of a status exactly, unless the query asks for
	// attributes that many runs have. It ignores cursor, limit and order.
	Count(ctx context.Context, q history.Query) (history.Counts, error)
	// Hook returns the live hook of a token; not_found.
	Hook(ctx context.Context, project, token string) (*history.Hook, error)
	Hooks(ctx context.Context, project, run, cursor string, limit int) (*history.Page[history.Hook], error)
	// Chunks returns at most limit chunks of a stream from an index on, and the stream's
	// length and state. A stream without writes is empty and open.
	Chunks(ctx context.Context, run, stream string, from int64, limit int) ([]history.Chunk, history.StreamInfo, error)
	Streams(ctx context.Context, run string) ([]history.StreamInfo, error)
	// StreamRun returns the run of a project that has a stream of that name, the newest of
	// several; not_found.
	StreamRun(ctx context.Context, project, stream string) (string, error)
	// Blob returns a payload too large for the log; not_found.
	Blob(ctx context.Context, run, name string) ([]byte, error)

	// Due returns timers of runs that this process owns and that are due before a time,
	// soonest first: waits, step retries, and starts of runs with a NotBefore.
	Due(ctx context.Context, before time.Time, limit int) ([]Due, error)
	// Owned returns the runs of this process that were running, or were asked to run,
	// when they were last stored, oldest first, a page at a time: the runs that recovery
	// has to resume. Runs that only wait for timers or hooks are left out; see Asleep.
	Owned(ctx context.Context, after string, limit int) ([]history.Run, error)
	// Expired returns ended runs whose retention is over: ExpiresAt is not 0 and not
	// later than now. A negative ExpiresAt asks for Strip. Two kinds of runs are left
	// out, unless they ask for Strip: the first run of a chain while another run of the
	// chain is kept, and a later run of a chain while one of its children is live.
	Expired(ctx context.Context, now time.Time, limit int) ([]string, error)
	// Delete removes ended runs with all their data.
	Delete(ctx context.Context, ids []string) error
	// Strip deletes the payloads of ended runs: Payload and Input of their events, the
	// data of chunks, blobs. All else stays, and ExpiresAt becomes 0.
	Strip(ctx context.Context, ids []string) error

	// Schedules returns the schedules of a project, of all if it is "".
	Schedules(ctx context.Context, project string) ([]history.Schedule, error)
	// PutSchedule inserts or replaces a schedule; DeleteSchedule removes it; not_found.
	PutSchedule(ctx context.Context, s history.Schedule) error
	DeleteSchedule(ctx context.Context, project, id string) error

	// Limits returns the limits of a project, of all if it is "", by workflow.
	Limits(ctx context.Context, project string) ([]history.Limit, error)
	// PutLimit inserts or replaces a limit; DeleteLimit removes it; not_found.
	PutLimit(ctx context.Context, l history.Limit) error
	DeleteLimit(ctx context.Context, project, workflow string) error

	// Transact runs f in a transaction on the engine's own database, which also stores
	// the records of g: both or neither. f is called once, before g.Settle.
	Transact(ctx context.Context, g *Group, f func(tx Tx) error) error

	// Owner returns the ownership of runs in a shared database; nil for a store of one
	// process.
	Owner() Owner
	Close() error
}

// Group is the input of one commit.
type Group struct {
	// Claims are the names that must be unique. Commit decides them first, in order, and
	// sets Owner of each claim whose name was taken already.
	Claims []*Claim
	// Settle is called once, after the claims are decided and before anything is written:
	// it returns the records to store. It does not block.
	Settle func() Records
}

// Claim asks for a name that at most one run has at a time: a hook's token until the hook
// or its run ends, an idempotency key for as long as the run is kept.
type Claim struct {
	Project string
	Token   string // token of a hook, or
	// Workflow and Key of a start.
	Workflow, Key string
	Run           string // the run that asks
	Hook          string // the hook's id
	Owner         string // out: the run that has the name, "" if Run has it now
	OwnerHook     string // out: for tokens
}

// Records are the data that a group stores.
type Records struct {
	// Runs are the changed and new rows, with all their fields.
	Runs []history.Run
	// Logs are new events. Events of one run are in order and dense.
	Logs []Log
	// Chunks are appended to streams. The engine assigns the indexes.
	Chunks []StreamChunks
	Blobs  []Blob
	// Messages are published: queue.Queue.Prepare has assigned their ids. A message whose
	// idempotency key is in use is left out. After they are stored, the queue is told
	// (queue.Queue.Added).
	Messages []queue.Message
	// Asleep are runs that from now on only wait for timers and hooks; Awake are runs
	// that no longer do.
	Asleep, Awake []string
	// Inbox are the ids of messages that this group takes in; see Owner.
	Inbox []int64
	// Verdicts are about messages that this group takes in or refuses and whose senders
	// wait for the outcome. These messages are not in Inbox.
	Verdicts []Verdict
	// Post are messages for runs that another process may own: see Owner.Post. Messages
	// for runs that do not exist are dropped. Only for stores that have an Owner.
	Post []Message
}

// Log is a run with its new events.
type Log struct {
	Run    *history.Run // the run after the events; read-only, and only during Commit
	Events []history.Event
}

// StreamChunks are new chunks of one stream.
type StreamChunks struct {
	Run, Stream string
	Chunks      []history.Chunk
	Close       bool
}

// Blob is a payload stored outside the log. It is deleted with its run. Its name is
// derived from its data, so Commit keeps an existing blob of the same run and name.
type Blob struct {
	Run, Name string
	Data      []byte
}

// Due is a timer: a wait of a run, the retry of a step, or the start of a run (ID "").
type Due struct {
	Run string
	ID  string
	At  int64 // Unix milliseconds
}

// Tx is the transaction of a transactional step on the engine's database.
type Tx = workflow.Tx

// Owner divides the runs among the processes that share a database. A process registers
// and gets an epoch; every commit checks, in its transaction, that the epoch is still
// valid. Every live run has an owner, or waits for a process that serves its workflow
// (and build).
//
// A process that does not renew its registration for the length of a lease is dead to the
// others: the statement that ends its registration also frees its runs for other
// processes, so a late commit of the dead process fails with conflict.
type Owner interface {
	// Renew renews this process's registration. The engine calls it after each third of
	// the lease, and stops all runs when it has not succeeded for two thirds. Errors:
	// conflict, another process has ended the registration.
	Renew(ctx context.Context) error
	// Register registers this process again, after conflict. It owns no runs then.
	Register(ctx context.Context) error
	Lease() time.Duration
	// Serve sets the workflows that this process has workers for; Claim only claims runs
	// of these workflows.
	Serve(definitions []Served)
	// Claim takes over at most limit runs that no live process owns, and returns those of
	// them that Owned would return. Sleeping runs come with their timers, see Due.
	Claim(ctx context.Context, limit int) ([]history.Run, error)
	// Take makes this process the owner of those given runs that are live and that no
	// live process owns. It returns the given runs that this process owns now.
	Take(ctx context.Context, runs []string) ([]string, error)
	// Ask asks the live process that owns a run for it: see NoticeAsked. The process may
	// miss that.
	Ask(ctx context.Context, run string) error
	// Disown gives up runs, so that other processes can claim them.
	Disown(ctx context.Context, runs []string) error
	// Post stores a message for the owner of a run and wakes the owner. It returns the
	// message's id. Errors: not_found.
	Post(ctx context.Context, m Message) (int64, error)
	// Verdict returns the outcome of a message that Records.Verdicts names, nil while
	// there is none. The first outcome returned is also the last; it deletes the message.
	// Errors: not_found: the run ended, or was deleted, before the message was taken in.
	Verdict(ctx context.Context, id int64) (*Verdict, error)
	// Inbox returns messages for runs of this process, oldest first. A message is
	// returned until a group that names it in Records.Inbox has been stored.
	Inbox(ctx context.Context, limit int) ([]Message, error)
	// Notices reports changes that other processes make. The channel is closed with the
	// store. After a lost connection it reports NoticeAll.
	Notices() <-chan Notice
	// Running counts the running runs of a workflow and group in all processes, for their
	// limits.
	Running(ctx context.Context, project, workflow, group string) (int, error)
	// The limits of external runs.
	admission.Shared
}

// Served is a workflow that a process has a worker for. Build "" serves only runs that
// are not pinned to a build.
type Served struct{ Project, Workflow, Build string }

// Message asks the owner of a run to append an event from outside to it:
// hook_received, cancel_requested, run_cancelled, wait_completed, attr_set.
type Message struct {
	ID    int64
	Run   string
	Event history.Event
}

// Verdict is the outcome of a message.
type Verdict struct {
	ID   int64
	Code cay.Code // "" if the message was taken in
	Why  string   // reason of a refusal, for people
}

// Notice reports one change by another process.
type Notice struct {
	Kind NoticeKind
	Run  string // or "" for many runs
}

// NoticeKind is the kind of a notice.
type NoticeKind string

// The kinds of notices.
const (
	NoticeInbox   NoticeKind = "inbox"   // this process's inbox has messages
	NoticeClaim   NoticeKind = "claim"   // there are runs to claim
	NoticeChanged NoticeKind = "changed" // a run has new events or chunks; for followers
	NoticeAsked   NoticeKind = "asked"   // another process asks for a run of this process
	// NoticeSchedules: schedules were set or deleted, or have started runs.
	NoticeSchedules NoticeKind = "schedules"
	NoticeAll       NoticeKind = "all" // look at everything again
)
